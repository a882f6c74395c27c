"""Calls begin one by one, clients take turns, and those that would wait too long are refused."""

import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from warmpath.router.admission.admission import (
    ANSWERING_TIMES,
    AT_ONCE_TURNS,
    FIRST_SECONDS,
    LEAST_WAITING,
    MOST_AT_ONCE,
    Admission,
    BusyError,
    Turn,
)

WAIT_SECONDS = FIRST_SECONDS * (ANSWERING_TIMES + 1) / ANSWERING_TIMES
"""The wait behind one call: sockets are read, too."""


@dataclass
class Call:
    client: str
    is_urgent: bool
    is_patient: bool
    number: int
    turn: Turn | None = None
    error: Exception | None = None

    def wake(self, error: Exception | None) -> None:
        self.error = error


@dataclass
class Stand:
    """An admission with a loop that the test turns."""

    wait_seconds: float = 20 * WAIT_SECONDS
    turn_seconds: float = 0.0
    now: float = 0.0
    soon: deque[Callable[[], None]] = field(default_factory=deque)
    calls: list[Call] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.admission = Admission(
            wait_seconds=self.wait_seconds,
            soon=self.soon.append,
            clock=lambda: self.now,
            turn_seconds=self.turn_seconds,
        )

    def enter(
        self, client: str = "a", *, is_urgent: bool = False, is_patient: bool = False
    ) -> Call:
        call = Call(client, is_urgent, is_patient, len(self.calls))
        self.calls.append(call)
        try:
            call.turn = self.admission.enter(
                client, call.wake, is_urgent=is_urgent, is_patient=is_patient
            )
        except BusyError as error:
            call.error = error
        return call

    def turn(self, seconds: float = FIRST_SECONDS, *, reading: float = 1e-9) -> None:
        """Turn the loop: sockets are read for `reading` seconds, then work takes `seconds`."""
        self.now += reading
        due = list(self.soon)
        self.soon.clear()
        for number, function in enumerate(due, 1):
            if number == len(due):
                self.now += seconds
            function()

    @property
    def begun(self) -> list[Call]:
        return [call for call in self.calls if call.turn and call.turn.begins]

    @property
    def refused(self) -> list[Call]:
        return [call for call in self.calls if call.error]


def test_a_call_begins_at_once_where_none_has_begun_in_this_turn() -> None:
    stand = Stand()
    stand.enter()
    assert len(stand.begun) == 1
    stand.enter()
    stand.enter()
    assert len(stand.begun) == 1
    stand.turn()
    assert len(stand.begun) == 2
    stand.turn()
    assert len(stand.begun) == 3
    stand.turn()
    assert not stand.soon
    stand.enter()
    assert len(stand.begun) == 4


def test_clients_take_turns_and_urgent_calls_go_first() -> None:
    stand = Stand()
    stand.enter("a")
    for _ in range(4):
        stand.enter("a")
    stand.enter("b")
    stand.enter("c", is_urgent=True)
    order = []
    while stand.soon:
        before = {call.number for call in stand.begun}
        stand.turn()
        order += [call.client for call in stand.begun if call.number not in before]
    assert order == ["c", "a", "b", "a", "a", "a"]


def test_the_client_with_the_most_waiting_calls_is_refused_its_latest() -> None:
    stand = Stand()
    for _ in range(1 + 20):
        stand.enter("greedy")
    assert not stand.refused
    modest = [stand.enter(name) for name in ("b", "c")]
    assert not any(call.error for call in modest)
    assert [call.number for call in stand.refused] == [19, 20]
    assert stand.enter("greedy").error is not None
    for _ in range(60):
        stand.turn()
    assert all(call.turn and call.turn.begins for call in modest)
    assert len(stand.begun) == 21


def test_an_address_has_its_turn_however_many_connections_another_opens() -> None:
    stand = Stand(wait_seconds=2000 * WAIT_SECONDS)
    for number in range(500):
        stand.enter(f"ipv4:10.0.0.1:{number % 50}")
    modest = [stand.enter(f"ipv4:10.0.0.2:{number}") for number in (1, 1, 2)]
    order = []
    while not all(call.turn and call.turn.begins for call in modest):
        before = {call.number for call in stand.begun}
        stand.turn()
        order += [call.client for call in stand.begun if call.number not in before]
    greedy = [client for client in order if "10.0.0.1" in client]
    # Addresses take turns, and connections of one address do.
    assert [client for client in order if client not in greedy] == [
        "ipv4:10.0.0.2:1", "ipv4:10.0.0.2:2", "ipv4:10.0.0.2:1",
    ]  # fmt: skip
    assert len(greedy) == len(set(greedy)) <= 3


def test_the_address_with_the_most_waiting_calls_is_refused_however_few_each_connection_has() -> (
    None
):
    stand = Stand()
    for number in range(1 + 20):
        stand.enter(f"[::1]:{number}")
    modest = [stand.enter("[::2]:1") for _ in range(5)]
    assert not any(call.error for call in modest)
    assert len(stand.refused) == 5
    assert [stand.admission.room(one) for one in ("[::2]:9", "[::1]:99", "[::1]:1")] == [1, 0, 0]


