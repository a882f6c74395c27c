"""Reads an HTTP inference request: its API by the path, its prompt by the body.

`form_model` finds the model's name in a form, the body of requests with a file: audio, images.
"""

import re
from collections.abc import Callable

from msgspec.structs import replace

from warmpath.router.inference_api.apis.api import Api, UnreadApi
from warmpath.router.inference_api.apis.table import api_of
from warmpath.router.inference_api.body import Body
from warmpath.router.inference_api.model_name import read_model
from warmpath.router.inference_api.reckon import reckon
from warmpath.router.inference_api.request import (
    InferenceRequest,
    TraitsOf,
    Unread,
    UnreadError,
    no_traits,
)
from warmpath.router.prompt.bodies.fields import MOST_VALUES, raw_fields
from warmpath.router.prompt.bodies.json_strings import FieldError, FieldLimitError
from warmpath.router.prompt.limits import PromptLimits
from warmpath.router.prompt.tokenise import CHARS_PER_TOKEN

MOST_SEARCHED_BYTES = 64 << 10
"""Most bytes at each end of a form that are searched for the model's field; a file lies between."""

MODEL = re.compile(
    rb'; ?name="?model"?[ \t]*\r?\n(?:[^\r\n]{1,256}+\r?\n){0,8}+\r?\n([^\r\n]{1,1024})\r?\n--'
)
"""The field's header, with up to 8 further lines, and its value."""


def form_model(body: bytes) -> str:
    """Return the form's field `model`; empty if it has none."""
    most = MOST_SEARCHED_BYTES
    found = MODEL.search(body[:most]) or MODEL.search(body[max(most, len(body) - most) :])
    return found.group(1).decode(errors="replace") if found else ""


class InferenceReader:
    """Reads requests of all APIs; it refuses none, and no body raises an error.

    `engine_of` returns the kind of engine that serves a model, by any name of the model, or by none:
    `vllm`, `sglang` or `trtllm`; empty if that is not known or if several kinds do.
    """

    def __init__(
        self, limits: PromptLimits, engine_of: Callable[[str], str], traits_of: TraitsOf = no_traits
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
        kind = content_type.partition(";")[0].strip().lower()
        size, limit = len(body), self._limits.max_prompt_bytes
        if content_encoding.strip().lower() not in ("", "identity"):
            error = UnreadError(Unread.BODY_ENCODED, "the body is compressed")
            return self._unread(api, error, "", 0)
        if kind == "multipart/form-data":
            error = UnreadError(Unread.BODY_NOT_JSON, "the body is a form")
            return self._unread(api, error, form_model(body[:limit]), 0)
        if kind not in ("", "application/json") and not kind.endswith("+json"):
            error = UnreadError(Unread.BODY_NOT_JSON, "the content type is not JSON")
        elif size > limit:
            problem = f"the body has {size} bytes or more; limits.max-prompt-bytes is {limit}"
            error = UnreadError(Unread.BODY_TOO_LARGE, problem)
        elif isinstance(api, UnreadApi):
            error = UnreadError(api.because, api.problem)
        else:
            try:
                return await self._read(api, body)
            except FieldError as found:
                too_large = isinstance(found, FieldLimitError)
                because = Unread.BODY_TOO_LARGE if too_large else Unread.BODY_NOT_JSON
                error = UnreadError(because, f"{found.field or 'the body'} {found.problem}")
            except RecursionError:
                error = UnreadError(Unread.BODY_TOO_LARGE, "the body nests too deeply")
        return self._unread(api, error, await read_model(body[:limit]), -(-size // CHARS_PER_TOKEN))

    async def _read(self, api: Api, raw: bytes) -> InferenceRequest:
        most_values = MOST_VALUES + api.has_ids * self._limits.max_prompt_tokens
        fields = await raw_fields(raw, ("model", *api.fields), most_values)
        body = Body(raw, fields, self._limits)
        model = await body.name("model")
        try:
            engine = self._engine_of(model)
            prompt = await api.prompt(replace(body, engine=engine, traits_of=self._traits_of))
        except UnreadError as error:
            return self._unread(api, error, model, await reckon(body, api.fields))
        return InferenceRequest(api.name, model, prompt)

    def _unread(
        self, api: Api | UnreadApi, error: UnreadError, model: str, reckoned: int
    ) -> InferenceRequest:
        if isinstance(api, UnreadApi):
            error = UnreadError(api.because, api.problem)
        return InferenceRequest(
            api=api.name,
            model=model,
            prompt=None,
            unread_because=error.because,
            problem=str(error),
            reckoned_tokens=min(reckoned, self._limits.max_prompt_tokens),
        )
