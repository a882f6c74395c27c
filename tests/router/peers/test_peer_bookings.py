"""Bookings shared between routers: each counts all that are alive once, whatever is lost."""

from collections.abc import Callable, Iterable, Sequence
from itertools import count

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.conformance.reference_index import ReferenceIndex
from tests.examples import examples
from tests.router.consistent import check
from tests.router.load.reports import new_bookings, started_on
from tests.router.peers.fake_store import FakeStore
from tests.router.pick.picker_parts import KeyedPrompt, Parts, first
from warmpath.indexer.believed import Believed
from warmpath.indexer.keys.key import WORD_BYTES, pack_words
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.redis.command import Command, CommandRefusedError, UnreachableError
from warmpath.router.load.bookings import Work
from warmpath.router.load.engine_metrics import Observed
from warmpath.router.load.other_routers import NOBODY
from warmpath.router.load.table import LoadTable
from warmpath.router.peers import booking_id
from warmpath.router.peers.exchange import BATCH, HEARTBEAT_SECONDS, MOST_REPORTS, PeerBookings
from warmpath.router.peers.received import EXPIRE_SECONDS, FORGET_SECONDS, MOST_MARKED, RouterSums
from warmpath.scorer.candidate import Load

NAMES = KeyNames("test")
NUMBERS = count(1)


class Router:
    """A router as far as it shares bookings. Its clock has nothing to do with any other."""

    def __init__(self, store: FakeStore, clock_ahead: float = 0.0) -> None:
        self.store = store
        self.clock_ahead = clock_ahead
        self.name = f"{next(NUMBERS):012x}"
        numbers = count()
        self.bookings = new_bookings(
            new_id=lambda: self.caller_says or f"{self.name}-{next(numbers):016x}"
        )
        self.caller_says = ""
        """What the next booking is called; empty: the router names it."""
        self.believed = Believed(ReferenceIndex(), max_blocks=5_000, assumed_seconds=60.0)
        self.peers = PeerBookings(self.name, NAMES, self.bookings, self.believed)
        self.loads = LoadTable(self.bookings, stale_seconds=5.0, others=self.peers.received)
        self.ended: list[str] = []

    @property
    def now(self) -> float:
        return self.store.now + self.clock_ahead

    def book(
        self, prefill: float = 1.0, pod: str = "p", tokens: int = 100, *, name: str = ""
    ) -> str:
        self.caller_says = name
        booking = self.bookings.book(Work("m", pod, 0, tokens, 28, prefill), self.now).id
        self.caller_says = ""
        return booking

    def finish(self, name: str) -> bool:
        """Take a report of an end, of whosever booking; return whether it is known."""
        if self.bookings.end(name, self.now):
            self.ended.append(name)
            return True
        return self.peers.hand_on(name, name.encode(), self.now)

    def round(self, between: Callable[[], object] = lambda: None) -> None:
        """Speak to Redis; call `between` before its replies are read."""
        replies = self.store.run(self.peers.ask(self.now))
        between()
        for report in self.peers.answer(replies, self.now):
            if self.bookings.end(report.decode(), self.now):
                self.ended.append(report.decode())
        for name in self.loads.take_changes(self.now):
            self.loads.renew(*name, self.now)

    def load(self, pod: str = "p") -> Load:
        return self.loads.load(pod, 0, self.now)

    def check(self) -> None:
        check(self.bookings)
        check(self.peers)
        check(self.loads)


def rounds(routers: Iterable[Router], times: int = 3) -> None:
    """Let all routers write, and then read, all bookings."""
    [*all_of_them] = routers
    for _ in range(times):
        for one in all_of_them:
            one.round()


def meet(routers: Sequence[Router]) -> None:
    """Let all learn of all."""
    rounds(routers, 1)
    routers[0].store.now += HEARTBEAT_SECONDS
    rounds(routers)


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def two(store: FakeStore) -> tuple[Router, Router]:
    pair = Router(store), Router(store, clock_ahead=-4000.0)
    meet(pair)
    return pair


def test_a_router_says_what_keeps_it_from_redis_now_and_since_when() -> None:
    peers = Router(FakeStore()).peers
    for now, why in ((10.0, "nobody answers"), (20.0, "NOAUTH"), (30.0, "NOAUTH")):
        peers.answer([UnreachableError(why)] * len(peers.ask(now)), now)
        assert (peers.problem, peers.problem_since) == (why, 10.0)


