"""The request of an exchange: holds its body until the pick, then passes it on unchanged.

    NEW ─headers─► HOLDING ─end, or too much─► PICKING ─picked, let through─► PASSING ─end─► ENDED

Where the gateway sends no body before the headers are answered, the pick comes with the headers (body
modes NONE and STREAMED) or with the answer to the body (BUFFERED). The pick for a WebSocket comes with
the headers in every mode, since nothing is sent before both sides have agreed.
"""

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Literal

from warmpath.router.endpoint_picker.events import (
    Action,
    Event,
    ImmediateReply,
    Modes,
    NoPick,
    Picked,
    Reply,
    Settings,
    Side,
    WantPick,
    immediate,
    is_upgrade,
)
from warmpath.router.endpoint_picker.protocol import PIECE_BYTES, BodyMode, HeaderNames, without

BUFFERED = (BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL)


class State(Enum):
    """The progress of a request or a response; only a request is held, and waits for a pick."""

    NEW = 0
    HOLDING = 1
    PICKING = 2
    PASSING = 3
    ENDED = 4


class OneSide:
    """A request or a response. Each method returns the next actions, in order.

    Its exchange checks that events come in the order that HTTP allows.
    """

    side: Side

    def __init__(self, names: HeaderNames, *, is_shadow: bool = False) -> None:
        self._names = names
        self._is_shadow = is_shadow
        self.modes = Modes()
        self.state = State.NEW

    @property
    def is_only_shown(self) -> bool:
        """Whether the gateway chooses the endpoint itself."""
        return self._is_shadow or self.modes.is_watched

    @property
    def mode(self) -> BodyMode:
        """How the gateway sends this side's body."""
        return self.modes.request if self.side == "request" else self.modes.response

    def pieces(self, data: bytes, *, ends: bool) -> Iterator[Reply]:
        """Yield a body that is sent back, in pieces that gateways take; an empty one is a piece, too."""
        for at in range(0, len(data) or 1, PIECE_BYTES):
            piece = data[at : at + PIECE_BYTES]
            is_last = at + PIECE_BYTES >= len(data)
            yield Reply(self.side, "body", data=piece, ends=ends and is_last, is_sent_back=True)


class RequestSide(OneSide):
    """One request. Each method returns the next actions, in order."""

    side: Literal["request"] = "request"

    def __init__(self, names: HeaderNames, most_bytes: int, *, is_shadow: bool = False) -> None:
        """Hold at most `most_bytes` of a body, and the piece with which it exceeds that."""
        super().__init__(names, is_shadow=is_shadow)
        self._most_bytes = most_bytes
        self._head = Event("request", "headers")
        self._subset: frozenset[str] | None = None
        self._held: list[bytes] = []
        self._has_body = False
        self._body_ended = False
        """Whether the last piece of the body has come, and no trailers follow it."""
        self._has_trailers = False
        self._has_replied = False
        """Whether the headers were answered before the pick."""
        self.held_bytes = 0

    @property
    def holds(self) -> bool:
        """Whether the router holds a body whose rest it may still let pass unread."""
        can_pass = self.mode is BodyMode.FULL_DUPLEX_STREAMED or self.modes.is_watched
        return self.state is State.HOLDING and can_pass

    def headers(self, event: Event) -> list[Action]:
        self._head, self._subset, self.modes = event, event.subset, event.modes or Modes()
        if event.ends or self.mode is BodyMode.NONE or is_upgrade(event.headers):
            return self._want()
        if self.mode is BodyMode.FULL_DUPLEX_STREAMED or self.modes.is_watched:
            self.state = State.HOLDING
            return []
        if self.mode in BUFFERED:
            # The gateway sends the body only after this reply, and then still accepts new headers.
            self.state, self._has_replied = State.HOLDING, True
            return [Reply("request", "headers", remove=self._names.in_request)]
        return self._want()

    def body(self, event: Event) -> list[Action]:
        self._has_body, self._body_ended = True, event.ends
        if self.state is State.PASSING:
            self.state = State.ENDED if event.ends else State.PASSING
            if self.modes.is_watched:
                return []
            if self.mode.sends_back:
                return [*self.pieces(event.data, ends=event.ends)]
            return [Reply("request", "body")]
        self._subset = self._subset if event.subset is None else event.subset
        self._held.append(event.data)
        self.held_bytes += len(event.data)
        is_whole = event.ends or (self.mode in BUFFERED and not self.modes.is_watched)
        return self._want() if is_whole or self.held_bytes > self._most_bytes else []

    def trailers(self, event: Event) -> list[Action]:
        self._has_trailers = True
        if self.state is State.PASSING:
            self.state = State.ENDED
            return [] if self.modes.is_watched else [Reply("request", "trailers")]
        self._subset = self._subset if event.subset is None else event.subset
        return self._want()

    def hold_no_more(self) -> list[Action]:
        """Return the wish for a pick by the part of the body that is held; nothing if none is."""
        return self._want() if self.holds else []

    def picked(self, picked: Picked) -> list[Reply]:
        """Send the request on to the picked endpoint, or to the gateway's own choice."""
        if self._is_shadow:
            return self.let_through()
        return self._go_on(picked.put(self._names.ours), ",".join(picked.endpoints), picked.body)

    def let_through(self) -> list[Reply]:
        """Send the request on without a pick."""
        return self._go_on((), "", None)

    def refused(self, refusal: NoPick) -> Sequence[Reply | ImmediateReply]:
        """Send a response in place of an engine's, unless the gateway chooses itself."""
        if self._is_shadow:
            return self.let_through()
        self.abandon()
        return [] if self.modes.is_watched else [immediate(refusal, self._names.ours)]

    def abandon(self) -> None:
        """Expect no more of the request, and drop the part of its body that is held."""
        self.state = State.ENDED
        self._drop()

    def _drop(self) -> None:
        self._held, self.held_bytes = [], 0

    def _want(self) -> list[Action]:
        self.state = State.PICKING
        body = b"".join(self._held)
        self._held = [body]
        # The first value of a header counts. A header without a name is one that is not configured.
        values = dict(reversed(self._head.headers)) | {"": ""}
        return [WantPick(body, self._subset, values, self.is_only_shown)]

    def _go_on(self, put: Settings, endpoints: str, body: bytes | None) -> list[Reply]:
        assert self.state is State.PICKING
        has_ended = self._head.ends or self._body_ended or self._has_trailers
        self.state = State.ENDED if has_ended else State.PASSING
        held = b"".join(self._held) if body is None else body
        self._drop()
        if self.modes.is_watched:
            return []
        replies: list[Reply] = []
        if body is not None and has_ended and not self._has_trailers:
            put += (("content-length", str(len(body))),)
        if self._has_replied and self._has_body:
            replies.append(Reply("request", "body", put, endpoints=endpoints, data=body))
        elif self._has_replied:
            # No body came, only trailers, and the headers were answered already.
            return [Reply("request", "trailers", endpoints=endpoints)]
        else:
            # A gateway that is to keep the body of a WebSocket is told how to show the response's.
            keeps = self.mode in BUFFERED and is_upgrade(self._head.headers)
            shows_body = self.modes.response if keeps else None
            removed = without(self._names.in_request, put)
            replies.append(
                Reply("request", "headers", put, removed, endpoints, shows_body=shows_body)
            )
            if self._has_body:
                replies += self.pieces(held, ends=self._body_ended)
        if self._has_trailers:
            replies.append(Reply("request", "trailers"))
        return replies
