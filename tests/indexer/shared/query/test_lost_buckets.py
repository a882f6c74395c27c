"""Of any reads of buckets' lives: a loss is told at once, and once for all that it took."""

from hypothesis import given
from hypothesis import strategies as st

from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.query.buckets import Life, Lives
from warmpath.indexer.shared.redis.command import Reply, UnreachableError

NAMES = KeyNames("t", buckets=3)
WRITES = st.sampled_from([None, b"7", b"12"])
LIVES = st.tuples(st.sampled_from([None, b"1.1", b"2.2"]), WRITES)
READ = st.dictionaries(st.integers(0, 2), LIVES)
OLD: list[Reply] = [[b"1.1", b"7"]] * 3


def told(lives: Lives, read: dict[int, Life], asked_at: float = 0.0, now: float = 0.0) -> bool:
    before = lives.losses
    lives.compare(read, asked_at, now)
    return lives.losses > before


@given(st.lists(READ))
def test_a_bucket_that_is_another_than_when_it_was_read_last_is_told_of(
    reads: list[dict[int, Life]],
) -> None:
    lost: list[None] = []
    lives = Lives(NAMES, lambda: lost.append(None))
    known: dict[int, Life] = {}
    for now, read in enumerate(reads):
        news = any(
            bucket not in known
            or known[bucket][0] != life[0]
            or int(known[bucket][1] or 0) > int(life[1] or 0)
            for bucket, life in read.items()
        )
        assert told(lives, read, now, now) == news
        known |= read
    assert len(lost) == lives.losses


def test_a_reading_that_a_later_one_overtook_is_no_loss() -> None:
    lives = Lives(NAMES, lambda: None)
    lives.compare({0: (b"1.1", b"7")}, 1.0, 2.0)
    lives.compare({0: (b"1.1", b"9")}, 3.0, 4.0)
    assert not told(lives, {0: (b"1.1", b"8")}, 2.5, 5.0)
    assert told(lives, {0: (b"1.1", b"8")}, 4.5, 6.0)


def test_after_a_loss_all_are_read_again_and_only_then_nothing_is_asked() -> None:
    lives = Lives(NAMES, lambda: None)
    assert len(lives.ask(0)) == 3
    lives.take([*OLD[:2], [None, None]], 0, 0.0, 0.0)
    assert lives.ask(0) == []
    assert told(lives, {0: (None, None)})
    assert len(lives.ask(0)) == 3
    lives.take([[b"2.2", None]] * 3, 0, 0.0, 0.0)
    assert lives.ask(0) == []
    assert not told(lives, {0: (b"2.2", b"7"), 1: (b"2.2", None), 2: (b"2.2", b"1")})


def test_who_doubts_has_all_read_again_and_loses_nothing_by_it() -> None:
    lives = Lives(NAMES, lambda: None)
    lives.take(OLD, 0, 0.0, 0.0)
    lives.doubt()
    assert len(lives.ask(0)) == 3
    lives.take(OLD, 0, 0.0, 0.0)
    assert lives.ask(0) == []
    assert lives.losses == 1, "of the first reading"


def test_after_a_disruption_and_until_every_bucket_has_told_all_are_asked() -> None:
    lives = Lives(NAMES, lambda: None)
    lives.take([OLD[0], UnreachableError("gone"), OLD[2]], 0, 0.0, 0.0)
    assert len(lives.ask(0)) == 3
    lives.take(OLD, 0, 0.0, 0.0)
    assert lives.losses == 2, "nobody knew what the one that was away had been"
    assert lives.ask(0) == []
    assert len(lives.ask(1)) == 3
