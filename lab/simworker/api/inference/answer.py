"""The contract of an API's answer with the handler that sends it, whole or as server-sent events."""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Protocol

import msgspec

from warmpath.lab.simworker.api.inference.token_stream import Piece

Event = dict[str, Any]

DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode


class Answer(Protocol):
    """One answer, made of its request's flights as their tokens come."""

    last: ClassVar[bytes]
    """The bytes that end a stream, after its last event."""

    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """Return the answer that is not streamed; a piece holds all tokens of a choice."""

    def opening(self) -> Iterable[Event]:
        """Return the events that are sent at once, before the first token."""

    def chunks(self, piece: Piece) -> Iterable[Event]:
        """Return the events for new tokens."""

    def closing(self) -> Iterable[Event]:
        """Return the events after the last token."""


def encoded(events: Iterable[Event]) -> bytes:
    """Return server-sent events; an event with a type is named by it."""
    return b"".join(
        b"%bdata: %b\n\n" % (b"event: %b\n" % kind.encode() if kind else b"", _encode(event))
        for event in events
        for kind in (event.get("type"),)
    )
