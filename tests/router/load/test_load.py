"""A rank's load: bookings, corrected by what engines and gateways say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.router.load.reports import load_of, new_bookings
from warmpath.router.load.bookings import Bookings, Work
from warmpath.router.load.correction import UNKNOWN_TOKENS
from warmpath.router.load.engine_metrics import Observed
from warmpath.router.load.table import LoadTable
from warmpath.scorer.candidate import Load
from warmpath.scorer.prefill import PrefillModel

STALE = 5.0


def work(prefill: float = 1.0, pod: str = "p", tokens: int = 100) -> Work:
    return Work("m", pod, 0, tokens, 28, prefill)


def seen(running: int, waiting: int = 0, at: float = 10.0, kv_usage: float = 0.0) -> Observed:
    return Observed(running, waiting, kv_usage, at)


def booked(*prefills: float, at: float = 0.0) -> tuple[Bookings, LoadTable, list[str]]:
    bookings = new_bookings()
    names = [bookings.book(work(prefill), at).id for prefill in prefills]
    return bookings, LoadTable(bookings, STALE), names


def test_requests_that_we_did_not_book_are_somebody_elses() -> None:
    bookings, table, _ = booked(1.0, 3.0)
    table.observe("p", 0, seen(running=3, waiting=4, kv_usage=0.5))
    alone = load_of(bookings, "p", 0, 10.0)
    load = table.load("p", 0, 10.0)
    assert load.in_flight == 7
    assert load.waiting == 2 + 2, "of the four in the queue, two may be ours"
    assert load.wait == pytest.approx(alone.wait + 2 * 2.0), "each weighs what ours do"
    assert load.waiting_uncached_tokens == 4 * 72
    assert load.waiting_prompt_tokens == 4 * 100
    assert load.context_tokens == 7 * 100
    assert (load.queue, load.kv_usage, load.last_pick) == (4, 0.5, 2)


def test_somebody_elses_weigh_what_our_running_ones_did_where_none_of_ours_waits() -> None:
    bookings, table, [name] = booked(3.0)
    bookings.first_token(name, 1.0)
    table.observe("p", 0, seen(running=1, waiting=2))
    assert table.load("p", 0, 10.0).wait == pytest.approx(2 * 3.0)


def test_an_engines_queue_holds_ours_whose_first_tokens_were_taken_for_come() -> None:
    bookings = new_bookings(expects_first_tokens=False)
    for _ in range(4):
        bookings.book(work(1.0), 0.0)
    table = LoadTable(bookings, STALE)
    assert table.load("p", 0, 9.0).waiting == 0
    table.observe("p", 0, seen(running=1, waiting=3))
    load = table.load("p", 0, 10.0)
    assert (load.waiting, load.in_flight) == (3, 4)
    assert load.wait == pytest.approx(3 * 1.0)


def test_somebody_elses_weigh_a_default_on_a_rank_that_we_never_picked() -> None:
    _, table, _ = booked()
    table.observe("q", 0, seen(running=1, waiting=2))
    load = table.load("q", 0, 10.0)
    assert load.wait == pytest.approx(2 * PrefillModel().seconds(UNKNOWN_TOKENS, 0))
    assert load.in_flight == 3
    assert load.context_tokens == 3 * UNKNOWN_TOKENS


def test_bookings_that_the_engine_does_not_have_weigh_nothing() -> None:
    bookings, table, names = booked(1.0, 2.0)
    bookings.first_token(names[0], 1.0)
    table.observe("p", 0, seen(running=1))
    load = table.load("p", 0, 10.0)
    assert load == Load(0.15 * 2.0, 1, 1, 72, 100, 100, last_pick=2), "the oldest is over"
    table.observe("p", 0, seen(running=0, at=11.0))
    assert table.load("p", 0, 11.0) == Load(last_pick=2)
    assert len(bookings) == 2, "late reports may come"
    assert bookings.end(names[0], 12.0)


def test_a_number_of_requests_that_is_not_known_ends_none() -> None:
    bookings, table, names = booked(1.0, 2.0)
    for name in names:
        bookings.first_token(name, 3.0)
    table.observe("p", 0, Observed(0, 0, 0.5, 10.0, ("running",)))
    load = table.load("p", 0, 10.0)
    assert (load.in_flight, load.kv_usage) == (2, 0.5)


def test_what_ends_after_an_observation_is_not_taken_away_twice() -> None:
    bookings, table, names = booked(1.0, 2.0, 3.0)
    bookings.first_token(names[1], 3.0)
    table.observe("p", 0, seen(running=2))
    assert table.load("p", 0, 10.0).in_flight == 2
    bookings.end(names[2], 11.0)
    assert table.load("p", 0, 11.0).in_flight == 2, "the one whose report was late"
    bookings.end(names[1], 12.0)
    assert table.load("p", 0, 12.0).in_flight == 1


def test_what_an_engines_queue_had_weighs_no_more_than_what_is_left_of_it() -> None:
    bookings, table, _ = booked()
    names = [bookings.book(work(tokens=tokens), 0.0).id for tokens in (500, 500, 40)]
    for name in names:
        bookings.first_token(name, 1.0)
    table.observe("p", 0, seen(running=0, waiting=3))
    for name in names[:2]:
        bookings.end(name, 10.5)
    load = table.load("p", 0, 10.5)
    assert (load.waiting, load.in_flight, load.context_tokens) == (1, 1, 40)
    assert (load.waiting_uncached_tokens, load.waiting_prompt_tokens) == (40, 40)


def test_what_is_booked_after_an_observation_is_added_to_it() -> None:
    bookings, table, _ = booked()
    table.observe("p", 0, seen(running=0))
    bookings.book(work(2.0), 10.5)
    assert table.load("p", 0, 10.5).wait == pytest.approx(2.0)


def test_what_may_still_be_on_its_way_is_neither_lost_nor_counted_twice() -> None:
    bookings, table, _ = booked(2.0, at=9.5)
    for running in (0, 1):
        table.observe("p", 0, seen(running=running))
        assert table.load("p", 0, 10.0) == load_of(bookings, "p", 0, 10.0)


def test_the_later_observation_counts_whoever_made_it() -> None:
    _, table, _ = booked()
    table.observe("p", 0, seen(running=3, at=10.0), "gateway")
    table.observe("p", 0, seen(running=9, at=9.0), "engine")
    assert table.load("p", 0, 10.0).in_flight == 3
    assert {part.source for part in table.explain("p", 0, 10.0)} == {"bookings", "gateway"}
    table.observe("p", 0, seen(running=4, at=11.0), "engine")
    assert table.load("p", 0, 11.0).in_flight == 4


def test_a_rank_that_is_gone_leaves_nothing() -> None:
    bookings, table, _ = booked(1.0)
    table.observe("p", 0, seen(running=5))
    assert table.load("p", 0, 10.0).in_flight == 5
    bookings.forget("p", 0)
    table.forget("p", 0)
    table.forget("never", 0)
    assert table.load("p", 0, 10.0) == Load()


def test_each_figure_tells_who_said_it_and_when() -> None:
    _, table, _ = booked(2.0)
    table.observe("p", 0, seen(running=1, waiting=2, kv_usage=0.25))
    said = {part.name: (part.value, part.source, part.age) for part in table.explain("p", 0, 12.0)}
    assert said == {
        "booked wait": (pytest.approx(0.3), "bookings", 0.0),
        "booked waiting": (1, "bookings", 0.0),
        "booked in flight": (1, "bookings", 0.0),
        "running": (1, "engine", 2.0),
        "queue": (2, "engine", 2.0),
        "kv usage": (0.25, "engine", 2.0),
        "others in flight": (2, "engine", 2.0),
        "others waiting": (1, "engine", 2.0),
        "reports lost": (0, "engine", 2.0),
    }
    assert [part.name for part in table.explain("p", 0, 99.0)] == list(said)[:3]


BOOKED = st.lists(st.tuples(st.floats(0, 9.9), st.floats(0.001, 5), st.booleans()), max_size=8).map(
    sorted
)
"""When, for how long, and whether its first token has come."""


def table_of(rows: list[tuple[float, float, bool]]) -> tuple[Bookings, LoadTable]:
    bookings, table, _ = booked()
    for at, prefill, is_computed in rows:
        booking = bookings.book(work(prefill), at)
        if is_computed:
            bookings.first_token(booking.id, at)
    return bookings, table


@given(BOOKED, st.integers(0, 9), st.floats(0, STALE))
def test_an_observation_that_agrees_changes_nothing(
    rows: list[tuple[float, float, bool]], queued: int, age: float
) -> None:
    bookings, table = table_of(rows)
    waiting = min(queued, load_of(bookings, "p", 0, 10.0).waiting)
    table.observe("p", 0, seen(len(rows) - waiting, waiting, kv_usage=0.5))
    alone = load_of(bookings, "p", 0, 10.0 + age)
    assert table.load("p", 0, 10.0 + age) == alone._replace(queue=waiting, kv_usage=0.5)


@given(BOOKED, st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
def test_more_in_the_queue_is_never_less_load(
    rows: list[tuple[float, float, bool]], running: int, one: int, other: int
) -> None:
    loads = []
    for waiting in sorted((one, other)):
        _, table = table_of(rows)
        table.observe("p", 0, seen(running, waiting))
        load = table.load("p", 0, 11.0)
        loads.append(
            (
                round(load.wait, 6),
                load.waiting,
                load.in_flight,
                load.waiting_uncached_tokens,
                load.waiting_prompt_tokens,
                load.context_tokens,
            )
        )
    assert all(less <= more for less, more in zip(*loads, strict=True))


@given(BOOKED, st.integers(0, 9), st.integers(0, 9), st.floats(STALE + 0.01, 99))
def test_a_stale_observation_changes_nothing(
    rows: list[tuple[float, float, bool]], running: int, waiting: int, age: float
) -> None:
    bookings, table = table_of(rows)
    table.observe("p", 0, seen(running, waiting))
    now = 10.0 + age
    assert table.load("p", 0, now) == load_of(bookings, "p", 0, now)


def test_progress_is_known_from_reported_first_tokens_or_from_a_fresh_observation_of_any_rank() -> (
    None
):
    bookings = new_bookings(expects_first_tokens=False)
    table = LoadTable(bookings, STALE)
    assert not table.knows_progress(10.0)
    table.observe("q", 0, seen(running=1, at=10.0))
    assert table.knows_progress(10.0 + STALE)
    assert not table.knows_progress(10.0 + 2 * STALE)
    for _ in range(100):
        name = bookings.book(work(), 1000.0).id
        bookings.first_token(name, 1000.0)
    assert table.knows_progress(1000.0)
