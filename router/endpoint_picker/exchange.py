"""One HTTP exchange as a gateway shows it to the picker: events in, actions out. No I/O.

gateway ─► receive ─► WantPick ─► the pick ─► picked, refused or let_through ─► replies ─► gateway
└─► replies, and reports on the pick once it is booked
"""

from warmpath.router.endpoint_picker.actions import (
    Action,
    NoPickResponse,
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
        has_response = self.response.state is ResponseState.ENDED
        return self._is_refused or (has_response and self.request.state is RequestState.ENDED)

    @property
    def is_settled(self) -> bool:
        """Whether a reply has said where the request goes, or its response has begun."""
        begun = self.request.state in (RequestState.PASSING, RequestState.ENDED)
        return begun or self.response.state is not ResponseState.NEW

    @property
    def may_end(self) -> bool:
        """Whether the gateway can go on alone: no part of a body is held here or on its way here."""
        request, response = self.request, self.response
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
        if self.request.state is RequestState.HOLDING:
            # The gateway itself has answered, with a time-out for example.
            self.request.abandon()
        if isinstance(event, ResponseHeaders):
            if event.modes is not None:
                self.response.modes = event.modes
            return self.response.headers(event)
        if isinstance(event, ResponseBody):
            return self.response.body(event)
        return self.response.trailers()

    def _receive_request(
        self, event: RequestHeaders | RequestBody | RequestTrailers
    ) -> list[Action]:
        if isinstance(event, RequestHeaders):
            if self.response.state is not ResponseState.NEW:
                raise OrderError("a request began after its response")
            actions = self.request.headers(event)
            self.response.modes = event.modes
            return actions
        if isinstance(event, RequestBody):
            return self.request.body(event)
        return self.request.trailers(event)

    def refused(self, refusal: NoPickResponse) -> list[Reply]:
        """End the exchange with a response of the picker's own."""
        self._is_refused = not self.request.modes.is_watched
        return self.request.refused(refusal)

    def closed(self) -> list[WantReport]:
        """End the exchange: no more events come."""
        self.request.abandon()
        return [*self.response.closed()]
