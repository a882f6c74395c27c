"""Another process's ranks, as they are read in the memory that it writes."""

import os
import time
from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.indexer.followed import source
from tests.indexer.sides import CLEARED, removed, stored
from warmpath.indexer.compiled.memory import File, Memory, new_file
from warmpath.indexer.embedded import embedded_index
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.follow.stream_source import RankIngest
from warmpath.indexer.keys.key import Chain, Keyspace, pack_tokens
from warmpath.indexer.mirror import Mirror
from warmpath.indexer.processes.publish import Publisher
from warmpath.indexer.ranks import Ingest
from warmpath.indexer.trust import Level
from warmpath.indexer.watch.watched_source import WatchedRank

SIZE = 16
TOKENS = list(range(SIZE * 8))
CHAIN = Chain(Keyspace("m", SIZE).root(), pack_tokens(TOKENS), SIZE, 8)
PODS = st.sampled_from(["a", "b", "c"])
BLOCKS = st.integers(1, 8)


class MirroredRanks(RuleBasedStateMachine):
    """Ranks come, go and change in one ingest; a mirror of it shows the same, and so does one that is new."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        descriptor = new_file()
        self.file = File(descriptor)
        os.close(descriptor)
        memory = Memory(self.file, 0)
        publisher = Publisher(memory, self._clock)
        self.ingest = Ingest(
            embedded_index(1 << 22, memory), hash_seed="", pending_bytes=1 << 20,
            stale_after=1e9, clock=self._clock, publisher=publisher,
        )  # fmt: skip
        publisher.begin(None, ())
        self.mirror = Mirror(self.file, hash_seed="", clock=self._clock)
        for pod in "abc":
            self.mirror.mirror(pod, 0)

    def _clock(self) -> float:
        return self.now

    @rule(pod=PODS, is_watched=st.booleans())
    def comes(self, pod: str, *, is_watched: bool) -> None:
        if self.ingest.rank(pod, 0) is None:
            if is_watched:
                self.ingest.watch(pod, 0).connected()
            else:
                self.ingest.add(source(pod, has_replay=False)).connected()

    @rule(pod=PODS)
    def goes(self, pod: str) -> None:
        if self.ingest.rank(pod, 0) is not None:
            self.ingest.remove(pod, 0)

    @rule(pod=PODS, blocks=BLOCKS, skipped=st.integers(0, 1), own=st.booleans())
    def stores(self, pod: str, blocks: int, skipped: int, *, own: bool) -> None:
        first = ord(pod) * 100 if own else 0
        event = stored(range(first + 1, first + blocks + 1), TOKENS[: SIZE * blocks], None, SIZE)
        self._feed(pod, event, skipped)
        rank = self.ingest.rank(pod, 0)
        if isinstance(rank, WatchedRank):
            rank.take_keys((Tier.GPU, 0), CHAIN.keys()[:blocks])

    @rule(pod=PODS, block=BLOCKS)
    def removes(self, pod: str, block: int) -> None:
        self._feed(pod, removed([block]), 0)

    @rule(pod=PODS)
    def clears(self, pod: str) -> None:
        self._feed(pod, CLEARED, 0)

    @rule(pod=PODS)
    def restarts(self, pod: str) -> None:
        rank = self.ingest.rank(pod, 0)
        if isinstance(rank, RankIngest):
            rank.stream.suspect("it was seen elsewhere")
            rank.begin_life()

    def _feed(self, pod: str, event: dict[str, Any], skipped: int) -> None:
        rank = self.ingest.rank(pod, 0)
        if isinstance(rank, RankIngest):
            sequence = (-1 if rank.sequence is None else rank.sequence) + 1 + skipped
            rank.live_many([("", sequence, msgspec.msgpack.encode([time.time(), [event], 0]))])

    @rule()
    def time_passes(self) -> None:
        self.now += 0.1
        self.ingest.tick(1 << 20)

    @invariant()
    def the_index_is_the_same_at_once(self) -> None:
        assert self._found(self.mirror) == self._found(self.ingest)
        for rank in self.ingest:
            shown = self.mirror.rank(rank.pod, 0)
            assert shown is not None
            assert shown.trust.level is rank.trust.level or rank.trust.reason == shown.trust.reason

    def _found(self, ingest: Ingest) -> list[tuple[str, int, bool, int, int]]:
        ingest.expire()
        return sorted(
            (place.pod, place.group, place.doubted, start, stop)
            for place, start, stop in ingest.match(CHAIN)
        )

    def teardown(self) -> None:
        self.ingest.tick(1 << 20)
        later = Mirror(self.file, hash_seed="", clock=self._clock)
        for pod in "abc":
            later.mirror(pod, 0)
        for mirror in (self.mirror, later):
            assert self._found(mirror) == self._found(self.ingest)
            for pod in "abc":
                rank, shown = self.ingest.rank(pod, 0), mirror.rank(pod, 0)
                assert shown is not None
                if rank is None:
                    assert shown.trust.level is Level.COLD
                    assert not shown.is_connected
                    continue
                for name in (
                    "trust",
                    "layout",
                    "is_connected",
                    "sequence",
                    "capacity",
                    "lag_batches",
                ):
                    assert getattr(shown, name) == getattr(rank, name)
                assert shown.blocks() == rank.blocks()
                assert shown.counts() == rank.counts()
                assert mirror.life(pod, 0) == self.ingest.life(pod, 0)


TestMirroredRanks = MirroredRanks.TestCase
