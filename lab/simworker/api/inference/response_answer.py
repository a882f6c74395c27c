"""The answer to a request of OpenAI's responses API: whole or as streamed events, with its usage.

Source: `vllm/entrypoints/openai/responses/serving.py` of 0.32, and recordings of its answers.
"""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from warmpath.lab.simworker.api.inference.answer import Answer
from warmpath.lab.simworker.api.inference.request_options import RequestOptions
from warmpath.lab.simworker.api.inference.token_stream import Piece
from warmpath.lab.simworker.server.flight import Flight
from warmpath.lab.simworker.server.text import TextCodec


class ResponseAnswer(Answer):
    """A response of one message with one text."""

    last: ClassVar = b""

    def __init__(
        self, options: RequestOptions, flights: Sequence[Flight], text: TextCodec, created: int
    ) -> None:
        super().__init__(options, flights, text, created)
        [self._flight] = flights
        self._item = {"id": f"msg_{options.answer_id}", "role": "assistant", "type": "message"}
        self._place = {"item_id": self._item["id"], "output_index": 0, "content_index": 0}
        self._response = {
            "id": f"resp_{options.answer_id}",
            "object": "response",
            "created_at": created,
            "model": options.model,
            "max_output_tokens": options.max_tokens,
        }
        self._sent = 0
        self._has_begun = False
        self._is_cut = False

    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        [piece] = pieces
        self._is_cut = piece.finish_reason == "length"
        return self._finished()

    def opening(self) -> Iterator[dict[str, Any]]:
        """Yield the events that vLLM sends at once."""
        begun = self._response | {"status": "in_progress", "output": [], "usage": None}
        yield self._event("response.created", response=begun)
        yield self._event("response.in_progress", response=begun)

    def chunks(self, piece: Piece) -> Iterator[dict[str, Any]]:
        """Yield the events for new tokens; the first ones begin the message and its text."""
        if not self._has_begun:
            self._has_begun = True
            item = self._item | {"status": "in_progress", "content": []}
            yield self._event("response.output_item.added", output_index=0, item=item)
            yield self._event("response.content_part.added", **self._place, part=_part(""))
        delta = self._text.decode(piece.tokens)
        yield self._event("response.output_text.delta", **self._place, delta=delta, logprobs=[])
        self._is_cut = piece.finish_reason == "length"

    def closing(self) -> Iterator[dict[str, Any]]:
        """Yield the events that end the text, the message and the response, with the usage."""
        response = self._finished()
        [item] = response["output"]
        [part] = item["content"]
        text = part["text"]
        yield self._event("response.output_text.done", **self._place, text=text, logprobs=[])
        yield self._event("response.content_part.done", **self._place, part=part)
        yield self._event("response.output_item.done", output_index=0, item=item)
        yield self._event("response.completed", response=response)

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        self._sent += 1
        return {"type": kind, "sequence_number": self._sent - 1} | fields

    def _finished(self) -> dict[str, Any]:
        flight = self._flight
        part = _part(self._text.decode(flight.tokens))
        prompt, output = len(flight.ask.prompt), len(flight.tokens)
        return self._response | {
            "status": "incomplete" if self._is_cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if self._is_cut else None,
            "output": [self._item | {"status": "completed", "content": [part]}],
            "usage": {
                "input_tokens": prompt,
                "input_tokens_details": {"cached_tokens": max(flight.cached_tokens, 0)},
                "output_tokens": output,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": prompt + output,
            },
        }


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": None}