def test_the_latest_pick_of_all_routers_has_the_highest_number(two: tuple[Router, Router]) -> None:
    one, other = two
    for pod in "pqp":
        one.book(pod=pod)
    rounds(two)
    other.book(pod="q")
    rounds(two)
    assert [one.load(pod).last_pick for pod in "pq"] == [3, 4]
    assert [other.load(pod).last_pick for pod in "pq"] == [3, 4]


def test_a_rank_computes_one_prefill_at_a_time_whoever_booked_it(
    two: tuple[Router, Router], store: FakeStore
) -> None:
    one, other = two
    one.book(2.0)
    store.now += 0.5
    name = other.book(4.0)
    rounds(two)
    store.now += 1.0
    for router in two:
        assert router.load().wait == pytest.approx(0.5 + 4.0), "the second one's turn has not come"
    assert other.bookings.first_token(name, other.now)
    rounds(two)
    store.now += 0.5
    for router in two:
        assert router.load().wait == pytest.approx(1.5), "the rank was free for it from then on"


PROMPT = pack_words(range(1, 201))


def test_a_prompt_on_its_way_is_known_to_others_until_its_router_knows_better(
    two: tuple[Router, Router], store: FakeStore
) -> None:
    one, other = two
    one.book()
    ticket = one.believed.arrive("p", 0, PROMPT, expires=one.now + 60)
    rounds(two)
    assert other.peers.received.marks.match(PROMPT)["p", 0] > 180
    assert not one.peers.received.marks, "a router knows its own anyway"
    one.believed.withdraw(ticket)
    store.now += HEARTBEAT_SECONDS
    rounds(two)
    assert not other.peers.received.marks


def test_of_very_many_prompts_on_their_way_the_latest_are_told(
    two: tuple[Router, Router], store: FakeStore
) -> None:
    one, other = two
    for number in range(MOST_MARKED + 1):
        one.believed.arrive("p", 0, pack_words([number + 1]), expires=one.now + 60)
    store.now += HEARTBEAT_SECONDS
    rounds(two)
    marks = other.peers.received.marks
    assert not marks.match(pack_words([1]))
    assert marks.match(pack_words([2])) == {("p", 0): 1}
    assert marks.match(pack_words([MOST_MARKED + 1]))


def test_a_prompt_follows_one_with_the_same_beginning_that_another_router_sent() -> None:
    store = FakeStore()
    routers = [Parts(4, router=f"{next(NUMBERS):012x}") for _ in range(2)]
    prompt, later = KeyedPrompt(range(1, 1001)), KeyedPrompt(range(1, 1101))
    peers = [router.peers for router in routers if router.peers is not None]

    def meet() -> None:
        store.now += HEARTBEAT_SECONDS
        for one in peers * 2:
            one.answer(store.run(one.ask(store.now)), store.now)
        for router in routers:
            router.now = store.now

    meet()
    _, choice = routers[0].choose(prompt=prompt)
    meet()
    _, after = routers[1].choose(prompt=later)
    assert first(after) == first(choice)
    assert after.options[0].match.arriving_tokens > 0.9 * prompt.tokens


def test_nothing_is_written_anew_where_nothing_changed_but_a_sign_of_life_each_second(
    two: tuple[Router, Router], store: FakeStore
) -> None:
    one, _ = two
    one.book()

    def is_told() -> bool:
        asked = one.peers.ask(one.now)
        one.peers.answer(store.run(asked), one.now)
        return any(isinstance(it, Command) and it.words[0] == "SET" for it in asked)

    assert [is_told() for _ in range(3)] == [True, False, False]
    store.now += HEARTBEAT_SECONDS
    assert [is_told() for _ in range(2)] == [True, False]


def test_what_a_dead_router_booked_and_sent_vanishes_in_three_seconds(
    two: tuple[Router, Router], store: FakeStore
) -> None:
    one, other = two
    one.book()
    one.believed.arrive("p", 0, PROMPT, expires=one.now + 60)
    rounds(two)
    assert other.peers.received.marks
    assert (other.load().in_flight, len(other.peers.received.alive(other.now))) == (1, 1)
    for _ in range(4):
        store.now += EXPIRE_SECONDS / 4
        other.round()
    assert other.load() == Load()
    assert len(other.peers.received.alive(other.now)) == 0
    assert other.peers.received.on("p", 0, other.now) is NOBODY
    assert not other.peers.received.marks