def test_messages_of_streams_are_never_refused_and_take_nobodys_place() -> None:
    stand = Stand()
    stand.enter()
    for _ in range(1000):
        stand.enter("streams", is_patient=True)
    assert stand.enter("b").error is None
    assert stand.admission.waiting == 1
    assert not stand.refused
    stand.turn()
    stand.turn()
    assert stand.calls[-1].turn is not None
    assert stand.calls[-1].turn.begins, "the other client had its turn"


@pytest.mark.parametrize(("seconds", "most"), [(100e-6, 50), (500e-6, 10), (1.0, LEAST_WAITING)])
@pytest.mark.parametrize("is_at_once", [False, True])
def test_the_number_that_may_wait_follows_the_time_that_calls_take(
    seconds: float, most: int, is_at_once: bool
) -> None:
    stand = Stand(turn_seconds=float(is_at_once))
    for _ in range(400):
        if is_at_once:
            stand.admission.answered_at_once(seconds)
            stand.turn()
            continue
        for _ in range(3):
            stand.enter()
        for _ in range(4):
            stand.turn(seconds)
    assert stand.admission.most_waiting == pytest.approx(most, rel=0.1)


def test_more_calls_begin_in_a_turn_if_reading_takes_long() -> None:
    stand = Stand(wait_seconds=2000 * WAIT_SECONDS)
    for _ in range(1000):
        stand.enter()
    began = []
    for _ in range(100):
        before = len(stand.begun)
        count = began[-1] if began else 1
        stand.turn(count * FIRST_SECONDS, reading=2 * FIRST_SECONDS)
        began.append(len(stand.begun) - before)
    assert began[0] == 1
    assert began[-1] == 6


def test_a_turn_answers_as_many_calls_as_fit_into_its_time() -> None:
    stand = Stand(wait_seconds=2000 * WAIT_SECONDS, turn_seconds=3.5 * FIRST_SECONDS)
    for _ in range(1000):
        stand.enter()
    for turn in range(1, 50):
        stand.turn(4 * FIRST_SECONDS)
        assert len(stand.begun) == 1 + 4 * turn


def test_calls_are_answered_at_once_only_where_nobody_waits_and_the_turn_has_time_left() -> None:
    stand = Stand(turn_seconds=FIRST_SECONDS)
    admission = stand.admission
    for _ in range(AT_ONCE_TURNS):
        assert admission.is_free
        admission.answered_at_once(FIRST_SECONDS)
    assert not admission.is_free
    stand.turn()
    assert admission.is_free
    stand.enter()
    assert admission.is_free
    stand.enter("b", is_urgent=True)
    assert not admission.is_free
    stand.turn()
    stand.enter()
    stand.enter()
    assert not admission.is_free


def test_a_pause_without_calls_is_not_measured() -> None:
    stand = Stand()
    for _ in range(50):
        stand.enter()
        stand.turn(10.0)
    assert stand.admission.call_seconds == FIRST_SECONDS


def test_a_refusal_names_the_longest_wait() -> None:
    stand = Stand(wait_seconds=20 * WAIT_SECONDS)
    for _ in range(30):
        stand.enter()
    [error, *_] = [call.error for call in stand.calls if isinstance(call.error, BusyError)]
    assert (error.limit, error.longest) == ("limits.wait-seconds", 20 * WAIT_SECONDS)
    assert "(limits.wait-seconds); try again in 500 ms" in str(BusyError(error.longest, 0.5))


def test_calls_whose_message_is_read_take_nobodys_place() -> None:
    stand = Stand(wait_seconds=50 * WAIT_SECONDS)
    admission = stand.admission
    for _ in range(10):
        stand.enter()
    for _ in range(20 * admission.most_waiting):
        with contextlib.suppress(BusyError):
            admission.enter("exchange", lambda _: None, is_read=True)
    assert not stand.refused
    with pytest.raises(BusyError, match=r"limits\.wait-seconds"):
        admission.enter("exchange", lambda _: None, is_read=True)


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.stand = Stand()
        self.left: set[int] = set()

    @rule(
        client=st.sampled_from(["a:1", "a:2", "b:1", "c"]),
        is_urgent=st.booleans(),
        is_patient=st.booleans(),
    )
    def arrive(self, client: str, is_urgent: bool, is_patient: bool) -> None:
        self.stand.enter(client, is_urgent=is_urgent, is_patient=is_patient)

    @precondition(lambda self: self.stand.calls)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from(self.stand.calls))
        if call.turn is not None:
            if not call.turn.begins and call.error is None:
                self.left.add(call.number)
            self.stand.admission.leave(call.turn)

    @rule(seconds=st.floats(0, 1))
    def turn(self, seconds: float) -> None:
        before = len(self.stand.begun)
        self.stand.turn(seconds)
        assert len(self.stand.begun) - before <= MOST_AT_ONCE

    @invariant()
    def all_are_accounted_for(self) -> None:
        stand = self.stand
        waiting = [
            call
            for call in stand.calls
            if call.error is None
            and call.number not in self.left
            and not (call.turn and call.turn.begins)
        ]
        assert stand.admission.waiting == sum(not call.is_patient for call in waiting)
        assert stand.admission.refused == len(stand.refused)
        assert not any(call.is_patient for call in stand.refused)
        if waiting:
            assert stand.soon, "who waits has its turn"


TestMachine = Machine.TestCase
TestMachine.settings = settings(stateful_step_count=60)
