"""A publisher's journal gives the changes after a position while it still has them."""

from warmpath.indexer.watch.pod_cache import DELTA_BYTES, Journal
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2 as pb


def filled(deltas: int, max_bytes: int = 1 << 20) -> Journal:
    journal = Journal("e", max_bytes)
    for _ in range(deltas):
        journal.add(pb.RankState(trust="exact"), [])
    return journal


def test_deltas_are_numbered_from_one_and_given_from_a_position_on() -> None:
    journal = filled(3)
    assert [delta.sequence for delta in journal.after(0, 10) or []] == [1, 2, 3]
    assert [delta.sequence for delta in journal.after(1, 1) or []] == [2]
    assert journal.after(3, 10) == []


def test_a_position_that_is_no_longer_covered_is_said_to_be_none() -> None:
    journal = filled(100, max_bytes=50)
    assert journal.bytes <= 50
    assert journal.after(0, 10) is None
    assert not journal.reaches("e", 0)
    assert journal.reaches("e", 100)


def test_deltas_that_say_little_take_room_too() -> None:
    journal = filled(100, max_bytes=10 * DELTA_BYTES)
    assert journal.after(90, 10) is None
    assert journal.after(95, 10) is not None


def test_another_life_or_a_position_of_the_future_is_not_covered() -> None:
    journal = filled(3)
    assert not journal.reaches("other", 2)
    assert not journal.reaches("e", 4)


def test_a_delta_larger_than_the_bound_is_not_kept() -> None:
    journal = filled(1, max_bytes=1)
    assert journal.sequence == 1
    assert journal.after(0, 1) is None
    assert journal.after(1, 1) == []
