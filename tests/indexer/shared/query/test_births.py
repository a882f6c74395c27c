"""Of any reads of when buckets were made: a loss is told at once, and once for all that it took."""

from hypothesis import given
from hypothesis import strategies as st

from indexer.shared.layout.names import KeyNames
from indexer.shared.query.lost_buckets import Births
from indexer.shared.redis.command import Reply, UnreachableError

NAMES = KeyNames("t", buckets=3)
BORN = st.sampled_from([None, b"1.1", b"2.2"])
READ = st.dictionaries(st.integers(0, 2), BORN)


def told(births: Births, read: dict[int, bytes | None]) -> bool:
    before = births.losses
    births.compare(read)
    return births.losses > before


@given(st.lists(READ))
def test_a_bucket_that_is_another_than_when_it_was_read_last_is_told_of(
    reads: list[dict[int, bytes | None]],
) -> None:
    lost: list[None] = []
    births = Births(NAMES, lambda: lost.append(None))
    known: dict[int, bytes | None] = {}
    for read in reads:
        news = any(bucket not in known or known[bucket] != born for bucket, born in read.items())
        assert told(births, read) == news
        known |= read
    assert len(lost) == births.losses


def test_after_a_loss_all_are_read_again_and_only_then_nothing_is_asked() -> None:
    births = Births(NAMES, lambda: None)
    assert len(births.ask(0)) == 3
    births.take([b"1.1", b"1.1", None], 0)
    assert births.ask(0) == []
    assert told(births, {0: None})
    assert len(births.ask(0)) == 3
    births.take([b"2.2", b"2.2", b"2.2"], 0)
    assert births.ask(0) == []
    assert not told(births, {0: b"2.2", 1: b"2.2", 2: b"2.2"})


def test_who_doubts_has_all_read_again_and_loses_nothing_by_it() -> None:
    births = Births(NAMES, lambda: None)
    births.take([b"1.1"] * 3, 0)
    births.doubt()
    assert len(births.ask(0)) == 3
    births.take([b"1.1"] * 3, 0)
    assert births.ask(0) == []
    assert births.losses == 1, "of the first reading"


def test_after_a_disruption_and_until_every_bucket_has_told_all_are_asked() -> None:
    births = Births(NAMES, lambda: None)
    away: list[Reply] = [b"1.1", UnreachableError("gone"), b"1.1"]
    births.take(away, 0)
    assert len(births.ask(0)) == 3
    births.take([b"1.1"] * 3, 0)
    assert births.losses == 2, "nobody knew what the one that was away had been"
    assert births.ask(0) == []
    assert len(births.ask(1)) == 3
