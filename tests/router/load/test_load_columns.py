"""Columns are the loads to the last bit, whatever happened since they were asked for last."""

from collections.abc import Sequence
from functools import partial

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.examples import examples
from tests.router.consistent import check
from tests.router.load.reports import columns, new_bookings, report
from warmpath.indexer.index.slot import RankName
from warmpath.router.load.bookings import Work
from warmpath.router.load.engine_metrics import Observed
from warmpath.router.load.other_routers import rank_sums
from warmpath.router.load.table import LoadTable
from warmpath.router.peers.received import ReceivedBookings, RouterSums
from warmpath.scorer.candidate import Load
from warmpath.scorer.columns import LoadColumns

STALE = 5.0
FAR = 1 << 62
"""Tokens that no float has to the last one."""
few_bookings = partial(new_bookings, 5, 60.0, expects_first_tokens=False)


def work(prefill: float, pod: str, rank: int = 0, tokens: int = 100) -> Work:
    return Work("m", pod, rank, tokens, tokens // 3, prefill)


def figures_of(columns: LoadColumns) -> list[list[str]]:
    """Return the figures of each rank, to the last bit."""
    of_name = [getattr(columns, name).tolist() for name in Load._fields]
    return [[figure.hex() for figure in rank] for rank in zip(*of_name, strict=True)]


def bits_of(loads: Sequence[Load]) -> list[list[str]]:
    return [[float(figure).hex() for figure in load] for load in loads]


def test_columns_that_were_returned_change_no_more() -> None:
    bookings = few_bookings()
    table = LoadTable(bookings, STALE)
    before = columns(table, [("p", 0)], 10.0)
    bookings.book(work(4.0, "p"), 10.0)
    assert columns(table, [("p", 0)], 10.0).in_flight.tolist() == [1.0]
    before.wait[0] = 99.0
    assert before.in_flight.tolist() == [0.0]
    assert columns(table, [("p", 0)], 10.0).wait.tolist() == [4.0]


def test_pods_that_come_and_go_are_not_kept_for_ever() -> None:
    bookings = few_bookings()
    table = LoadTable(bookings, STALE)
    for deployed in range(8):
        names = [(f"{deployed}-{number}", 0) for number in range(700)]
        bookings.book(work(1.0 + deployed, *names[deployed]), 10.0)
        assert figures_of(columns(table, names, 10.0)) == bits_of(
            [table.load(*name, 10.0) for name in names]
        )
        assert np.count_nonzero(columns(table, names, 10.5).wait) == 1


def test_a_rank_that_is_gone_was_never_picked() -> None:
    bookings = few_bookings()
    table = LoadTable(bookings, STALE)
    booking = bookings.book(work(1.0, "p"), 10.0)
    bookings.end(booking.id, 10.0)
    assert columns(table, [("p", 0)], 10.0).last_pick.tolist() == [1.0]
    bookings.forget("p", 0)
    assert columns(table, [("p", 0)], 10.0).last_pick.tolist() == [0.0]


def test_a_pick_computes_nothing_that_was_computed_when_others_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    received = ReceivedBookings("0" * 12, "", gone=lambda _: None)
    table = LoadTable(few_bookings(), STALE, others=received)
    elsewhere = new_bookings(50, 60.0, expects_first_tokens=False)
    names = [(f"pod-{number}", 0) for number in range(40)]
    for pod, _ in names:
        elsewhere.book(work(2.0, pod), 10.0)
    columns(table, names, 10.0)
    ranks = [rank_sums(*name, book, 10.0) for name, book in elsewhere.ranks.items()]
    received.receive("1" * 12, msgspec.msgpack.encode(RouterSums(1, 40, ranks)), 10.0)
    received.end_round(10.0, is_answered=True)
    for name in table.take_changes(10.0):
        table.renew(*name, 10.0)
    asked: list[object] = []
    monkeypatch.setattr(table, "_unaged", lambda *of: asked.append(of))
    assert columns(table, names, 10.0).wait.tolist() == [2.0] * 40
    assert not asked


@given(st.lists(st.integers(0, FAR), min_size=1, max_size=6), st.floats(0, 86400))
def test_figures_that_no_float_has_are_rounded_once(tokens: list[int], passed: float) -> None:
    bookings = few_bookings()
    table = LoadTable(bookings, STALE)
    for number in tokens:
        bookings.book(work(86400.0, "p", tokens=number), 0.0)
    name = ("p", 0)
    for now in (0.0, passed):
        assert figures_of(columns(table, [name], now)) == bits_of([table.load(*name, now)])


class World:
    """A router's loads, and what two other routers received of theirs."""

    def __init__(self, *, shares: bool) -> None:
        self.bookings = few_bookings()
        self.received = ReceivedBookings("0" * 12, "", gone=lambda _: None)
        self.table = LoadTable(self.bookings, STALE, others=self.received if shares else None)


PODS = st.sampled_from("pqr")
RANKS = st.integers(0, 1)
ROUTERS = st.sampled_from(["1" * 12, "2" * 12])
NAMES = [(pod, rank) for pod in "pqr" for rank in range(2)]


class AnyNews(RuleBasedStateMachine):
    """Two routers to which the same happens: one is asked for loads, and one for columns."""

    SHARES = True
    """Whether they take note of what others tell."""

    def __init__(self) -> None:
        super().__init__()
        self.by_loads, self.by_columns = self.worlds = (
            World(shares=self.SHARES),
            World(shares=self.SHARES),
        )
        self.elsewhere = {router: few_bookings() for router in ("1" * 12, "2" * 12)}
        self.ids: list[str] = []
        self.number = 0
        self.now = 1000.0
        self.last: tuple[LoadColumns, list[list[str]]] | None = None

    @rule(
        prefill=st.floats(0, 9),
        pod=PODS,
        rank=RANKS,
        tokens=st.integers(0, 99),
        decodes=st.booleans(),
        is_watched=st.booleans(),
    )
    def book(
        self, prefill: float, pod: str, rank: int, tokens: int, decodes: bool, is_watched: bool
    ) -> None:
        for world in self.worlds:
            what, bookings = work(prefill, pod, rank, tokens), world.bookings
            behind = bookings.get(self.ids[-1]) if decodes and self.ids else None
            booking = bookings.book(what, self.now, behind=behind, is_watched=is_watched)
        self.ids.append(booking.id)

    @rule(pod=PODS, rank=RANKS)
    def engine_ends(self, pod: str, rank: int) -> None:
        for world in self.worlds:
            world.bookings.engine_ended(pod, rank)

    @rule(
        which=st.integers(0, 9),
        what=st.sampled_from(["started", "first", "finish", "fail", "lose"]),
        pod=st.none() | PODS,
    )
    def report(self, which: int, what: str, pod: str | None) -> None:
        for world in self.worlds if self.ids else ():
            report(world.bookings, self.ids[-1 - which % len(self.ids)], what, self.now, pod)

    @rule(
        pod=PODS,
        rank=RANKS,
        running=st.integers(0, 5),
        waiting=st.integers(0, 5),
        kv_usage=st.floats(0, 1),
        late=st.floats(-1.5, 7),
    )
    def observe(
        self, pod: str, rank: int, running: int, waiting: int, kv_usage: float, late: float
    ) -> None:
        for world in self.worlds:
            seen = Observed(running, waiting, kv_usage, self.now - late)
            world.table.observe(pod, rank, seen)

    @rule(pod=PODS, rank=RANKS, what=st.sampled_from(["bookings", "observations", "both"]))
    def forget(self, pod: str, rank: int, what: str) -> None:
        for world in self.worlds:
            if what != "observations":
                world.bookings.forget(pod, rank)
            if what != "bookings":
                world.table.forget(pod, rank)

    @rule(
        seconds=st.one_of(
            st.floats(0, 1),
            st.floats(0, 9),
            st.floats(-1, 0),
            st.floats(0, 500),
            # Past what an observation counts for.
            st.sampled_from([6.0, 3.0]),
        )
    )
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(router=ROUTERS, prefill=st.floats(0, 9), pod=PODS, rank=RANKS, which=st.integers(0, 3))
    def another_router_books(
        self, router: str, prefill: float, pod: str, rank: int, which: int
    ) -> None:
        bookings = self.elsewhere[router]
        booking = bookings.book(work(prefill, pod, rank), self.now)
        if which == 0:
            bookings.first_token(booking.id, self.now)
        elif which == 1:
            bookings.end(booking.id, self.now)

    def hear(self, most: int) -> None:
        """Take in what was received; a pick comes when the loads of `most` ranks are computed."""
        for world in self.worlds:
            world.received.end_round(self.now, is_answered=True)
            for name in sorted(world.table.take_changes(self.now))[:most]:
                world.table.renew(*name, self.now)

    @rule(router=ROUTERS, most=st.integers(0, 9))
    def another_router_tells(self, router: str, most: int) -> None:
        self.number += 1
        bookings = self.elsewhere[router]
        bookings.expire(self.now)
        ranks = [
            rank_sums(*name, book, self.now)
            for name, book in bookings.ranks.items()
            if book.in_flight
        ]
        value = msgspec.msgpack.encode(RouterSums(self.number, bookings.picks, ranks))
        for world in self.worlds:
            assert world.received.receive(router, value, self.now)
        self.hear(most)

    @rule(router=ROUTERS, most=st.integers(0, 9))
    def another_router_goes(self, router: str, most: int) -> None:
        for world in self.worlds:
            world.received.receive(router, None, self.now)
        self.hear(most)

    @rule(names=st.one_of(st.just(NAMES), st.lists(st.sampled_from(NAMES), max_size=8)))
    def columns_are_the_loads(self, names: list[RankName]) -> None:
        found = columns(self.by_columns.table, names, self.now)
        loads = [self.by_loads.table.load(*name, self.now) for name in names]
        for name, load in zip(names, loads, strict=True):
            assert load.wait >= 0
            assert 0 <= load.waiting <= load.in_flight
            assert 0 <= load.waiting_uncached_tokens <= load.waiting_prompt_tokens
            assert load.waiting_prompt_tokens <= load.context_tokens
            parts = self.by_loads.table.explain(*name, self.now)
            assert all(part.value >= 0 for part in parts)
        bits = bits_of(loads)
        assert figures_of(found) == bits
        self.last = found, bits

    @invariant()
    def what_was_returned_stays_as_it_was(self) -> None:
        if self.last is not None:
            found, loads = self.last
            assert figures_of(found) == loads

    @invariant()
    def parts_agree(self) -> None:
        for world in self.worlds:
            check(world.bookings)
            check(world.table)

    def teardown(self) -> None:
        self.columns_are_the_loads(NAMES)


class OwnNews(AnyNews):
    """Two routers that share nothing with others: what is observed is computed at once."""

    SHARES = False


AnyNews.TestCase.settings = OwnNews.TestCase.settings = settings(
    max_examples=examples(150), deadline=None
)
TestAnyNews = AnyNews.TestCase
TestOwnNews = OwnNews.TestCase
