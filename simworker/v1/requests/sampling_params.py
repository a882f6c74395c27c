"""What a request asks for, as far as the cache is concerned."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class SamplingParams:
    """Of vLLM's parameters those that change what is computed, cached or announced."""

    max_tokens: int = 16
    prompt_logprobs: int | None = None
    """How many a prompt token. They need the whole prompt computed, so the cache is not read."""
    skip_reading_prefix_cache: bool | None = None
    """Store, but find nothing; True by default where `prompt_logprobs` are asked for."""
    extra_args: dict[str, Any] | None = None
    """`kv_cache_report_mode`: "full" announces found blocks again, "incremental" (default) not."""
    ignore_eos: bool = False
    """Whether the model's end-of-sequence tokens end nothing."""
    stop_token_ids: list[int] | None = None
    """Tokens that end the answer, which has them as its last."""
    eos_token_id: int | None = field(default=None, init=False)
    """The model's, which ends the answer too: see `update_from_generation_config`."""

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens: {self.max_tokens}, at least 1")
        if self.skip_reading_prefix_cache is None:
            self.skip_reading_prefix_cache = self.prompt_logprobs is not None

    def update_from_generation_config(
        self, generation_config: Mapping[str, Any], eos_token_id: int | None = None
    ) -> None:
        """Take the tokens that end an answer from the tokenizer and from `generation_config.json`.

        To be called before the request is made. With `ignore_eos` nothing is taken.
        """
        if self.ignore_eos:
            return
        self.eos_token_id = eos_token_id
        more = generation_config.get("eos_token_id")
        if more is not None:
            ids = {more} if isinstance(more, int) else set(more)
            self.stop_token_ids = sorted((ids - {eos_token_id}) | set(self.stop_token_ids or ()))


@dataclass(slots=True)
class PoolingParams:
    """A request for an embedding or a score: no token is generated."""

    skip_reading_prefix_cache: bool | None = None
    """Poolers that need all hidden states set it."""