def test_what_an_ended_router_booked_counts_until_engines_tell_of_it(
    two: tuple[Router, Router], store: FakeStore
) -> None:
    one, other = two
    booked = one.book()
    rounds(two)
    store.now += HEARTBEAT_SECONDS / 2
    store.run(one.peers.leave(one.now))
    begun = Router(store, 100.0)
    others = [other, begun]
    rounds(others)
    assert [router.load().in_flight for router in others] == [1, 1]
    assert not other.peers.hand_on(booked, b"report", other.now), "nobody reads its reports"
    store.now += EXPIRE_SECONDS * 0.7
    rounds(others)
    seen(other, running=1)
    assert [router.load().in_flight for router in others] == [1, 1]
    store.now += EXPIRE_SECONDS * 0.4
    rounds(others)
    assert [router.load().in_flight for router in others] == [1, 0], (
        "no engine was asked by the second"
    )
    seen(other, running=0)
    assert other.load().in_flight == 0


def test_what_was_told_counts_no_longer_when_redis_is_away_for_three_seconds(
    two: tuple[Router, Router], store: FakeStore
) -> None:
    one, other = two
    one.book()
    rounds(two)
    store.is_away = True
    for left in (1, 0):
        store.now += EXPIRE_SECONDS / 2
        other.round()
        assert other.load().in_flight == left
    assert not other.peers.is_connected
    assert other.peers.failures == 2
    store.is_away = False
    store.clear()
    meet(two)
    assert other.load().in_flight == 1
    assert other.peers.is_connected


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"nonsense",
        msgspec.msgpack.encode([1, 0, [["p", 0, 0, 0, -1, 0, 0, 0, 0, [0] * 5, None, None]]]),
        # One waits, and none is in flight.
        msgspec.msgpack.encode([1, 0, [["p", 0, 9, 1, 0, 1, 1, 1, 0, [0] * 5, [0, 9], None]]]),
        # More tokens are to be computed than there are.
        msgspec.msgpack.encode([1, 0, [["p", 0, 9, 1, 1, 2, 1, 1, 0, [0] * 5, [0, 9], None]]]),
        msgspec.msgpack.encode([1, 0, [["p", 0, 0, 0, 1, 0, 0, 1, 0, [0] * 5, None, None]] * 2]),
        b"\xc0" * (5 << 20),
        # A prompt of 500 blocks with one mark, one without a block, and too many of them.
        msgspec.msgpack.encode([1, 0, [], False, [["p", 0, 500, bytes(8)]]]),
        msgspec.msgpack.encode([1, 0, [], False, [["p", 0, 0, b""]]]),
        msgspec.msgpack.encode([1, 0, [], False, [["p", 0, 1, bytes(8)]] * (MOST_MARKED + 1)]),
        # More requests, or tokens, than fit into an answer.
        msgspec.msgpack.encode([1, 0, [["p", 0, 0, 0, 1 << 33, 0, 0, 0, 0, [0] * 5, None, None]]]),
        msgspec.msgpack.encode([1, 0, [["p", 0, 0, 0, 1, 0, 0, 1 << 62, 0, [0] * 5, None, None]]]),
        # Pick 2^63 - 1: whoever overtook it would tell what nobody can read.
        msgspec.msgpack.encode([1, (1 << 63) - 1, []]),
    ],
)
def test_what_cannot_be_is_passed_over_and_counted(
    two: tuple[Router, Router], store: FakeStore, value: bytes
) -> None:
    one, other = two
    one.book()
    rounds(two)
    store.run([Command(("SET", NAMES.load(one.name), value, "PX", "3000"))])
    other.round()
    assert other.load() == Load()
    assert other.peers.received.malformed == 1


def test_a_name_that_no_router_has_is_not_read(
    two: tuple[Router, Router], store: FakeStore
) -> None:
    one, _ = two
    store._enrol(NAMES.routers, "{a}:pods", 3000, 60000)
    store.now += HEARTBEAT_SECONDS
    rounds(two)
    read = [it.words[1] for it in one.peers.ask(one.now) if isinstance(it, Command)]
    assert not any("{a}" in str(key) for key in read)


