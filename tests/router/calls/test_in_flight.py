"""The bytes of all messages stay within their limit, and no client keeps others out.

One file, since all tests share one limit.
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.clock import Clock
from tests.examples import examples
from tests.router.consistent import check
from warmpath.router.admission.in_flight import (
    MOST_KNOWN,
    STRANGER_SECONDS,
    InFlight,
    LateError,
    NoPlaceError,
)
from warmpath.router.admission.waiting_calls import CallState, Reservation

LIMIT, LARGEST, SECONDS, MOST_WAITING = 100, 10, 5.0, 12
READING, WAITING = CallState.READING, CallState.WAITING


def new_places(clock: Clock, most_waiting: int = MOST_WAITING) -> InFlight:
    return InFlight(LIMIT, LARGEST, seconds=SECONDS, clock=clock, most_waiting=most_waiting)


class Machine(RuleBasedStateMachine):
    """Calls of a few clients come, are read, are late, and end at any point."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.places = new_places(self.clock)
        self.calls: list[Reservation] = []
        self.ended: list[Reservation] = []
        self.allowed = LIMIT
        """The limit, or the bytes of the places that a higher limit let in."""

    @rule(
        client=st.sampled_from(["a:1", "a:2", "b", "c:1", "c:2", "d"]),
        size=st.none() | st.integers(0, 150),
    )
    def a_call_comes(self, client: str, size: int | None) -> None:
        def wake(error: Exception | None) -> None:
            if error is None:
                assert place.state is READING
            else:
                self.ended.append(place)

        try:
            place = self.places.enter(client, wake, size)
        except NoPlaceError:
            assert self.places.waiting == MOST_WAITING
            return
        self.calls.append(place)

    @precondition(lambda self: self.of(READING))
    @rule(data=st.data())
    def a_message_is_read(self, data: st.DataObject) -> None:
        place = data.draw(st.sampled_from(self.of(READING)))
        self.places.has_read(place, data.draw(st.integers(0, place.bytes)))

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def a_call_ends_at_any_point(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from(self.calls)))

    @rule(seconds=st.floats(0.1, 7.0))
    def time_passes(self, seconds: float) -> None:
        self.clock.now += seconds
        self.places.end_late()

    @rule(limit=st.integers(LIMIT // 2, 2 * LIMIT))
    def the_limit_changes(self, limit: int) -> None:
        self.allowed = max(limit, self.places.bytes)
        self.places.limit_to(limit)

    def of(self, state: CallState) -> list[Reservation]:
        self.calls = [place for place in self.calls if place not in self.ended or self.end(place)]
        return [place for place in self.calls if place.state is state]

    def end(self, place: Reservation) -> bool:
        self.places.leave(place)
        self.calls.remove(place)
        return False

    @invariant()
    def the_limit_holds(self) -> None:
        for place in self.ended:
            self.places.leave(place)
        self.calls = [place for place in self.calls if place not in self.ended]
        self.ended = []
        check(self.places)
        inside = [place for place in self.calls if place.state in {READING, CallState.READ}]
        assert self.places.bytes == sum(place.bytes for place in inside)
        assert self.places.bytes <= self.allowed or len(inside) == 1
        self.allowed = max(self.places.limit, self.places.bytes)

    def teardown(self) -> None:
        """Whoever waits is let in when those before end, and nothing is left then."""
        for _ in range(len(self.calls)):
            inside = [place for place in self.calls if place.state is not WAITING]
            if self.calls:
                assert inside
                self.end(inside[0])
        assert not self.calls
        assert not self.places.bytes
        assert not self.places.waiting


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=examples(500), deadline=None)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def places(clock: Clock) -> InFlight:
    places = new_places(clock)
    for connection in ("a", "b", "c", "d", "e", "f", "g", "greedy", "other", "slow"):
        send(places, connection)
    return places


def _ignored(error: Exception | None) -> None:
    pass


def send(places: InFlight, connection: str) -> None:
    """Have a message of a connection come and be answered."""
    place = places.enter(connection, _ignored)
    places.has_read(place, 1)
    places.leave(place)


def test_the_client_that_waits_most_loses_its_latest_call(places: InFlight) -> None:
    refused: list[Exception | None] = []
    for _ in range(5 + MOST_WAITING):
        places.enter("greedy", refused.append)
    for client in "bcdef":
        places.enter(client, _ignored)
    assert not refused
    assert places.enter("g", _ignored).state is WAITING
    [error] = refused
    assert isinstance(error, NoPlaceError)
    with pytest.raises(NoPlaceError):
        places.enter("greedy", _ignored)


def test_many_connections_of_one_address_are_one_client(places: InFlight) -> None:
    for number in range(100):
        send(places, f"greedy:{number}")
    many = [places.enter(f"greedy:{number}", _ignored) for number in range(5 + MOST_WAITING)]
    assert sum(place.state is READING for place in many) == 5
    # Clients without places find room beside it, however many of its connections wait.
    assert [places.enter(client, _ignored).state for client in "abc"] == [READING] * 3
    refused: list[Exception | None] = []
    with pytest.raises(NoPlaceError):
        places.enter("greedy:99", refused.append)
    waiting = [places.enter(client, _ignored) for client in "def"]
    assert [place.state for place in waiting] == [READING, READING, WAITING]
    places.leave(many[0])
    assert waiting[-1].state is READING


def test_a_late_message_hurts_nobody_while_nobody_waits(places: InFlight, clock: Clock) -> None:
    places.enter("a", _unexpected)
    clock.now += 100
    places.end_late()


def test_a_late_message_loses_its_place_to_who_waits(places: InFlight, clock: Clock) -> None:
    ended: list[Exception | None] = []
    places.enter("slow", ended.append, LIMIT)
    places.enter("other", _ignored)
    places.end_late()
    assert not ended
    clock.now += SECONDS
    places.end_late()
    [error] = ended
    assert isinstance(error, LateError)


def test_who_waits_for_places_of_its_own_ends_no_other_client(
    places: InFlight, clock: Clock
) -> None:
    places.enter("slow", _unexpected)
    clock.now += SECONDS
    for _ in range(9):
        places.enter("greedy", _ignored)
    assert places.waiting
    places.end_late()


def test_connections_that_have_sent_nothing_yet_share_the_places_of_one(places: InFlight) -> None:
    strangers = [places.enter(f"stranger {number}", _ignored) for number in range(MOST_WAITING)]
    assert sum(place.state is READING for place in strangers) == 5
    for connection in "abc":
        assert places.enter(connection, _ignored).state is READING
        send(places, connection)


def test_a_connection_whose_message_was_late_is_a_stranger_and_the_last_of_them(
    places: InFlight, clock: Clock
) -> None:
    ended: list[Exception | None] = []
    hoarded = [places.enter(f"hoarder {number}", ended.append) for number in range(5)]
    waiting = places.enter("hoarder 5", ended.append)
    clock.now += SECONDS
    places.end_late()
    assert len(ended) == 5
    again = [places.enter(f"hoarder {number}", _ignored) for number in range(5)]
    fresh = places.enter("fresh", _ignored)
    for place in hoarded:
        places.leave(place)
    assert waiting.state is READING
    assert fresh.state is READING
    assert [place.state for place in again] == [READING] * 2 + [WAITING] * 3


def _unexpected(error: Exception | None) -> None:
    raise AssertionError(error)


def test_strangers_of_one_address_leave_room_for_those_of_another(places: InFlight) -> None:
    many = [places.enter(f"new:{number}", _ignored) for number in range(MOST_WAITING)]
    assert sum(place.state is READING for place in many) < 5
    assert places.enter("newer:1", _ignored).state is READING
    # Nor do all strangers together keep out who has sent a message.
    assert [places.enter(one, _ignored).state for one in "ab"] == [READING] * 2


def test_a_new_connection_waits_once_for_those_of_its_address_that_say_nothing(
    places: InFlight, clock: Clock
) -> None:
    def enter(number: int) -> None:
        def wake(error: Exception | None) -> None:
            if error is not None:
                places.leave(place)

        place = places.enter(f"new:{number}", wake)

    def come() -> None:
        for number in range(MOST_WAITING):
            enter(number)

    def pass_time() -> None:
        clock.now += STRANGER_SECONDS
        places.end_late()

    come()
    while places.waiting:
        pass_time()
    # Each of them has had its chance; now they come again.
    come()
    pass_time()
    honest = places.enter("new:honest", _ignored)
    pass_time()
    assert honest.state is READING


def test_the_message_of_a_known_connection_or_length_may_take_longer(
    places: InFlight, clock: Clock
) -> None:
    ended: list[Exception | None] = []
    places.enter("a", ended.append, LIMIT // 2)
    places.enter("new:1", ended.append, LARGEST)
    places.enter("new:2", ended.append)
    assert places.enter("b", _ignored, LIMIT // 2).state is WAITING
    clock.now += STRANGER_SECONDS
    places.end_late()
    [error] = ended
    assert isinstance(error, LateError)
    assert error.seconds == STRANGER_SECONDS


def test_a_stranger_without_places_comes_before_a_client_that_has_some(places: InFlight) -> None:
    first = [places.enter(client, _ignored, 50) for client in "ab"]
    waiting = places.enter("a", _ignored, 20)
    stranger = places.enter("new:1", _ignored, 20)
    places.leave(first[1])
    assert stranger.state is READING
    assert waiting.state is WAITING


def test_a_small_message_passes_a_large_one_of_its_client_that_has_no_room(
    places: InFlight,
) -> None:
    places.enter("new:1", _ignored, 20)
    assert places.enter("new:1", _ignored, 70).state is WAITING
    assert places.enter("new:2", _ignored, 1).state is READING


def test_the_connections_of_a_client_take_turns(places: InFlight) -> None:
    for connection in ("x:1", "x:2"):
        send(places, connection)
    whole = places.enter("x:1", _ignored, LIMIT)
    many = [places.enter("x:1", _ignored, LIMIT) for _ in range(3)]
    one = places.enter("x:2", _ignored, LIMIT)
    places.leave(whole)
    assert many[0].state is READING
    places.leave(many[0])
    assert one.state is READING


def test_a_connection_that_waits_until_it_is_forgotten_is_a_stranger(places: InFlight) -> None:
    places.enter("b", _ignored, LIMIT)
    waiting = places.enter("a", _ignored)
    for number in range(MOST_KNOWN):
        places.remember(f"later:{number}", came=True)
    check(places)
    assert places.enter("a", _ignored).client == waiting.client


def _lines_run(work: Callable[[], None]) -> int:
    lines = 0

    def trace(_frame: FrameType, event: str, _arg: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines


@pytest.mark.parametrize("addresses", [1, 10_000])
@pytest.mark.parametrize("size", [None, 7])
def test_the_work_on_a_call_does_not_grow_with_those_that_wait(
    addresses: int, size: int | None
) -> None:
    def work(waiting: int) -> int:
        places = new_places(Clock(), waiting)
        send(places, "honest")
        calls: list[Reservation] = []

        def come(connection: str) -> None:
            with suppress(NoPlaceError):
                calls.append(places.enter(connection, _ignored, size))

        for number in range(waiting + 100):
            come(f"{number % addresses}:{number}")
        assert places.waiting == waiting

        def go_on() -> None:
            send(places, "honest")
            come("one-too-many:1")
            places.leave(calls[0])

        return _lines_run(go_on)

    assert work(500) < 1.5 * work(50)
