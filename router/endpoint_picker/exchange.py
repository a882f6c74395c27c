"""One HTTP exchange as a gateway shows it to the picker: events in, actions out. No I/O.

gateway ─► receive ─► WantPick ─► the pick ─► picked, refused or let_through ─► replies ─► gateway
└─► replies, and reports on the pick once it is booked
"""

from warmpath.router.endpoint_picker.events import (
    Action,
    Event,
    ImmediateReply,
    OrderError,
    Reply,
)
from warmpath.router.endpoint_picker.outcomes import NoPick
from warmpath.router.endpoint_picker.protocol import HeaderNames
from warmpath.router.endpoint_picker.request_side import RequestSide, State
from warmpath.router.endpoint_picker.response_side import ResponseSide
from warmpath.router.pick.report import Report


class Exchange:
    """One exchange. A WantPick is the last of the actions that come with it.

    Whoever drives it then picks, and calls `request.picked`, `request.let_through` or `refused` before
    the next event, and `response.booked` once the reply with the pick was sent; `closed` comes last.
    """

    def __init__(self, names: HeaderNames, most_bytes: int) -> None:
        """Hold at most `most_bytes` of the request's body, and the piece with which it exceeds that."""
        self.request = RequestSide(names, most_bytes)
        self.response = ResponseSide(names)
        self._is_refused = False

    @property
    def is_over(self) -> bool:
        """Whether no further event can come."""
        has_response = self.response.state is State.ENDED
        return self._is_refused or (has_response and self.request.state is State.ENDED)

    @property
    def is_settled(self) -> bool:
        """Whether a reply has said where the request goes, or its response has begun."""
        begun = self.request.state in (State.PASSING, State.ENDED)
        return begun or self.response.state is not State.NEW

    @property
    def may_end(self) -> bool:
        """Whether the gateway can go on alone: no part of a body is held here or on its way here."""
        request, response = self.request, self.response
        if request.state is State.NEW and response.state is State.NEW:
            return True
        if request.state in (State.HOLDING, State.PICKING):
            return False
        if request.state is State.PASSING and request.mode.sends_back:
            return False
        return response.state is not State.PASSING or not response.mode.sends_back

    def receive(self, event: Event) -> list[Action]:
        """Take an event. Raises OrderError."""
        request, response, name = self.request, self.response, event.side
        side = request if name == "request" else response
        if event.part == "headers" and side.state is not State.NEW:
            raise OrderError(f"headers of a {name} came twice")
        if event.part == "headers" and response.state is not State.NEW:
            raise OrderError("a request began after its response")
        if side is response and request.state is State.HOLDING:
            # The gateway itself has answered, with a time-out for example.
            request.abandon()
        if event.part == "headers":
            response.modes = event.modes or response.modes
            return side.headers(event)
        if event.part == "body" and event.ends and side.state is State.ENDED:
            # Envoy may say twice that a body ends (its issue 46237), or once more after the headers.
            is_expected = not side.modes.is_watched and not side.mode.sends_back
            return [Reply(name, "body")] if is_expected else []
        if side.state not in (State.HOLDING, State.PASSING):
            raise OrderError(f"a {name} goes on before its headers, or after its end")
        return side.body(event) if event.part == "body" else side.trailers(event)

    def refused(self, refusal: NoPick) -> list[ImmediateReply]:
        """End the exchange with a response of the picker's own."""
        self._is_refused = not self.request.modes.is_watched
        return self.request.refused(refusal)

    def closed(self) -> list[Report]:
        """End the exchange: no more events come."""
        self.request.abandon()
        return [*self.response.closed()]
