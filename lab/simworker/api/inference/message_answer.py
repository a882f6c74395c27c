"""The answer to an Anthropic message: whole, in events, and the usage.

Source: `vllm/entrypoints/anthropic/serving.py` of 0.32. Where vLLM tells prompt tokens that it puts into
its cache from others (`cache_creation_input_tokens`), both are `input_tokens` here.
"""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from warmpath.lab.simworker.api.inference.answer import Answer
from warmpath.lab.simworker.api.inference.request_options import RequestOptions
from warmpath.lab.simworker.api.inference.token_stream import Piece
from warmpath.lab.simworker.server.flight import Flight
from warmpath.lab.simworker.server.text import TextCodec

STOP_REASONS = {"length": "max_tokens"}


class MessageAnswer(Answer):
    """An answer of one text."""

    last: ClassVar = b""

    def __init__(
        self, options: RequestOptions, flights: Sequence[Flight], text: TextCodec, created: int
    ) -> None:
        super().__init__(options, flights, text, created)
        [self._flight] = flights
        self._head: dict[str, Any] = {
            "id": f"chatcmpl-{options.answer_id}", "type": "message", "role": "assistant",
            "content": [], "model": options.model, "stop_reason": None, "stop_sequence": None,
        }  # fmt: skip
        self._has_begun = False
        self._stop_reason = ""

    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        [piece] = pieces
        content = [{"type": "text", "text": self._text.decode(piece.tokens)}]
        return self._head | {
            "content": content, "stop_reason": _stop_reason(piece), "usage": self._usage()
        }  # fmt: skip

    def chunks(self, piece: Piece) -> Iterator[dict[str, Any]]:
        """Yield the events for new tokens; the first ones begin the message and its text."""
        if not self._has_begun:
            self._has_begun = True
            usage = {"input_tokens": len(self._flight.ask.prompt), "output_tokens": 0}
            yield {"type": "message_start", "message": self._head | {"usage": usage}}
            block = {"type": "text", "text": ""}
            yield {"type": "content_block_start", "content_block": block, "index": 0}
        delta = {"type": "text_delta", "text": self._text.decode(piece.tokens)}
        yield {"type": "content_block_delta", "delta": delta, "index": 0}
        self._stop_reason = _stop_reason(piece)

    def closing(self) -> Sequence[dict[str, Any]]:
        """Return the events that end the text and the message, with the usage."""
        stop = {"stop_reason": self._stop_reason, "stop_sequence": None}
        return (
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": stop, "usage": self._usage()},
            {"type": "message_stop"},
        )

    def _usage(self) -> dict[str, int]:
        flight = self._flight
        cached = max(flight.cached_tokens, 0)
        return {
            "input_tokens": len(flight.ask.prompt) - cached,
            "output_tokens": len(flight.tokens),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
        }


def _stop_reason(piece: Piece) -> str:
    return STOP_REASONS.get(piece.finish_reason or "", "end_turn")
