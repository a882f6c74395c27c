"""One HTTP exchange as a gateway shows it to the picker: events in, actions out. No I/O.

gateway ─► receive ─► WantPick ─► the pick ─► picked, refused or let_through ─► replies ─► gateway
└─► replies, and reports on the pick once it is booked
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from warmpath.proto.report_event import ReportEvent
from warmpath.router.endpoint_picker.events import (
    Action,
    Endpoint,
    Event,
    ImmediateReply,
    NoPick,
    OrderError,
    Picked,
    Reply,
    Settings,
    value_of,
)
from warmpath.router.endpoint_picker.protocol import TIMED_OUT, BodyMode, HeaderNames, without
from warmpath.router.endpoint_picker.request_side import OneSide, RequestSide, State
from warmpath.router.inference_api.model_name import NameInResponse
from warmpath.router.inference_api.response import LEAST_ERROR, UsageReader
from warmpath.router.pick.report import Report

RENAMED_KINDS = ("application/json", "text/event-stream")


class ResponseSide(OneSide):
    """One response. A booking, if the request was picked for, ends once, with FINISHED or FAILED.

    Reports come before replies, since a gateway may be gone while it is replied to.
    """

    side: Literal["response"] = "response"

    def __init__(self, names: HeaderNames, *, is_shadow: bool = False) -> None:
        super().__init__(names, is_shadow=is_shadow)
        self._picked: Picked | None = None
        self._is_booked = False
        self._has_first_token = False
        self._usage: UsageReader | None = None
        self._name: NameInResponse | None = None

    def booked(self, picked: Picked) -> None:
        """Report on this pick from now on, by the response's events."""
        self._picked, self._is_booked = picked, True

    def headers(self, event: Event) -> list[Action]:
        self.state = State.PASSING
        reports: list[Action] = []
        where: Endpoint | None = None
        if self._picked is not None:
            if not event.own_reason:
                where = self._where(self._picked, event.served)
            reports += self._began(self._picked, where, event)
        if self._is_booked:
            self._usage = UsageReader(
                value_of(event.headers, "content-type"), value_of(event.headers, "content-encoding")
            )
        put: Settings = ()
        if where is not None and not self.is_only_shown:
            put = where.told(self._names.ours, is_error=_is_error(event))
        if event.own_reason and self._names.ours.reason:
            put += ((self._names.ours.reason, event.own_reason),)
        removed = without(self._names.in_response, put)
        if self._picked is not None and self._picked.renaming and self._can_rename(event):
            self._name = NameInResponse(self._picked.renaming)
            removed += ("content-length",)
        if event.ends:
            reports += self._ended()
        if self.modes.is_watched:
            return reports
        return [*reports, Reply("response", "headers", put, removed)]

    def _can_rename(self, event: Event) -> bool:
        """Whether the response can have another name of the model than the engine told."""
        if event.ends or self.is_only_shown or self.mode is BodyMode.NONE:
            return False
        encoding = value_of(event.headers, "content-encoding").strip().lower()
        kind = value_of(event.headers, "content-type").partition(";")[0].strip().lower()
        return encoding in ("", "identity") and kind in RENAMED_KINDS

    def body(self, event: Event) -> list[Action]:
        reports: list[Action] = []
        if self._is_booked and self._usage is not None:
            self._usage.feed(event.data)
            if self._usage.first_token_seen and not self._has_first_token:
                self._has_first_token = True
                reports.append(self._report("first_token"))
        if event.ends:
            reports += self._ended()
        if self.modes.is_watched:
            return reports
        data = event.data
        if self._name is not None:
            # Elsewhere trailers may follow, with which nothing that is held can be sent on.
            may_hold = self.mode.sends_back and not event.ends
            data = self._name.feed(data, may_hold=may_hold)
        if self.mode.sends_back:
            return [*reports, *self.pieces(data, ends=event.ends)]
        changed = data if data != event.data else None
        return [*reports, Reply("response", "body", data=changed)]

    def trailers(self, event: Event) -> list[Action]:
        del event
        replies: list[Action] = [] if self.modes.is_watched else [Reply("response", "trailers")]
        if self._name is not None and (left := self._name.feed(b"", may_hold=False)):
            replies = [*self.pieces(left, ends=False), *replies]
        return [*self._ended(), *replies]

    def closed(self) -> Iterator[Report]:
        """Yield the last report on a booking: no more events come."""
        # A gateway that sends no bodies closes the stream at the exchange's end, however it ended.
        is_unseen = self.mode is BodyMode.NONE
        if self.state is State.PASSING and is_unseen:
            yield from self._ended()
        else:
            yield from self._end("failed")

    def _where(self, picked: Picked, served: str) -> Endpoint | None:
        """Return the endpoint that serves the request; None if it is not one of the pick's."""
        if served:
            return picked.endpoints.get(served)
        if self.is_only_shown:
            return None
        return next(iter(picked.endpoints.values()))

    def _began(self, picked: Picked, where: Endpoint | None, event: Event) -> Iterator[Report]:
        first = next(iter(picked.endpoints.values()))
        is_elsewhere = where is not first and not picked.prefill
        if where is not None and (is_elsewhere or self.is_only_shown):
            yield self._report("started", where)
        if where is None or _is_error(event):
            yield from self._end("failed", is_refusal=_is_refusal(event))

    def _ended(self) -> Iterator[Report]:
        self.state = State.ENDED
        if self._usage is not None:
            self._usage.end()
        yield from self._end("finished")

    def _end(self, event: ReportEvent, *, is_refusal: bool = False) -> Iterator[Report]:
        if self._is_booked:
            self._is_booked = False
            yield self._report(event, is_refusal=is_refusal)

    def _report(
        self, event: ReportEvent, where: Endpoint | None = None, *, is_refusal: bool = False
    ) -> Report:
        assert self._picked is not None
        pod, rank = (where.pod, where.rank) if where is not None else ("", 0)
        prompt = cached = output = None
        if event == "finished" and self._usage is not None:
            usage = self._usage.usage.possible()  # Report refuses more
            output = usage.output_tokens
            # A pod that decodes counts what it is sent as cached.
            if not self._picked.prefill:
                prompt, cached = usage.prompt_tokens, usage.cached_tokens
        name = self._picked.booking_id
        return Report(name, event, pod, rank, cached, prompt, output, is_refusal=is_refusal)


