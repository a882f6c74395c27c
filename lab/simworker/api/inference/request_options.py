"""The fields that most requests share, validated as vLLM does.

Source: `vllm/entrypoints/openai/{completion,chat_completion}/protocol.py` and `serving.py` of 0.32.
"""

import contextlib
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from warmpath.lab.simworker.api.errors import ApiError, bad
from warmpath.lab.simworker.api.fields import Fields
from warmpath.lab.simworker.engine import Generation
from warmpath.lab.simworker.server.adapters import Adapter, Adapters
from warmpath.lab.simworker.server.worker import Identity

MOST_SAMPLES = 16384
MOST_SALT = 128
SALT_FORBIDDEN = frozenset("@/\\\0")
INT64 = (1 << 63) - 1
REPORT_MODES = ("incremental", "full")


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """One request without its prompt."""

    answer_id: str
    model: str
    adapter: Adapter | None
    samples: int
    max_tokens: int | None
    """The most tokens of a sample; None: as many as fit."""
    stream: bool
    include_usage: bool
    continuous_usage: bool
    stream_interval: int
    return_token_ids: bool
    echo: bool
    cache_salt: str
    priority: int
    rank: int | None
    """The data-parallel rank that the request names; None lets the worker choose."""
    skip_reading_prefix_cache: bool
    kv_cache_report_mode: str

    def ask(self, prompt: list[int], identity: Identity) -> Generation:
        """Return the worker's task for one prompt. Raises ApiError if it is empty, wrong or too long."""
        if not prompt:
            raise bad("prompt", "at least one token is needed")
        if min(prompt) < 0 or max(prompt) >= identity.vocab_size:
            raise bad("prompt", f"token ids must be 0 to {identity.vocab_size - 1}")
        left = identity.max_model_len - len(prompt)
        if left < 1:
            raise bad(
                "prompt",
                f"{len(prompt)} tokens leave no room within max_model_len {identity.max_model_len}",
            )
        adapter = self.adapter
        return Generation(
            "",
            prompt,
            left if self.max_tokens is None else self.max_tokens,
            cache_salt=self.cache_salt,
            lora_name=adapter.name if adapter else "",
            lora_path=adapter.path if adapter else "",
            priority=self.priority,
            skip_reading_prefix_cache=self.skip_reading_prefix_cache,
            kv_cache_report_mode=self.kv_cache_report_mode,
        )


def find_model(fields: Fields, identity: Identity, adapters: Adapters) -> Adapter | None:
    """Return the adapter that a request names; None for the base model. Raises ApiError for others."""
    name = fields.text("model") or identity.model
    adapter = adapters.get(name)
    if adapter is None and name != identity.model:
        raise ApiError(f"The model `{name}` does not exist.", field="model", status=404)
    return adapter


def read_options(
    request: web.Request,
    fields: Fields,
    identity: Identity,
    adapters: Adapters,
    *,
    answer_id: str,
    default_tokens: int | None,
    max_tokens_field: str = "max_tokens",
) -> RequestOptions:
    """Validate a request's fields, where `max_tokens` is named `max_tokens_field`. Raises ApiError."""
    adapter = find_model(fields, identity, adapters)
    longest = identity.max_model_len
    newer = "max_completion_tokens"
    name = max_tokens_field if fields.get(newer) is None else newer
    max_tokens: int | None = default_tokens
    if fields.get(name) is not None:
        max_tokens = fields.whole(name, 1, 1, INT64)
        if max_tokens >= longest:
            raise bad(name, f"{max_tokens} leave no room within max_model_len {longest}")
    fewest = fields.whole("min_tokens", 0, 0, longest)
    if max_tokens is not None and fewest > max_tokens:
        raise bad("min_tokens", f"{fewest} are more than max_tokens {max_tokens}")
    stream = fields.flag("stream")
    options = fields.object("stream_options")
    if options.body and not stream:
        raise bad("stream_options", "can only be given where stream is true")
    include_usage = options.flag("include_usage")
    interval = fields.whole("stream_interval", 1, 1, INT64)
    prompt_logprobs = fields.whole("prompt_logprobs", 0, -1, INT64)
    if prompt_logprobs and stream:
        raise bad("prompt_logprobs", "cannot be given where stream is true")
    for known in ("kv_transfer_params", "ec_transfer_params"):
        fields.object(known)
    return RequestOptions(
        answer_id=request.headers.get("X-Request-Id") or fields.text("request_id") or answer_id,
        model=adapter.name if adapter else identity.model,
        adapter=adapter,
        samples=fields.whole("n", 1, 1, MOST_SAMPLES),
        max_tokens=max_tokens,
        stream=stream,
        include_usage=include_usage,
        continuous_usage=include_usage and options.flag("continuous_usage_stats"),
        stream_interval=max(interval, identity.stream_interval),
        return_token_ids=fields.flag("return_token_ids"),
        echo=fields.flag("echo"),
        cache_salt=_salt(fields.get("cache_salt")),
        priority=_priority(request, fields, identity),
        rank=_rank(request),
        skip_reading_prefix_cache=fields.get("prompt_logprobs") is not None,
        kv_cache_report_mode=_report_mode(fields),
    )


def _salt(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or not value:
        raise bad("cache_salt", "must be a non-empty string if provided")
    if len(value) > MOST_SALT or not SALT_FORBIDDEN.isdisjoint(value):
        raise bad("cache_salt", f"at most {MOST_SALT} characters, and no '@', '/', '\\' or NUL")
    return value


def _priority(request: web.Request, fields: Fields, identity: Identity) -> int:
    priority = fields.whole("priority", 0, -INT64 - 1, INT64)
    with contextlib.suppress(KeyError, ValueError):
        # As in vLLM, a header that is not a number is ignored.
        priority = int(request.headers["X-Vllm-Priority"])
    if priority and not identity.priorities:
        raise bad("priority", "must be 0 unless the scheduling policy is priority")
    return priority


def _rank(request: web.Request) -> int | None:
    try:
        return int(request.headers["X-data-parallel-rank"])
    except (KeyError, ValueError):
        return None


def _report_mode(fields: Fields) -> str:
    extra = fields.object("vllm_xargs")
    mode = extra.text("kv_cache_report_mode", REPORT_MODES[0])
    if mode not in REPORT_MODES:
        raise bad("vllm_xargs.kv_cache_report_mode", f"one of {', '.join(REPORT_MODES)}")
    return mode
