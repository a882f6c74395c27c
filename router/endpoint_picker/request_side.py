"""The request of an exchange: holds its body until the pick, then passes it on unchanged.

    NEW ─headers─► HOLDING ─end, or too much─► PICKING ─picked, let through─► PASSING ─end─► ENDED

Where the gateway sends no body before the headers are answered, the pick comes with the headers (body
modes NONE and STREAMED) or with the answer to the body (BUFFERED). The pick for a WebSocket comes with
the headers in every mode, since nothing is sent before both sides have agreed.
"""

from collections.abc import Iterator
from enum import Enum

from warmpath.router.endpoint_picker.actions import (
    Action,
    BodyReply,
    HeadersReply,
    NoPickResponse,
    Picked,
    Reply,
    Settings,
    Side,
    TrailersReply,
    WantPick,
)
from warmpath.router.endpoint_picker.events import (
    Modes,
    OrderError,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    is_upgrade,
)
from warmpath.router.endpoint_picker.outcomes import immediate
from warmpath.router.endpoint_picker.protocol import (
    DESTINATION,
    PIECE_BYTES,
    RANK,
    BodyMode,
    HeaderNames,
)

BUFFERED = (BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL)


class RequestState(Enum):
    """The progress of the request."""

    NEW = 0
    HOLDING = 1
    PICKING = 2
    PASSING = 3
    ENDED = 4