def test_a_report_that_reaches_another_router_ends_the_booking_once(
    two: tuple[Router, Router], store: FakeStore
) -> None:
    one, other = two
    name = one.book()
    store.loses_replies = True
    assert other.finish(name), "its router lives"
    other.round()
    store.loses_replies = False
    rounds(two)
    assert one.ended == [name]
    assert one.peers.relay.received == 2, "it was handed on twice: an answer was lost"
    assert other.peers.relay.handed_on == 1
    rounds(two)
    assert one.peers.relay.received == 2
    assert other.load() == one.load() == Load(last_pick=1) or other.load() == Load()


def test_reports_of_nobodys_bookings_are_not_known(
    two: tuple[Router, Router], store: FakeStore
) -> None:
    alone = Router(FakeStore())
    rounds([alone])
    assert not alone.finish("x"), "a caller's name, and there is no other router"
    one, other = two
    name = one.book()
    assert not other.finish(f"{999:012x}-{0:016x}")
    store.run(one.peers.leave(one.now))
    other.round()
    assert not other.finish(name), "its router has ended"
    assert not other.finish("x")


@pytest.mark.parametrize("name", ["", "a caller's"])
def test_a_report_waits_for_a_router_that_stands_still(
    two: tuple[Router, Router], store: FakeStore, name: str
) -> None:
    one, other = two
    names = [one.book(name=name and f"{name}-{number}") for number in range(2)]
    rounds(two)
    for booked in names:
        store.now += FORGET_SECONDS / 2 - 1
        other.round()
        assert other.load().in_flight == 0
        assert other.finish(booked)
        other.round()
    rounds(two)
    assert one.ended == names
    assert other.peers.relay.dropped == 0


@pytest.mark.parametrize("name", ["", "a caller's"])
def test_a_report_waits_for_redis_for_as_long_as_a_booking_lives(
    two: tuple[Router, Router], store: FakeStore, name: str
) -> None:
    one, other = two
    booked = one.book(name=name)
    rounds(two)
    store.is_away = True
    for _ in range(2):
        store.now += FORGET_SECONDS
        rounds(two)
    assert other.finish(booked)
    store.now += 400.0
    rounds(two)
    assert other.peers.relay.waiting == 1
    store.is_away = False
    store.clear()
    rounds(two)
    assert one.ended == [booked]
    store.is_away = True
    rounds(two)
    assert other.finish(one.book(name=name and "another"))
    store.now += 600.0
    rounds(two)
    assert (other.peers.relay.waiting, other.peers.relay.dropped) == (0, 1)


def test_a_router_that_was_silent_for_long_takes_no_reports(
    two: tuple[Router, Router], store: FakeStore
) -> None:
    one, other = two
    booked = one.book()
    rounds(two)
    store.now += EXPIRE_SECONDS
    other.round()
    assert other.finish(booked)
    other.round()
    assert (other.peers.relay.handed_on, other.peers.relay.dropped) == (1, 0)
    store.now += FORGET_SECONDS
    other.round()
    assert other.peers.relay.dropped == 1, "nobody has read it"
    assert not other.finish(booked)
    assert not other.finish("x")


