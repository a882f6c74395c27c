"""SGLang's own API, /generate: a text or token ids in, a text and its ids out.

Source: `sglang/srt/managers/{io_struct,tokenizer_manager}.py` of 0.5.23. Each event of a stream has the
whole answer so far.
"""

import secrets
from collections.abc import Iterator, Sequence
from typing import Any

from aiohttp import web

from warmpath.lab.simworker.api.errors import bad
from warmpath.lab.simworker.api.fields import Endpoints, Fields, read_body
from warmpath.lab.simworker.api.inference.answer import NOTHING, Answer, refuse
from warmpath.lab.simworker.api.inference.generate import generate
from warmpath.lab.simworker.api.inference.request_options import read_options
from warmpath.lab.simworker.api.inference.token_stream import Piece

REFUSED: dict[str, tuple[Any, ...]] = {
    "audio_data": NOTHING,
    "extra_key": NOTHING,
    "image_data": NOTHING,
    "input_embeds": NOTHING,
    "positional_embed_overrides": NOTHING,
    "return_hidden_states": NOTHING,
    "return_logprob": NOTHING,
    "session_params": NOTHING,
    "video_data": NOTHING,
}
REFUSED_OF_SAMPLING: dict[str, tuple[Any, ...]] = {
    "ebnf": NOTHING,
    "json_schema": NOTHING,
    "n": (None, 1),
    "regex": NOTHING,
    "structural_tag": NOTHING,
}
DEFAULT_TOKENS = 128


class SglangApi(Endpoints):
    """The endpoint /generate."""

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/generate", self.generate), web.put("/generate", self.generate)]

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """Serve one prompt; an adapter is named by `lora_path`."""
        worker = self._worker
        fields = await read_body(request)
        refuse(fields, REFUSED)
        sampling = fields.object("sampling_params")
        refuse(sampling, REFUSED_OF_SAMPLING)
        body = {
            "model": fields.get("lora_path"),
            "max_new_tokens": sampling.get("max_new_tokens"),
            "min_tokens": sampling.get("min_new_tokens"),
            "stream": fields.get("stream"),
            "cache_salt": fields.get("cache_salt"),
            "request_id": fields.get("rid"),
        }
        options = read_options(
            request, Fields(body), worker.identity, worker.adapters,
            answer_id=secrets.token_hex(16), default_tokens=DEFAULT_TOKENS,
            max_tokens_field="max_new_tokens",
        )  # fmt: skip
        return await generate(request, worker, options, [self._ids(fields)], SglangAnswer)

    def _ids(self, fields: Fields) -> list[int]:
        text, ids = fields.get("text"), fields.get("input_ids")
        if (text is None) == (ids is None):
            raise bad("text", "either text or input_ids is needed")
        if isinstance(text, str):
            return self._worker.text.encode(text)
        if not isinstance(ids, list) or set(map(type, ids)) != {int}:
            raise bad("text", "a simulated model takes one prompt: a text, or a list of token ids")
        return ids


class SglangAnswer(Answer):
    """The answer to one prompt; every event has the usage."""

    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        [piece] = pieces
        return self._answer(piece)

    def chunks(self, piece: Piece) -> Iterator[dict[str, Any]]:
        yield self._answer(piece)

    def _answer(self, piece: Piece) -> dict[str, Any]:
        [flight] = self._flights
        reason = {"type": piece.finish_reason, "length": len(flight.tokens)}
        return {
            "text": self._text.decode(flight.tokens),
            "output_ids": flight.tokens,
            "meta_info": {
                "id": self._options.answer_id,
                "finish_reason": reason if piece.finish_reason else None,
                "prompt_tokens": len(flight.ask.prompt),
                "completion_tokens": len(flight.tokens),
                "cached_tokens": max(flight.cached_tokens, 0),
            },
        }