def _is_error(event: Event) -> bool:
    status = value_of(event.headers, ":status")
    return status.isdecimal() and int(status) >= LEAST_ERROR


def _is_refusal(event: Event) -> bool:
    """Return whether an endpoint has answered, not only a gateway that waited for one in vain."""
    return not event.own_reason and value_of(event.headers, ":status") not in TIMED_OUT


class Exchange:
    """One exchange. A WantPick is the last of the actions that come with it.

    Whoever drives it then picks, and calls `request.picked`, `request.let_through` or `refused` before
    the next event, and `response.booked` once the reply with the pick was sent; `closed` comes last.
    """

    def __init__(self, names: HeaderNames, most_bytes: int, *, is_shadow: bool = False) -> None:
        """Hold at most `most_bytes` of the request's body, and the piece with which it exceeds that.

        With `is_shadow` the gateway chooses the endpoint, though it waits for replies.
        """
        if is_shadow:
            # Headers that another picker has set stay.
            names = replace(names, in_request=(), in_response=())
        self.request = RequestSide(names, most_bytes, is_shadow=is_shadow)
        self.response = ResponseSide(names, is_shadow=is_shadow)
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

    def refused(self, refusal: NoPick) -> Sequence[Reply | ImmediateReply]:
        """End the exchange with a response of the picker's own, unless the gateway chooses itself."""
        self._is_refused = not self.request.is_only_shown
        return self.request.refused(refusal)

    def closed(self) -> list[Report]:
        """End the exchange: no more events come."""
        self.request.abandon()
        return [*self.response.closed()]