def test_reports_that_nobody_reads_do_not_push_each_other_out(two: tuple[Router, Router]) -> None:
    one, other = two
    booked = one.book()
    rounds(two)
    for _ in range(MOST_REPORTS):
        assert other.finish(booked)
    while other.peers.relay.waiting:
        other.round()
    for _ in range(MOST_REPORTS):
        assert other.finish(booked)
    other.round()
    assert other.peers.relay.waiting == MOST_REPORTS
    assert not other.finish(booked), "there is no room, here nor there"
    for _ in range(2 * MOST_REPORTS // BATCH + 3):
        rounds(two, 1)
    assert other.peers.relay.waiting == 0
    assert one.peers.relay.received == 2 * MOST_REPORTS


def test_an_own_end_goes_to_routers_that_live_alone(
    two: tuple[Router, Router], store: FakeStore
) -> None:
    _, other = two
    other.peers.release(b"x", other.now)
    assert other.peers.relay.waiting == 1
    store.now += EXPIRE_SECONDS
    other.peers.release(b"y", other.now)
    assert other.peers.relay.waiting == 1


def test_reports_that_wait_are_bounded_and_end_with_their_router(
    two: tuple[Router, Router], store: FakeStore
) -> None:
    one, other = two
    name = one.book()
    assert [other.finish(name) for _ in range(MOST_REPORTS + 1)].count(True) == MOST_REPORTS
    store.run(one.peers.leave(one.now))
    other.round()
    assert len(other.peers.received.alive(other.now)) == 0
    assert other.peers.relay.dropped == MOST_REPORTS - BATCH
    other.check()


def test_a_refusal_is_no_answer_and_the_rest_counts(two: tuple[Router, Router]) -> None:
    one, other = two
    one.book()
    one.round()
    asked = other.peers.ask(other.now)
    replies = other.store.run(asked)
    replies[0] = CommandRefusedError("OOM command not allowed")
    other.peers.answer(replies, other.now)
    assert other.load().in_flight == 1
    assert not other.peers.is_connected
    with pytest.raises(ValueError, match="replies do not match the commands of the round"):
        other.peers.answer(replies, other.now)


# Beside what engines say


def seen(router: Router, running: int, waiting: int = 0, ago: float = 0.0) -> None:
    router.loads.observe("p", 0, Observed(running, waiting, 0.0, router.now - ago))


def test_what_an_engine_says_of_others_requests_is_not_counted_beside_their_bookings(
    two: tuple[Router, Router], store: FakeStore
) -> None:
    one, other = two
    for _ in range(3):
        one.book(2.0)
    rounds(two)
    store.now += 0.5
    seen(other, running=1, waiting=2)
    load = other.load()
    assert (load.in_flight, load.waiting) == (3, 3)
    seen(other, running=2, waiting=3)
    load = other.load()
    assert (load.in_flight, load.waiting) == (5, 3), "two are of a router that shares nothing"
    seen(other, running=1, waiting=4)
    load = other.load()
    assert (load.in_flight, load.waiting) == (5, 4), "and one of these must wait"


def test_what_was_booked_just_before_an_observation_and_told_after_it_is_not_counted_twice(
    two: tuple[Router, Router], store: FakeStore
) -> None:
    one, other = two
    names = [one.book() for _ in range(3)]
    seen(other, running=0, waiting=3)
    assert other.load().in_flight == 3, "somebody's, for all that is known"
    store.now += 0.1
    rounds(two)
    assert other.load().in_flight == 3
    store.now += 1.0
    for name in names[:2]:
        one.finish(name)
    rounds(two)
    assert other.load().in_flight == 1, "what explained it once does so for good"


def test_a_dead_routers_requests_are_somebodys_when_the_engine_tells_of_them_next(
    two: tuple[Router, Router], store: FakeStore
) -> None:
    one, other = two
    one.book()
    rounds(two)
    store.now += EXPIRE_SECONDS
    other.round()
    assert other.load().in_flight == 0
    seen(other, running=1)
    assert other.load().in_flight == 1


def test_where_nobody_reports_ends_the_engine_bounds_what_all_have_booked(
    two: tuple[Router, Router], store: FakeStore
) -> None:
    for number in range(60):
        two[number % 2].book(0.01)
        store.now += 0.5
        rounds(two)
    store.now += 17.0
    meet(two)
    for router in two:
        seen(router, running=4, waiting=2)
        load = router.load()
        assert load.in_flight == 6
        assert load.waiting <= 6
        parts = {part.name: part.value for part in router.loads.explain("p", 0, router.now)}
        assert parts["reports lost"] == 54
        assert parts["routers in flight"] == 30


def test_what_another_booked_a_moment_ago_is_not_lost_because_the_engine_lacks_it(
    two: tuple[Router, Router], store: FakeStore
) -> None:
    one, other = two
    one.book()
    store.now += 0.1
    rounds(two)
    seen(other, running=0)
    assert other.load().in_flight == 1


@given(
    st.lists(st.tuples(st.integers(0, 1), st.floats(0, 20), st.booleans()), max_size=12),
    st.integers(0, 15),
    st.integers(0, 5),
)
def test_what_routers_tell_of_each_other_makes_the_load_that_one_router_would_see(
    rows: list[tuple[int, float, bool]], running: int, waiting: int
) -> None:
    store = FakeStore()
    both = Router(store), Router(store, clock_ahead=77.0)
    alone = Router(FakeStore())
    meet(both)
    alone.store.now = store.now
    begin = store.now
    rows.sort(key=lambda row: row[1])
    # One router would take a first token that later requests' overtake for lost; several see less.
    computed = sorted((row[2] for row in rows), reverse=True)
    for (which, at, _), is_computed in zip(rows, computed, strict=True):
        store.now = alone.store.now = begin + at
        for router in (both[which], alone):
            name = router.book(1.5)
            if is_computed:
                router.bookings.first_token(name, router.now)
    store.now = alone.store.now = begin + 20.0
    rounds(both, 1)
    store.now = alone.store.now = begin + 21.0
    rounds(both)
    expected = alone.load()
    for router in both:
        load = router.load()
        assert load.wait == pytest.approx(expected.wait, abs=1e-5)
        assert load._replace(wait=0.0, last_pick=0) == expected._replace(wait=0.0, last_pick=0)
        seen(router, running, waiting)
        router.check()
    seen(alone, running, waiting)
    expected = alone.load()
    for router in both:
        load = router.load()
        # The ages of others' are told in steps: of those, fewer may count as lost.
        assert load.in_flight >= expected.in_flight
        assert load.in_flight <= max(running + waiting, len(rows))
        if running + waiting >= len(rows):
            assert load.in_flight == running + waiting


# Everything in any order


class AnyFleet(RuleBasedStateMachine):
    """Routers that book, report, speak to Redis, die and come back, and a Redis that fails."""

    def __init__(self) -> None:
        super().__init__()
        self.store = FakeStore()
        self.routers = [Router(self.store, 1000.0 * number) for number in range(3)]
        self.booked: list[tuple[Router, str]] = []
        self.reported: dict[str, tuple[Router, Router]] = {}
        """Bookings that must end: whose each is, and who was told of its end."""

    @rule(
        which=st.integers(0, 2),
        pod=st.sampled_from("pq"),
        prefill=st.floats(0, 9),
        tokens=st.integers(28, 99),
        has_name=st.booleans(),
    )
    def book(self, which: int, pod: str, prefill: float, tokens: int, has_name: bool) -> None:
        router = self.routers[which]
        name = f"call-{next(NUMBERS)}" if has_name else ""
        self.booked.append((router, router.book(prefill, pod, tokens, name=name)))

    @rule(which=st.integers(0, 2), pod=st.sampled_from("pq"), blocks=st.integers(1, 99))
    def send_a_prompt(self, which: int, pod: str, blocks: int) -> None:
        router = self.routers[which]
        keys = PROMPT[: blocks * WORD_BYTES]
        router.believed.arrive(pod, 0, keys, expires=router.now + 2.0)

    @rule(which=st.integers(0, 9), what=st.sampled_from(["started", "first token"]))
    def its_own_router_hears(self, which: int, what: str) -> None:
        if self.booked:
            router, name = self.booked[-1 - which % len(self.booked)]
            if what == "started":
                started_on(router.bookings, name, router.now, "pq"[which % 2])
            else:
                router.bookings.first_token(name, router.now)

    @rule(to=st.integers(0, 2), which=st.integers(0, 9))
    def any_router_hears_of_an_end(self, to: int, which: int) -> None:
        if self.booked:
            owner, name = self.booked.pop(-1 - which % len(self.booked))
            told = self.routers[to]
            # Of a caller's name it is known only that some router has the report.
            hears = told is owner or owner.name in told.peers.received.takers(told.now)
            if told.finish(name) and hears:
                self.reported[name] = owner, told

    @rule(which=st.integers(0, 2), pod=st.sampled_from("pq"))
    def speak_to_redis_while_a_pick_comes(self, which: int, pod: str) -> None:
        router = self.routers[which]
        router.round(lambda: self.booked.append((router, router.book(pod=pod))))

    @rule(
        which=st.integers(0, 2),
        pod=st.sampled_from("pq"),
        running=st.integers(0, 9),
        waiting=st.integers(0, 9),
        ago=st.floats(0, 3),
    )
    def observe(self, which: int, pod: str, running: int, waiting: int, ago: float) -> None:
        router = self.routers[which]
        router.loads.observe(pod, 0, Observed(running, waiting, 0.0, router.now - ago))

    @rule(which=st.integers(0, 2), pod=st.sampled_from("pq"))
    def a_pod_goes(self, which: int, pod: str) -> None:
        self.routers[which].bookings.forget(pod, 0)
        self.routers[which].loads.forget(pod, 0)

    @rule(which=st.integers(0, 2))
    def a_router_dies_and_another_takes_its_place(self, which: int) -> None:
        gone = self.routers[which]
        self.routers[which] = Router(self.store, gone.clock_ahead + 10.0)
        self.booked = [one for one in self.booked if one[0] is not gone]
        # A report that it was to hand on may have gone with it.
        self.reported = {name: both for name, both in self.reported.items() if gone not in both}

    @rule(seconds=st.one_of(st.floats(0, 0.2), st.floats(0, 5)))
    def time_passes(self, seconds: float) -> None:
        self.store.now += seconds

    @rule(is_away=st.booleans(), loses_replies=st.booleans(), is_cleared=st.booleans())
    def redis_fails_or_recovers(
        self, *, is_away: bool, loses_replies: bool, is_cleared: bool
    ) -> None:
        self.store.is_away, self.store.loses_replies = is_away, loses_replies
        if is_cleared:
            self.store.clear()
            self.reported.clear()

    @precondition(lambda self: not self.store.is_away and not self.store.loses_replies)
    @rule()
    def all_have_told_and_heard(self) -> None:
        for _ in range(8):
            rounds(self.routers, 1)
            self.store.now += EXPIRE_SECONDS / 6
        rounds(self.routers, 2)
        for router in self.routers:
            assert len(router.peers.received.alive(router.now)) == 2
            for pod in "pq":
                self.assert_others_are_counted_once(router, pod)
        for name, (owner, told) in self.reported.items():
            # A router that is silent for long is given up, and reports that wait for it are counted.
            assert owner.bookings.get(name) is None or told.peers.relay.dropped
        self.reported.clear()

    def assert_others_are_counted_once(self, router: Router, pod: str) -> None:
        books = [
            other.bookings.ranks[pod, 0]
            for other in self.routers
            if other is not router and (pod, 0) in other.bookings.ranks
        ]
        told = router.peers.received.on(pod, 0, router.now)
        assert told.nanoseconds == sum(book.prefill() for book in books)
        assert told.waiting == sum(len(book.waiting) for book in books)
        assert told.in_flight == sum(len(book.in_flight) for book in books)
        assert told.uncached_tokens == sum(book.uncached_tokens for book in books)
        assert told.prompt_tokens == sum(book.prompt_tokens for book in books)
        assert told.context_tokens == sum(book.context_tokens for book in books)

    @invariant()
    def no_load_is_less_than_nothing_and_nothing_ends_twice(self) -> None:
        for router in self.routers:
            for pod in "pq":
                load = router.load(pod)
                assert load.wait >= 0
                assert 0 <= load.waiting <= load.in_flight
                assert 0 <= load.waiting_uncached_tokens <= load.waiting_prompt_tokens
                assert load.waiting_prompt_tokens <= load.context_tokens
            router.check()
            assert len(router.ended) == len(set(router.ended))

    def teardown(self) -> None:
        """All end, some without a word: nothing of them stays."""
        self.store.is_away = self.store.loses_replies = False
        self.store.run(self.routers[0].peers.leave(self.routers[0].now))
        self.store.now += 600.0
        assert self.store.keys() == []


AnyFleet.TestCase.settings = settings(
    max_examples=examples(100), stateful_step_count=40, deadline=None
)
TestAnyFleet = AnyFleet.TestCase


def test_booking_ids_name_their_router() -> None:
    router = booking_id.new_router()
    name = booking_id.new_id(router)
    assert booking_id.is_router(router)
    assert booking_id.router_of(name) == router
    assert booking_id.new_id(router) != name
    for other in (name + "\n", "\n" + name, name.upper() if name.upper() != name else "x", router):
        assert booking_id.router_of(other) == ""


def test_a_value_of_a_thousand_ranks_is_small() -> None:
    router = Router(FakeStore())
    for number in range(1000):
        router.book(pod=f"vllm-7f9c8d6b54-{number:05d}")
    [said] = [
        it.words[2]
        for it in router.peers.ask(router.now)
        if isinstance(it, Command) and it.words[0] == "SET"
    ]
    assert isinstance(said, bytes)
    assert len(said) < 100 * 1000
    assert len(msgspec.msgpack.decode(said, type=RouterSums).ranks) == 1000
