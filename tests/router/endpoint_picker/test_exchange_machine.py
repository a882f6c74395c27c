"""Exchanges in any order of events: one outcome a request, one end a booking, bytes unchanged."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.examples import examples
from tests.router.endpoint_picker.gateway_events import (
    ONE,
    PICKED,
    REQUEST_TRAILERS,
    RESPONSE_TRAILERS,
    TWO,
    answer,
    body,
    exchange,
    piece,
    post,
    refusal,
)
from warmpath.proto.report_event import ReportEvent
from warmpath.router.endpoint_picker.events import (
    ImmediateReply,
    Modes,
    OrderError,
    Reply,
    WantPick,
)
from warmpath.router.endpoint_picker.protocol import BodyMode
from warmpath.router.pick.report import Report

MOST_BYTES = 50
PIECES = st.binary(max_size=30)
MODES = st.builds(Modes, st.sampled_from(BodyMode), st.sampled_from(BodyMode), st.booleans())
ENDS = ("finished", "failed")


class Exchanges(RuleBasedStateMachine):
    """Sends events in any order; those that HTTP does not allow must leave the exchange unchanged."""

    def __init__(self) -> None:
        super().__init__()
        self.one = exchange(MOST_BYTES)
        self.modes: Modes | None = None
        self.wants = False
        self.outcomes = 0
        self.refused = False
        self.booked = False
        self.reports: list[ReportEvent] = []
        self.told: dict[str, list[bytes]] = {"request": [], "response": []}
        """The pieces of each body that were told."""
        self.sent: dict[str, list[Reply]] = {"request": [], "response": []}
        self.replies: list[Any] = []
        self.parts: dict[str, int] = {"request": 0, "response": 0}
        """Events of each side that a gateway wants answered one by one."""
        self.ended: dict[str, str] = {}
        """What ended each side: headers, body or trailers."""
        self.closed = False

    def take(self, event: Any, side: str, part: str, *, ends: bool) -> None:
        try:
            actions = self.one.receive(event)
        except OrderError:
            return
        if side in self.ended and part == "body" and ends:
            self.repeat(side, actions)
            return
        assert side not in self.ended, "nothing comes after the end"
        if part == "body":
            self.told[side].append(event.data)
        if self.modes is None and part == "headers":
            self.modes = event.modes if side == "request" else (event.modes or Modes())
        self.parts[side] += 1
        if ends:
            self.ended[side] = part
        self.act(actions)

    def repeat(self, side: str, actions: list[Any]) -> None:
        """Take the end of a body again: only a gateway that waits for an answer gets one."""
        modes = self.modes or Modes()
        mode = modes.request if side == "request" else modes.response
        answers = [] if modes.is_watched or mode.sends_back else [Reply(side, "body")]  # type: ignore[arg-type]
        assert actions == answers

    def act(self, actions: list[Any]) -> None:
        for at, action in enumerate(actions):
            if isinstance(action, WantPick):
                assert at == len(actions) - 1
                assert not self.wants
                assert not self.outcomes, "a request is picked for once"
                self.wants = True
                beginning = b"".join(self.told["request"])
                assert beginning == action.body
            elif isinstance(action, Report):
                assert self.booked
                assert not set(self.reports) & set(ENDS), "nothing is reported after the end"
                self.reports.append(action.event)
            else:
                self.reply(action)

    def reply(self, reply: Any) -> None:
        assert self.modes is None or not self.modes.is_watched
        assert not self.refused
        self.replies.append(reply)
        if isinstance(reply, Reply) and reply.part == "body":
            self.sent[reply.side].append(reply)

    @property
    def is_idle(self) -> bool:
        return not self.wants and not self.closed and not self.refused

    @precondition(lambda self: self.is_idle)
    @rule(ends=st.booleans(), modes=MODES)
    def request_headers(self, ends: bool, modes: Modes) -> None:
        self.take(post(ends=ends, modes=modes), "request", "headers", ends=ends)

    @precondition(lambda self: self.is_idle)
    @rule(data=PIECES, ends=st.booleans())
    def request_body(self, data: bytes, ends: bool) -> None:
        self.take(body(data, ends=ends), "request", "body", ends=ends)

    @precondition(lambda self: self.is_idle)
    @rule()
    def request_trailers(self) -> None:
        self.take(REQUEST_TRAILERS, "request", "trailers", ends=True)

    @precondition(lambda self: self.is_idle)
    @rule(
        ends=st.booleans(), status=st.sampled_from([200, 503]),
        served=st.sampled_from(["", ONE, TWO, "10.0.0.9:80"]), is_stream=st.booleans(),
    )  # fmt: skip
    def response_headers(self, ends: bool, status: int, served: str, is_stream: bool) -> None:
        kind = "text/event-stream" if is_stream else "application/json"
        told = answer(status, kind, ends=ends, served=served)
        self.take(told, "response", "headers", ends=ends)

    @precondition(lambda self: self.is_idle)
    @rule(data=PIECES | st.just(b'data: {"choices":[{}]}\n\n'), ends=st.booleans())
    def response_body(self, data: bytes, ends: bool) -> None:
        self.take(piece(data, ends), "response", "body", ends=ends)

    @precondition(lambda self: self.is_idle)
    @rule()
    def response_trailers(self) -> None:
        self.take(RESPONSE_TRAILERS, "response", "trailers", ends=True)

    @precondition(lambda self: self.is_idle)
    @rule()
    def time_is_over(self) -> None:
        self.act(self.one.request.hold_no_more())

    @precondition(lambda self: self.wants)
    @rule(is_told=st.booleans())
    def picked(self, is_told: bool) -> None:
        """Pick; the gateway may be gone before it gets the reply, and the stream then ends."""
        self.wants, self.outcomes = False, self.outcomes + 1
        replies = self.one.request.picked(PICKED)
        if not is_told:
            self.close()
            return
        self.one.response.booked(PICKED)
        self.booked = True
        self.act(list(replies))

    @precondition(lambda self: self.wants)
    @rule()
    def let_through(self) -> None:
        self.wants, self.outcomes = False, self.outcomes + 1
        self.act(list(self.one.request.let_through()))

    @precondition(lambda self: self.wants)
    @rule()
    def refuse(self) -> None:
        self.wants, self.outcomes = False, self.outcomes + 1
        self.act(list(self.one.refused(refusal(503, "NO_POD", "no pod"))))
        assert self.modes is not None
        self.refused = not self.modes.is_watched
        if self.refused:
            assert isinstance(self.replies[-1], ImmediateReply)

    @rule()
    def close(self) -> None:
        self.act(list(self.one.closed()))
        assert self.one.closed() == []
        self.closed = True
        self.wants = False
        assert sum(end in ENDS for end in self.reports) == self.booked

    @invariant()
    def what_is_held_is_bounded(self) -> None:
        assert self.one.request.held_bytes <= MOST_BYTES + 30
        if self.outcomes or self.closed:
            assert self.one.request.held_bytes == 0

    @invariant()
    def reports_are_in_order(self) -> None:
        assert len(set(self.reports)) == len(self.reports)
        order = ["started", "first_token"]
        begun = [one for one in self.reports if one in order]
        assert begun == [one for one in order if one in begun]

    @invariant()
    def bytes_pass_unchanged(self) -> None:
        if self.modes is None or self.modes.is_watched or self.refused or self.wants:
            return
        for side, mode in (("request", self.modes.request), ("response", self.modes.response)):
            sent = self.sent[side]
            if not mode.sends_back:
                assert all(one.data is None for one in sent)
                continue
            assert all(one.is_sent_back for one in sent)
            whole = b"".join(one.data or b"" for one in sent)
            told = b"".join(self.told[side])
            passes = side == "response" or (self.outcomes and not self.closed)
            assert whole == told if passes else told.startswith(whole)
            if passes:
                ends = [one.ends for one in sent]
                is_last = self.ended.get(side) == "body"
                assert ends == [False] * (len(ends) - is_last) + [True] * is_last

    @invariant()
    def answers_are_in_order_and_one_for_each_message(self) -> None:
        if self.modes is None or self.modes.is_watched or self.closed:
            return
        for side, mode in (("request", self.modes.request), ("response", self.modes.response)):
            kinds = [
                ("headers", "body", "trailers").index(one.part)
                for one in self.replies
                if not isinstance(one, ImmediateReply) and one.side == side
            ]
            assert kinds == sorted(kinds)
            assert kinds.count(0) <= 1
            assert kinds.count(2) <= 1
            is_held = side == "request" and not self.outcomes
            if not mode.sends_back and not is_held and not self.refused and not self.wants:
                assert len(kinds) == self.parts[side]


TestExchanges = Exchanges.TestCase
TestExchanges.settings = settings(
    max_examples=examples(3000), stateful_step_count=25, deadline=None
)
