"""What engines tell of their requests, beside the bookings that routers share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.router.peers.fake_store import FakeStore
from tests.router.peers.sharing_routers import Router, meet, rounds, seen
from warmpath.router.peers.received import EXPIRE_SECONDS


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
                router.first_token(name)
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