class RequestSide:
    """One request. Each method returns the next actions, in order; events raise OrderError."""

    def __init__(self, names: HeaderNames, most_bytes: int) -> None:
        """Hold at most `most_bytes` of a body, and the piece with which it exceeds that."""
        self._names = names
        self._most_bytes = most_bytes
        self._headers: RequestHeaders = RequestHeaders(())
        self._subset: frozenset[str] | None = None
        self._held: list[bytes] = []
        self._has_body = False
        self._body_ended = False
        """Whether the last piece of the body has come, and no trailers follow it."""
        self._has_trailers = False
        self._has_replied = False
        """Whether the headers were answered before the pick."""
        self.held_bytes = 0
        self.state = RequestState.NEW

    @property
    def modes(self) -> Modes:
        """How the gateway sends bodies."""
        return self._headers.modes

    @property
    def holds(self) -> bool:
        """Whether the router holds a body of which it may still let the rest pass unread."""
        modes = self.modes
        can_pass = modes.request is BodyMode.FULL_DUPLEX_STREAMED or modes.is_watched
        return self.state is RequestState.HOLDING and can_pass

    def headers(self, event: RequestHeaders) -> list[Action]:
        """Take the request's headers."""
        if self.state is not RequestState.NEW:
            raise OrderError("headers of a request came twice")
        self._headers, self._subset = event, event.subset
        mode, is_watched = event.modes.request, event.modes.is_watched
        if event.ends or mode is BodyMode.NONE or is_upgrade(event.headers):
            return self._want()
        if mode is BodyMode.FULL_DUPLEX_STREAMED or is_watched:
            self.state = RequestState.HOLDING
            return []
        if mode in BUFFERED:
            # The gateway sends the body only after this reply, and then still accepts new headers.
            self.state, self._has_replied = RequestState.HOLDING, True
            return [HeadersReply("request", remove=self._names.in_request)]
        return self._want()

    def body(self, event: RequestBody) -> list[Action]:
        """Take a piece of the body."""
        if event.ends and self.state is RequestState.ENDED:
            # Envoy may say twice that a body ends (its issue 46237), or once more after the headers.
            return repeated("request", self.modes, self.modes.request)
        self._check_open()
        self._has_body, self._body_ended = True, event.ends
        if self.state is RequestState.PASSING:
            self.state = RequestState.ENDED if event.ends else RequestState.PASSING
            return [*self._passed(event.data)]
        self._subset = self._subset if event.subset is None else event.subset
        self._held.append(event.data)
        self.held_bytes += len(event.data)
        if event.ends or (self.modes.request in BUFFERED and not self.modes.is_watched):
            return self._want()
        if self.held_bytes > self._most_bytes:
            return self._want()
        return []

    def trailers(self, event: RequestTrailers) -> list[Action]:
        """Take the request's trailers."""
        self._check_open()
        self._has_trailers = True
        if self.state is RequestState.PASSING:
            self.state = RequestState.ENDED
            return [] if self.modes.is_watched else [TrailersReply("request")]
        self._subset = self._subset if event.subset is None else event.subset
        return self._want()

    def hold_no_more(self) -> list[Action]:
        """Ask for a pick with the part of the body that has come."""
        return self._want() if self.holds else []

    def picked(self, picked: Picked) -> list[Reply]:
        """Send the request on to the picked endpoint."""
        endpoints = ",".join(picked.endpoints)
        put: Settings = ((DESTINATION, endpoints),)
        if picked.engine_rank is not None:
            put += ((RANK, str(picked.engine_rank)),)
        if picked.prefill:
            put += ((self._names.ours.prefill, picked.prefill),)
        return self._go_on(put, endpoints, picked.body)

    def let_through(self) -> list[Reply]:
        """Send the request on without a pick."""
        return self._go_on((), "", None)

    def refused(self, refusal: NoPickResponse) -> list[Reply]:
        """Send a response in place of an engine's."""
        self.abandon()
        return [] if self.modes.is_watched else [immediate(refusal, self._names.ours.reason)]

    def abandon(self) -> None:
        """Expect no more of the request, and drop what is held."""
        self.state = RequestState.ENDED
        self._drop()

    def _drop(self) -> None:
        self._held, self.held_bytes = [], 0

    def _check_open(self) -> None:
        if self.state not in (RequestState.HOLDING, RequestState.PASSING):
            raise OrderError("a request goes on before its headers, or after its end")

    def _want(self) -> list[Action]:
        self.state = RequestState.PICKING
        body = b"".join(self._held)
        self._held = [body]
        # The first value of a header counts. A header without a name is one that is not configured.
        values, ours = dict(reversed(self._headers.headers)), self._names.ours
        values[""] = ""
        return [
            WantPick(
                path=values.get(":path", ""),
                body=body,
                content_type=values.get("content-type", ""),
                content_encoding=values.get("content-encoding", ""),
                model=next(filter(None, map(values.get, ours.rewrite)), ""),
                session=values.get(ours.session, ""),
                priority=values.get(ours.priority, ""),
                tenant=values.get(ours.tenant, ""),
                subset=self._subset,
                headers=values,
                is_shadow=self.modes.is_watched,
            )
        ]

    def _go_on(self, put: Settings, endpoints: str, body: bytes | None) -> list[Reply]:
        assert self.state is RequestState.PICKING
        has_ended = self._headers.ends or self._body_ended or self._has_trailers
        self.state = RequestState.ENDED if has_ended else RequestState.PASSING
        held = b"".join(self._held) if body is None else body
        self._drop()
        if self.modes.is_watched:
            return []
        replies: list[Reply] = []
        if body is not None and has_ended and not self._has_trailers:
            put += (("content-length", str(len(body))),)
        if self._has_replied and self._has_body:
            replies.append(BodyReply("request", body, put=put, endpoints=endpoints))
        elif self._has_replied:
            # No body came, only trailers, and the headers were answered already.
            return [TrailersReply("request", endpoints)]
        else:
            removed = self._names.of_request(put)
            shows_body = self._shows_body()
            replies.append(HeadersReply("request", put, removed, endpoints, shows_body))
            if self._has_body:
                replies += pieces("request", held, ends=self._body_ended)
        if self._has_trailers:
            replies.append(TrailersReply("request"))
        return replies

    def _shows_body(self) -> BodyMode | None:
        """Return how the gateway is to show the response's body, if it is to keep the request's own."""
        waits = self.modes.request in BUFFERED and is_upgrade(self._headers.headers)
        return self.modes.response if waits else None

    def _passed(self, data: bytes) -> Iterator[Reply]:
        if self.modes.is_watched:
            return
        if self.modes.request.sends_back:
            yield from pieces("request", data, ends=self._body_ended)
        else:
            yield BodyReply("request")


def repeated(side: Side, modes: Modes, mode: BodyMode) -> list[Action]:
    """Return the answer to the end of a body that has ended already."""
    return [] if modes.is_watched or mode.sends_back else [BodyReply(side)]


def pieces(side: Side, data: bytes, *, ends: bool) -> Iterator[BodyReply]:
    """Yield a body that is sent back, in pieces that gateways take; an empty one is a piece, too."""
    for at in range(0, len(data) or 1, PIECE_BYTES):
        is_last = at + PIECE_BYTES >= len(data)
        piece = data[at : at + PIECE_BYTES]
        yield BodyReply(side, piece, ends=ends and is_last, is_sent_back=True)
