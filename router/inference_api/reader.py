"""Reads an HTTP inference request: the API by its path, the prompt and the options by its body."""

from collections.abc import Callable

from router.inference_api.api import UnreadError
from router.inference_api.apis import api_of
from router.inference_api.body import Body
from router.inference_api.request import InferenceRequest, Unread
from router.prompt.body_fields import FieldError, raw_fields
from router.prompt.bounds import Limits
from router.prompt.tokenise import CHARS_PER_TOKEN

UNKNOWN = "unknown"
"""The name of the API of a path that is in no table."""


class InferenceReader:
    """Reads requests of all APIs; no request is refused, and no body raises an error.

    `engine_of` returns the kind of engine that serves a model, by any name of the model: `vllm`, `sglang`
    or `trtllm`; empty if that is not known or if several kinds do.
    """

    def __init__(self, limits: Limits, engine_of: Callable[[str], str]) -> None:
        self._limits = limits
        self._engine_of = engine_of

    async def read(
        self, path: str, body: bytes, content_type: str = "", content_encoding: str = ""
    ) -> InferenceRequest:
        """Read a request; `path` may have a query, the other strings are its headers' values.

        A body of megabytes is read in slices, between which other tasks run. Where the caller has only
        the beginning of a body, since the body is too large, that still tells the model.
        """
        api = api_of(path)
        if api is None:
            return unread(UNKNOWN, Unread.UNKNOWN_PATH, "no API with this path is known", body)
        size, limit = len(body), self._limits.max_prompt_bytes
        if size > limit:
            problem = f"the body has {size} bytes; limits.max-prompt-bytes is {limit}"
            return unread(api.name, Unread.BODY_TOO_LARGE, problem, body)
        try:
            fields = await raw_fields(body, ("model", "stream", *api.fields))
            read = Body(body, fields, self._limits, "")
            model = await read.name("model")
            is_streamed = await read.value("stream") is True
            most = await api.most_output_tokens(read)
            prompt = await api.prompt(Body(body, fields, self._limits, self._engine_of(model)))
        except FieldError as error:
            return unread(api.name, Unread.BODY_NOT_JSON, str(error), body)
        except UnreadError as error:
            return unread(api.name, error.because, str(error), body)
        return InferenceRequest(api.name, model, prompt, is_streamed, most)


def unread(api: str, because: Unread, problem: str, body: bytes) -> InferenceRequest:
    """Return a request that is routed by load."""
    return InferenceRequest(
        api=api,
        model="",
        prompt=None,
        is_streamed=False,
        most_output_tokens=None,
        unread_because=because,
        problem=problem,
        reckoned_tokens=-(-len(body) // CHARS_PER_TOKEN),
    )
