"""Every kind of rank keeps, limits and logs its trust in one way, whatever its source says."""

import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conformance.reference_index import ReferenceIndex
from tests.indexer.consistent import check
from warmpath.indexer.engines import vllm
from warmpath.indexer.engines.event import Batch, Cleared
from warmpath.indexer.follow.instance import RankSource
from warmpath.indexer.rank import Rank
from warmpath.indexer.ranks import Ingest
from warmpath.indexer.shared.records.record_source import RemoteRank
from warmpath.indexer.shared.records.registry import Reading
from warmpath.indexer.trust import Level, Trust
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2 as pb


@dataclass
class Stand:
    """A rank, a clock, and its source, which says how far the rank may be believed."""

    now: float = 0.0
    said: tuple[Level, str] = (Level.COLD, "nothing was read")
    rank: Rank = field(init=False)
    exact: Callable[[], None] = field(init=False)
    degraded: Callable[[], None] = field(init=False)

    def clock(self) -> float:
        return self.now

    def ingest(self) -> Ingest:
        return Ingest(
            ReferenceIndex(), hash_seed="", pending_bytes=1, stale_after=1e9, clock=self.clock
        )


def by_engine() -> Stand:
    stand = Stand()
    source = RankSource("p", 0, "m", vllm.decode, has_replay=False)
    stand.rank = rank = stand.ingest().add(source)
    rank.connected()
    stand.exact = lambda: rank.decoded(Batch(0.0, (Cleared(),)))
    stand.degraded = lambda: rank.missed("a gap")
    return stand


def by_publisher() -> Stand:
    stand = Stand()
    stand.rank = rank = stand.ingest().watch("p", 0)
    rank.connected()
    stand.exact = lambda: rank.take_state(pb.RankState(trust="exact", reason="all was seen"))
    stand.degraded = lambda: rank.take_state(pb.RankState(trust="degraded", reason="a gap"))
    return stand


def by_record() -> Stand:
    stand = Stand()

    class Read:
        """A registry whose pod has no claim, and says what the stand says."""

        def __getattr__(self, name: str) -> Callable[..., object]:
            said = {"reading": Reading(problem=""), "trust_of": stand.said}
            return lambda *_: said.get(name, stand.now)

    rank = RemoteRank(
        "p", 0, Read(), keyspace="k", ranks=1, stale_after=1e9,
        close=lambda _: None, clock=stand.clock,
    )  # fmt: skip
    stand.rank = rank

    def say(level: Level, reason: str) -> None:
        stand.said = level, reason
        rank.record_read("")

    stand.exact = lambda: say(Level.EXACT, "all was seen")
    stand.degraded = lambda: say(Level.DEGRADED, "a gap")
    return stand


def without() -> Stand:
    stand = Stand()
    stand.rank = stand.ingest().add_blind("p", 0)
    stand.exact = stand.degraded = lambda: None
    return stand


SOURCES = {"engine": by_engine, "publisher": by_publisher, "record": by_record}


@pytest.fixture(params=[*SOURCES, "none"])
def stand(request: pytest.FixtureRequest) -> Stand:
    return {**SOURCES, "none": without}[request.param]()


@pytest.fixture(params=SOURCES)
def followed(request: pytest.FixtureRequest) -> Stand:
    return SOURCES[request.param]()


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """Return the lines since the last call."""

    def lines() -> list[str]:
        said = [one for one in caplog.messages if one.startswith("pod p rank 0: ")]
        caplog.clear()
        return said

    with caplog.at_level(logging.INFO):
        yield lines


def test_a_rank_begins_cold_and_knows_nothing(stand: Stand) -> None:
    rank = stand.rank
    assert rank.trust.level is Level.COLD
    assert (rank.pod, rank.number, rank.sequence, rank.capacity) == ("p", 0, None, 0)
    assert not any(rank.blocks().values())
    assert not any(rank.counts().values())
    assert (rank.lag_seconds, rank.lag_batches, rank.adapters) == (0.0, 0, 0)
    rank.tick()
    check(rank)
    rank.engine_restarted("seen outside")
    rank.close()


def test_reading_the_trust_costs_nothing(stand: Stand) -> None:
    assert {"trust", "inexact_since", "sequence", "lost_at"} <= vars(stand.rank).keys()


def test_a_capacity_that_the_engine_says_is_learnt(stand: Stand) -> None:
    stand.rank.learn_capacity(7)
    assert stand.rank.capacity == 7


def test_what_has_no_events_is_cold_whatever_limits_it() -> None:
    rank = without().rank
    rank.limit("an old version")
    rank.emptied("it sleeps")
    assert (rank.trust.level, rank.trust.reason) == (Level.COLD, "it has no events")


STEPS = st.lists(
    st.sampled_from(["exact", "degraded"]) | st.tuples(st.sampled_from("ab"), st.booleans())
)


@pytest.mark.parametrize("kind", SOURCES)
@given(steps=STEPS)
def test_an_exact_rank_is_as_limited_as_its_reasons_and_any_other_as_its_source_says(
    kind: str, steps: list[str | tuple[str, bool]]
) -> None:
    stand = SOURCES[kind]()
    rank, limits, since, left = stand.rank, dict[str, str](), 0.0, stand.rank.inexact_since
    for stand.now, step in zip(itertools.count(1.0), steps, strict=False):
        before = rank.trust
        if isinstance(step, str):
            getattr(stand, step)()
        else:
            about, is_set = step
            since = since if limits else stand.now
            limits.pop(about, None) if not is_set else limits.setdefault(about, f"because {about}")
            rank.limit(f"because {about}" if is_set else "", about)
        if rank._said.level is Level.EXACT and limits:
            assert rank.trust == Trust(Level.DEGRADED, "; ".join(limits.values()), since)
        else:
            assert rank.trust is rank._said
        if before.level is Level.EXACT:
            left = rank.trust.since
        if rank.trust.level is not Level.EXACT:
            assert rank.inexact_since == left


def test_a_change_of_the_level_is_logged_once(
    followed: Stand, told: Callable[[], list[str]]
) -> None:
    rank = followed.rank
    followed.exact()
    followed.exact()
    rank.limit("an old version", "version")
    rank.limit("an old version", "version")
    rank.limit("", "version")
    reason = rank.trust.reason
    assert told() == [
        f"pod p rank 0: exact, was cold: {reason}",
        "pod p rank 0: degraded, was exact: an old version",
        f"pod p rank 0: exact, was degraded: {reason}",
    ]


def test_only_a_rank_that_is_followed_directly_logs_other_reasons(
    followed: Stand, told: Callable[[], list[str]]
) -> None:
    followed.exact()
    followed.rank.limit("one", "one")
    told()
    followed.rank.limit("two", "two")
    lines = ["pod p rank 0: degraded, was degraded: one; two"] if followed.rank.logs_reasons else []
    assert told() == lines
    assert followed.rank.logs_reasons is (followed.rank.orphans is not None)


def test_limits_of_other_threads_lose_nothing_that_the_source_says(followed: Stand) -> None:
    rank = followed.rank

    def limit() -> None:
        for _ in range(500):
            rank.limit("slow")
            rank.limit("")

    threads = [threading.Thread(target=limit) for _ in range(2)]
    for one in threads:
        one.start()
    for _ in range(200):
        followed.exact()
        followed.degraded()
    for one in threads:
        one.join()
    assert rank.trust is rank._said
    assert rank.trust.level is Level.DEGRADED
