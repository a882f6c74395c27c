"""A report may reach any router that shares bookings: the one that booked ends the booking, once."""

import pytest

from tests.router.peers.fake_store import FakeStore
from tests.router.peers.sharing_routers import Router, rounds
from warmpath.router.peers.exchange import BATCH, MOST_REPORTS
from warmpath.router.peers.received import EXPIRE_SECONDS, FORGET_SECONDS
from warmpath.scorer.candidate import Load


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
