"""vLLM's token API, /inference/v1/generate: token ids in, token ids out.

Source: `vllm/entrypoints/scale_out/token_in_token_out/` of 0.32, and recordings of its answers.
"""

import secrets
from collections.abc import Iterator, Sequence
from typing import Any

from aiohttp import web

from warmpath.lab.simworker.api.errors import bad
from warmpath.lab.simworker.api.fields import Endpoints, Fields, read_body
from warmpath.lab.simworker.api.inference.answer import NOTHING, Answer, refuse
from warmpath.lab.simworker.api.inference.choices import usage
from warmpath.lab.simworker.api.inference.generate import generate
from warmpath.lab.simworker.api.inference.request_options import read_options
from warmpath.lab.simworker.api.inference.token_stream import Piece

REFUSED: dict[str, tuple[Any, ...]] = {
    "content_parts": NOTHING,
    "features": NOTHING,
    "output_mode": (None, "tokens"),
}
OF_REQUEST = ("model", "stream", "stream_options", "cache_salt", "priority", "request_id")
OF_SAMPLING = ("max_tokens", "min_tokens", "n", "prompt_logprobs")
DEFAULT_TOKENS = 16


class TokenApi(Endpoints):
    """The endpoint /inference/v1/generate."""

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/inference/v1/generate", self.generate)]

    async def generate(self, request: web.Request) -> web.StreamResponse:
        worker = self._worker
        fields = await read_body(request)
        refuse(fields, REFUSED)
        sampling = fields.object("sampling_params")
        refuse(sampling, {"logprobs": (None,)})
        ids = fields.get("token_ids")
        if not isinstance(ids, list) or set(map(type, ids)) != {int}:
            raise bad("token_ids", "a list of token ids is needed")
        body = {name: fields.get(name) for name in OF_REQUEST}
        body |= {name: sampling.get(name) for name in OF_SAMPLING}
        options = read_options(
            request, Fields(body), worker.identity, worker.adapters,
            answer_id=secrets.token_hex(8), default_tokens=DEFAULT_TOKENS,
        )  # fmt: skip
        return await generate(request, worker, options, [ids], TokenAnswer)


class TokenAnswer(Answer):
    """The samples of one prompt, as token ids."""

    @property
    def _head(self) -> dict[str, Any]:
        name = f"generate-tokens-{self._options.answer_id}"
        return {"request_id": name, "output_mode": "tokens"}

    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        choices = [_choice(piece) for piece in pieces]
        made = {"model": self._options.model, "created": self._created}
        return self._head | made | {"usage": self._usage(), "choices": choices}

    def chunks(self, piece: Piece) -> Iterator[dict[str, Any]]:
        yield self._head | {"usage": None, "choices": [_choice(piece)]}

    def closing(self) -> Iterator[dict[str, Any]]:
        """Yield the event with the usage, if the request asks for it."""
        if self._options.include_usage:
            yield self._head | {"usage": self._usage(), "choices": []}

    def _usage(self) -> dict[str, Any]:
        output = sum(len(flight.tokens) for flight in self._flights)
        first = self._flights[0]
        return usage(len(first.ask.prompt), output, first.cached_tokens)


def _choice(piece: Piece) -> dict[str, Any]:
    return {
        "index": piece.choice,
        "token_ids": piece.tokens,
        "finish_reason": piece.finish_reason,
        "stop_reason": None,
        "logprobs": None,
    }
