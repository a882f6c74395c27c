"""Reads an HTTP inference request: its API by the path, its prompt by the body.

`form_model` finds the model's name in a form, the body of requests with a file: audio, images.
"""

import re
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from warmpath.prefixstore.chats.chat import TemplateTraits
from warmpath.router.inference_api.apis import api_of
from warmpath.router.inference_api.body import Api, Body
from warmpath.router.inference_api.model_name import read_model
from warmpath.router.inference_api.request import InferenceRequest, NotExactError, UnreadError
from warmpath.router.inference_api.response import ENCODED, is_json, kind_of
from warmpath.router.prompt.bodies.fields import MOST_VALUES, FieldError, RawFields, raw_fields
from warmpath.router.prompt.bodies.session import OF_SESSIONS, session_of
from warmpath.router.prompt.bodies.written import written
from warmpath.router.prompt.limits import PromptLimits
from warmpath.router.prompt.truncate import CHARS_PER_TOKEN

MOST_SEARCHED_BYTES = 64 << 10
"""Most bytes at each end of a form that are searched for the model's field; a file lies between."""

WRITTEN = (
    *("cache_salt", "extra_key", "tools", "system", "instructions"),
    *("previous_response_id", "previous_input_messages", "input", "messages"),
)
"""The fields of all APIs that keep prompts apart, and then those that engines make a prompt of, in the
order of most templates. What an earlier response held stands before the new input."""

MODEL = re.compile(
    rb'; ?name="?model"?[ \t]*\r?\n(?:[^\r\n]{1,256}+\r?\n){0,8}+\r?\n([^\r\n]{1,1024})\r?\n--'
)
"""The header of a form's field `model`, with up to 8 further lines, and the field's value."""


def form_model(body: bytes) -> str:
    """Return the form's field `model`; empty if it has none."""
    most = MOST_SEARCHED_BYTES
    found = MODEL.search(body[:most]) or MODEL.search(body[max(most, len(body) - most) :])
    return found.group(1).decode(errors="replace") if found else ""


class InferenceReader:
    """Reads requests of all APIs; it refuses none, and no body raises an error.

    `engine_of` returns the kind of engine that serves a model, by any name of the model, or by none:
    `vllm`, `sglang` or `trtllm`; empty if that is not known or if several kinds do. `traits_of` returns
    the traits of a model's template, if they are known.
    """

    def __init__(
        self,
        limits: PromptLimits,
        engine_of: Callable[[str], str],
        traits_of: Callable[[str], Awaitable[TemplateTraits | None]],
    ) -> None:
        self._limits = limits
        self._engine_of = engine_of
        self._traits_of = traits_of

    async def read(
        self, path: str, body: bytes, content_type: str = "", content_encoding: str = ""
    ) -> InferenceRequest:
        """Read a request; the path may have a query, the other strings are headers' values.

        A body of megabytes is read in slices, and other tasks run in between. Where a body is too large
        to be kept, its beginning is enough, if that is longer than limits.max-prompt-bytes.
        """
        api = api_of(path)
        kind = kind_of(content_type, content_encoding)
        size, limit = len(body), self._limits.max_prompt_bytes
        if kind == ENCODED:
            return self._unread(api, "the body is compressed", "", 0)
        if kind == "multipart/form-data":
            return self._unread(api, "the body is a form", form_model(body[:limit]), 0)
        if not is_json(kind):
            problem = "the content type is not JSON"
        elif size > limit:
            problem = f"the body has {size} bytes or more; limits.max-prompt-bytes is {limit}"
        elif isinstance(api, str):
            problem = api
        else:
            try:
                return await self._read(api, body)
            except FieldError as error:
                problem = f"{error.field or 'the body'} {error.problem}"
            except RecursionError:
                problem = "the body nests too deeply"
        return self._unread(
            api, problem, await read_model(body[:limit]), -(-size // CHARS_PER_TOKEN)
        )

    async def _read(self, api: Api, raw: bytes) -> InferenceRequest:
        most_values = MOST_VALUES + api.has_ids * self._limits.max_prompt_tokens
        names = api.parsed or ("model", *api.fields, *OF_SESSIONS)
        fields = await raw_fields(raw, names, most_values)
        body = Body(
            fields.fields, fields.strings, raw, self._limits, self._engine_of, self._traits_of
        )
        model, session = await body.name("model"), session_of(fields)
        try:
            return InferenceRequest(
                model,
                await api.prompt(body),
                text=self._written(api, fields),
                fields=fields if api.parsed else None,
                session=session,
            )
        except UnreadError as error:
            tokens = await body.estimate(api.fields)
            text = self._written(api, fields) if isinstance(error, NotExactError) else b""
            return replace(self._unread(api, str(error), model, tokens, text), session=session)

    def _written(self, api: Api, fields: RawFields) -> bytes:
        if not api.makes_chat:
            return b""
        raw = b"".join(fields.fields[one] for one in WRITTEN if one in fields.fields)
        return written(raw)[: self._limits.max_prompt_tokens * CHARS_PER_TOKEN]

    def _unread(
        self, api: Api | str, problem: str, model: str, estimated: int, text: bytes = b""
    ) -> InferenceRequest:
        """Return a request without a prompt; an API that never has one says so itself."""
        return InferenceRequest(
            model=model,
            prompt=None,
            problem=api if isinstance(api, str) else problem,
            estimated_tokens=min(estimated, self._limits.max_prompt_tokens),
            text=text,
        )
