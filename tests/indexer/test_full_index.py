"""Ranks that are followed while the index is full."""

import msgspec
import pytest

from tests.indexer.consistent import check
from tests.indexer.sides import Side, stored
from warmpath.indexer.compiled.array_index import ArrayIndex
from warmpath.indexer.engines import vllm
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.follow.instance import RankSource
from warmpath.indexer.follow.stream_source import RankIngest
from warmpath.indexer.index.memory import MemoryIndex
from warmpath.indexer.ranks import Ingest
from warmpath.indexer.trust import Level

BYTES = 512 << 10
EVENT = 64


class Engine:
    """Stores prompts; another seed gives other names to the same blocks."""

    def __init__(self, ingest: Ingest, pod: str, seed: int) -> None:
        source = RankSource(pod, 0, "m", vllm.decode, has_replay=False, dialect="vllm")
        self.rank: RankIngest = ingest.add(source)
        self.rank.connected()
        self._seed = seed

    def store(self, prompt: int, lora: str | None = None) -> None:
        names = [(self._seed << 56) + (prompt << 16) + block + 1 for block in range(EVENT)]
        adapter = {"lora_id": 1, "lora_name": lora} if lora else {}
        event = stored(names, [prompt] * (16 * EVENT), None, 16, **adapter)
        payload = msgspec.msgpack.encode([0.0, [event], 0])
        self.rank.live_many([("", self.rank.batches, payload)])


@pytest.fixture
def ingest() -> Ingest:
    index = ArrayIndex(BYTES, lambda: 0.0)
    return Ingest(index, hash_seed="", pending_bytes=1, stale_after=1.0, clock=lambda: 0.0)


@pytest.mark.parametrize("lora", [None, "adapter"])
def test_a_rank_without_room_for_its_own_names_loses_what_it_holds(
    ingest: Ingest, lora: str | None
) -> None:
    first, second = Engine(ingest, "first", 1), Engine(ingest, "second", 2)
    first.store(0, lora)
    for prompt in range(1, 1000):
        second.store(prompt)
        if ingest.index.stats().evicted:
            break
    ingest.tick(1 << 20)
    first.store(0, lora)
    assert sum(second.rank.blocks().values()) > 100 * EVENT
    second.store(0, lora)
    check(ingest)
    assert ingest.index.stats().bytes <= BYTES
    assert sum(second.rank.blocks().values()) < 20 * EVENT
    ingest.tick(1 << 20)
    assert second.rank.trust.level is Level.DEGRADED
    assert "index.max-bytes" in second.rank.trust.reason
    for prompt in range(1000, 1300):
        second.store(prompt)
        assert ingest.index.stats().bytes <= BYTES
    check(ingest)


@pytest.mark.parametrize("form", ["compiled", "pure"])
def test_stores_that_wait_for_their_parents_count_and_go_before_blocks_do(form: str) -> None:
    most = {"compiled": BYTES, "pure": 4 * BYTES}[form]
    index = ArrayIndex(most) if form == "compiled" else MemoryIndex(most)
    side = Side(form, index)
    pods = [f"p{n}" for n in range(6)]
    for pod in pods:
        side.send(pod, stored([1, 2], [5] * 8, None, 4))
    dropped = n = 0
    while not dropped:
        side.send(pods[n % 6], stored([10 + n], [n] * 4, 10**6 + n, 4))
        assert index.stats().bytes <= most
        assert index.waiting.bytes == sum(side.rank(pod).state.orphans.bytes for pod in pods)
        dropped = sum(side.rank(pod).state.orphans.dropped for pod in pods)
        n += 1
    assert index.waiting.bytes > most // 4
    stored_blocks = 2
    while index.waiting.bytes:
        tokens = [token for block in range(50) for token in [7, 7, stored_blocks, block]]
        names = range(10**7 + stored_blocks, 10**7 + stored_blocks + 50)
        side.send("p0", stored(names, tokens, None, 4))
        stored_blocks += 50
        assert index.stats().bytes <= most
    assert side.rank("p0").blocks()[Tier.GPU] == stored_blocks
    # The first of each showed that something was missed, and went with all that was known till then.
    assert sum(side.rank(pod).state.orphans.dropped for pod in pods) == n - len(pods)
    assert not index.stats().evicted
    for pod in pods:
        side.send(pod, stored([10**6 + 999], [8] * 4, None, 4))
        side.ingest.remove(pod, 0)
    assert not index.waiting.bytes
    check(index)


def test_ranks_with_names_of_their_own_share_the_room(ingest: Ingest) -> None:
    engines = [Engine(ingest, f"pod-{seed}", seed) for seed in range(1, 5)]
    for prompt in range(600):
        for engine in engines:
            engine.store(prompt)
            assert ingest.index.stats().bytes <= BYTES
        ingest.tick(10_000)
    check(ingest)
    assert ingest.index.stats().evicted
    assert all(engine.rank.blocks() for engine in engines)
