"""One HTTP exchange as a gateway shows it to the picker: events in, actions out. No I/O.

gateway ─► receive ─► WantPick ─► the pick ─► picked, refused or let_through ─► replies ─► gateway
└─► replies, and reports on the pick once it is booked
"""

from warmpath.router.endpoint_picker.actions import (
    Action,
    NoPickResponse,
    Picked,
    Reply,
    WantReport,
)
from warmpath.router.endpoint_picker.events import (
    Event,
    OrderError,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
)
from warmpath.router.endpoint_picker.protocol import HeaderNames
from warmpath.router.endpoint_picker.request_side import RequestSide, RequestState
from warmpath.router.endpoint_picker.response_side import ResponseSide, ResponseState


class Exchange:
    """One exchange. A WantPick is the last of the actions that come with it.

    Whoever drives it then picks, and calls one of `picked`, `refused` and `let_through` before the next
    event; `closed` comes last.
    """

    def __init__(self, names: HeaderNames, most_bytes: int) -> None:
        """Hold at most `most_bytes` of the request's body, and the piece with which it exceeds that."""
        self._request = RequestSide(names, most_bytes)
        self._response = ResponseSide(names)
        self._is_refused = False

    @property
    def is_over(self) -> bool:
        """Whether no further event can come."""
        has_response = self._response.state is ResponseState.ENDED
        return self._is_refused or (has_response and self._request.state is RequestState.ENDED)

    @property
    def holds(self) -> bool:
        """Whether `hold_no_more` would have an effect."""
        return self._request.holds

    @property
    def held_bytes(self) -> int:
        """Bytes of the request's body that are held."""
        return self._request.held_bytes

    @property
    def is_settled(self) -> bool:
        """Whether a reply has said where the request goes, or its response has begun."""
        begun = self._request.state in (RequestState.PASSING, RequestState.ENDED)
        return begun or self._response.state is not ResponseState.NEW

    @property
    def may_end(self) -> bool:
        """Whether the gateway can go on alone: no part of a body is held here or on its way here."""
        request, response = self._request, self._response
        if request.state is RequestState.NEW and response.state is ResponseState.NEW:
            return True
        if request.state in (RequestState.HOLDING, RequestState.PICKING):
            return False
        if request.state is RequestState.PASSING and request.modes.request.sends_back:
            return False
        return response.state is not ResponseState.PASSING or not response.modes.response.sends_back

    def receive(self, event: Event) -> list[Action]:
        """Take an event. Raises OrderError."""
        if isinstance(event, RequestHeaders | RequestBody | RequestTrailers):
            return self._receive_request(event)
        if self._request.state is RequestState.HOLDING:
            # The gateway itself has answered, with a time-out for example.
            self._request.abandon()
        if isinstance(event, ResponseHeaders):
            if event.modes is not None:
                self._response.modes = event.modes
            return self._response.headers(event)
        if isinstance(event, ResponseBody):
            return self._response.body(event)
        return self._response.trailers()

    def _receive_request(
        self, event: RequestHeaders | RequestBody | RequestTrailers
    ) -> list[Action]:
        if isinstance(event, RequestHeaders):
            if self._response.state is not ResponseState.NEW:
                raise OrderError("a request began after its response")
            actions = self._request.headers(event)
            self._response.modes = event.modes
            return actions
        if isinstance(event, RequestBody):
            return self._request.body(event)
        return self._request.trailers(event)

    def hold_no_more(self) -> list[Action]:
        """Ask for a pick with the part of the body that has come; the rest passes through."""
        return self._request.hold_no_more()

    def picked(self, picked: Picked) -> list[Reply]:
        """Go on with a pick; the first reply names the endpoint to the gateway."""
        return self._request.picked(picked)

    def booked(self, picked: Picked) -> None:
        """Report on a pick from now on, since its reply was sent."""
        self._response.booked(picked)

    def let_through(self) -> list[Reply]:
        """Go on without a pick."""
        return self._request.let_through()

    def refused(self, refusal: NoPickResponse) -> list[Reply]:
        """End the exchange with a response of the picker's own."""
        self._is_refused = not self._request.modes.is_watched
        return self._request.refused(refusal)

    def closed(self) -> list[WantReport]:
        """End the exchange: no more events come."""
        self._request.abandon()
        return [*self._response.closed()]
