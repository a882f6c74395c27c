"""What the request and the response of an exchange have in common: how far they have come."""

from collections.abc import Iterator
from enum import Enum

from warmpath.router.endpoint_picker.events import Action, Event, Modes, OrderError, Reply, Side
from warmpath.router.endpoint_picker.protocol import PIECE_BYTES, BodyMode, HeaderNames


class State(Enum):
    """The progress of a request or a response; only a request is held, and waits for a pick."""

    NEW = 0
    HOLDING = 1
    PICKING = 2
    PASSING = 3
    ENDED = 4


class OneSide:
    """A request or a response. Each method returns the next actions, in order."""

    side: Side

    def __init__(self, names: HeaderNames) -> None:
        self._names = names
        self.modes = Modes()
        self.state = State.NEW

    @property
    def mode(self) -> BodyMode:
        """How the gateway sends this side's body."""
        return self.modes.request if self.side == "request" else self.modes.response

    def receive(self, event: Event) -> list[Action]:
        """Take an event. Raises OrderError."""
        if event.part == "headers":
            if self.state is not State.NEW:
                raise OrderError(f"headers of a {self.side} came twice")
            return self._headers(event)
        if event.part == "body" and event.ends and self.state is State.ENDED:
            # Envoy may say twice that a body ends (its issue 46237), or once more after the headers.
            is_expected = not self.modes.is_watched and not self.mode.sends_back
            return [Reply(self.side, "body")] if is_expected else []
        if self.state not in (State.HOLDING, State.PASSING):
            raise OrderError(f"a {self.side} goes on before its headers, or after its end")
        return self._body(event) if event.part == "body" else self._trailers(event)

    def _headers(self, event: Event) -> list[Action]:
        raise NotImplementedError

    def _body(self, event: Event) -> list[Action]:
        raise NotImplementedError

    def _trailers(self, event: Event) -> list[Action]:
        raise NotImplementedError

    def _pieces(self, data: bytes, *, ends: bool) -> Iterator[Reply]:
        """Yield a body that is sent back, in pieces that gateways take; an empty one is a piece, too."""
        for at in range(0, len(data) or 1, PIECE_BYTES):
            piece = data[at : at + PIECE_BYTES]
            is_last = at + PIECE_BYTES >= len(data)
            yield Reply(self.side, "body", data=piece, ends=ends and is_last, is_sent_back=True)
