"""The index at its bound: ranks go on being followed, and what is left of a prompt is its beginning.

In whatever pieces the prompt came, and by whatever way.
"""

from collections.abc import Callable, Iterator
from itertools import count

import msgspec
import pytest

from tests.indexer.consistent import check
from tests.indexer.followed import published
from tests.indexer.memory_index import MemoryIndex
from tests.indexer.sides import Event, Side, stored
from warmpath.indexer.compiled.array_index import ArrayIndex
from warmpath.indexer.compiled.blocks.blocks import DEPTH
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.index.contract import Index
from warmpath.indexer.trust import Level
from warmpath.indexer.watch.pod_cache import PART_KEYS, Journal, PodCache
from warmpath.indexer.watch.watched_source import WatchedRank

BYTES = 512 << 10
EVENT = 64

B = 2
BLOCKS = 600
PIECE = 37
PROMPTS = range(4)
INDEXES: dict[str, Callable[[Callable[[], float]], Index]] = {
    "compiled": lambda clock: ArrayIndex(BYTES, clock),
    "pure": lambda clock: MemoryIndex(2 * BYTES, clock),
}


def event(seed: int, prompt: int, lora: str | None = None) -> Event:
    """Return a store of a prompt; another seed gives other names to the same blocks."""
    names = [(seed << 56) + (prompt << 16) + block + 1 for block in range(EVENT)]
    adapter = {"lora_id": 1, "lora_name": lora} if lora else {}
    return stored(names, [prompt] * (16 * EVENT), None, 16, **adapter)


@pytest.fixture
def full() -> Side:
    return Side("compiled", ArrayIndex(BYTES, lambda: 0.0))


@pytest.mark.parametrize("lora", [None, "adapter"])
def test_a_rank_without_room_for_its_own_names_loses_what_it_holds(
    full: Side, lora: str | None
) -> None:
    full.send("first", event(1, 0, lora))
    for prompt in range(1, 1000):
        full.send("second", event(2, prompt))
        if full.index.stats().evicted:
            break
    full.ingest.tick(1 << 20)
    full.send("first", event(1, 0, lora))
    second = full.rank("second")
    assert sum(second.blocks().values()) > 100 * EVENT
    full.send("second", event(2, 0, lora))
    check(full.ingest)
    assert full.index.stats().bytes <= BYTES
    assert sum(second.blocks().values()) < 20 * EVENT
    full.ingest.tick(1 << 20)
    assert second.trust.level is Level.DEGRADED
    assert "index.max-bytes" in second.trust.reason
    for prompt in range(1000, 1300):
        full.send("second", event(2, prompt))
        assert full.index.stats().bytes <= BYTES
    check(full.ingest)


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


def test_ranks_with_names_of_their_own_share_the_room(full: Side) -> None:
    for prompt in range(600):
        for seed in range(1, 5):
            full.send(f"pod-{seed}", event(seed, prompt))
            assert full.index.stats().bytes <= BYTES
        full.ingest.tick(10_000)
    check(full.ingest)
    assert full.index.stats().evicted
    assert all(full.rank(f"pod-{seed}").blocks() for seed in range(1, 5))


def tokens(prompt: int, start: int = 0, stop: int = BLOCKS) -> list[int]:
    return [token for block in range(start, stop) for token in (prompt, block)]


def batches(**more: object) -> Iterator[Event]:
    """Yield the stores of some prompts, a piece of each in turn."""
    yield stored([7, 8], [9] * 2 * B, None, B)  # the layout is known from here
    for start in range(0, BLOCKS, PIECE):
        stop = min(start + PIECE, BLOCKS)
        for prompt in PROMPTS:
            names = [(prompt << 32) + block + 1 for block in range(10 + start, 10 + stop)]
            parent = names[0] - 1 if start else None
            yield stored(names, tokens(prompt, start, stop), parent, B, **more)


class Told:
    """A publisher that follows an engine, and tells a router of it."""

    def __init__(self) -> None:
        self.cache = PodCache("p", Journal("epoch", 1 << 24))
        _, self.resolver = published(self.cache)
        self.told = 0

    def hear(self, event: Event) -> None:
        [rank] = self.cache.ranks
        payload = msgspec.msgpack.encode([1.0 + rank.batches, [event], 0])
        rank.live("", rank.batches, payload)
        self.cache.collect()

    def deltas(self, rank: WatchedRank) -> None:
        for delta in self.cache.journal.after(self.told, 1 << 20) or ():
            rank.take_delta(delta)
            self.told = delta.sequence

    def snapshot(self, rank: WatchedRank) -> None:
        rank.begin_snapshot()
        for message in self.cache.snapshot():
            if message.WhichOneof("kind") == "part":
                rank.take_part(message.part)
            else:
                rank.take_state(message.end.ranks[0])
                self.told = message.end.sequence


@pytest.fixture(params=INDEXES)
def side(request: pytest.FixtureRequest) -> Side:
    side = Side(request.param)
    side.index = side.ingest.index = INDEXES[request.param](lambda: side.now)
    return side


def fill(side: Side) -> None:
    """Let another pod store prompts until half of those of p are given up."""
    side.now += 10.0
    names = count(1 << 40)
    while side.index.stats().evicted < BLOCKS * len(PROMPTS) // 2:
        some = [next(names) for _ in range(40)]
        side.send("q", stored(some, [name % 50000 for name in some for _ in range(B)], None, B))


def check_beginnings(side: Side, lora: str = "") -> None:
    left = []
    for prompt in PROMPTS:
        held = side.held(tokens(prompt), B, lora=lora).get(("p", 0, "gpu", 0), frozenset())
        assert held == frozenset(range(len(held)))
        left.append(len(held))
    assert 0 < sum(left) < BLOCKS * len(PROMPTS)
    assert max(left) - min(left) <= 1, "all of them were stored at one time"


@pytest.mark.parametrize("lora", ["", "adapter"])
def test_a_prompt_of_an_engine_that_is_followed_directly(side: Side, lora: str) -> None:
    for event in batches(lora_name=lora or None, lora_id=1 if lora else None):
        side.send("p", event)
    fill(side)
    check_beginnings(side, lora)


@pytest.mark.parametrize("by_snapshot", [False, True])
def test_a_prompt_that_a_publisher_tells_of(side: Side, *, by_snapshot: bool) -> None:
    told = Told()
    rank = side.ingest.watch("p", 0)
    rank.connected()
    if not by_snapshot:
        told.snapshot(rank)
    for event in batches():
        told.hear(event)
        if not by_snapshot:
            told.deltas(rank)
    if by_snapshot:
        told.snapshot(rank)
    fill(side)
    check_beginnings(side)


def test_the_parts_of_a_snapshot_tell_what_each_key_follows() -> None:
    told = Told()
    many = 2 * PART_KEYS + 100
    told.hear(stored([1, 2], [9] * 2 * B, None, B))
    long = [token for n in range(many) for token in (n >> 15, n & 0x7FFF)]
    told.hear(stored(range(10, 10 + many), long, 2, B))
    told.hear(stored([5], [4, 4], 1, B))
    index = ArrayIndex(1 << 24, lambda: 0.0)
    side = Side("compiled", index)
    rank = side.ingest.watch("p", 0)
    told.snapshot(rank)
    links = told.resolver.names.chains()[Tier.GPU, 0][1]
    assert [position for position, _ in links] == [many + 2]
    depths = sorted(index.arrays.blocks.quarters[1 : many + 4, DEPTH].tolist())
    assert depths == sorted([*range(many + 2), 1])
