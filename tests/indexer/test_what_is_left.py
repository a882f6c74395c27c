"""At the bound what is left of a prompt is its beginning, in whatever pieces and by whatever way it came."""

from collections.abc import Callable, Iterator
from itertools import count

import msgspec
import pytest

from tests.indexer.sides import Side, stored
from warmpath.indexer.compiled.array_index import ArrayIndex
from warmpath.indexer.compiled.blocks.blocks import DEPTH
from warmpath.indexer.engines import vllm
from warmpath.indexer.follow.instance import RankSource
from warmpath.indexer.index.contract import Index
from warmpath.indexer.index.memory import MemoryIndex
from warmpath.indexer.watch.pod_cache import PART_KEYS, Journal, PodCache
from warmpath.indexer.watch.watched_source import WatchedRank

B = 2
BLOCKS = 600
PIECE = 37
PROMPTS = range(4)
INDEXES: dict[str, Callable[[Callable[[], float]], Index]] = {
    "compiled": lambda clock: ArrayIndex(512 << 10, clock),
    "pure": lambda clock: MemoryIndex(1 << 20, clock),
}


def tokens(prompt: int, start: int = 0, stop: int = BLOCKS) -> list[int]:
    return [token for block in range(start, stop) for token in (prompt, block)]


def batches(**more: object) -> Iterator[dict[str, object]]:
    """Yield the stores of some prompts, a piece of each in turn."""
    yield stored([7, 8], [9] * 2 * B, None, B)  # the layout is known from here
    for start in range(0, BLOCKS, PIECE):
        stop = min(start + PIECE, BLOCKS)
        for prompt in PROMPTS:
            names = [(prompt << 32) + block + 1 for block in range(10 + start, 10 + stop)]
            parent = names[0] - 1 if start else None
            yield stored(names, tokens(prompt, start, stop), parent, B, **more)


class Told:
    """A publisher that follows an engine, and the router that gets its messages."""

    def __init__(self, side: Side, cache: PodCache) -> None:
        self.side = side
        self.cache = cache
        self.told = 0

    def hear(self, event: dict[str, object]) -> None:
        [rank] = self.cache.ranks
        rank.live(
            "",
            rank.batches,
            msgspec.msgpack.encode([1.0 + rank.batches, [event], 0]),
        )
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
    told = Told(side, publisher())
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


def publisher() -> PodCache:
    cache = PodCache("p", Journal("epoch", 1 << 24))
    source = RankSource("p", 0, "m", vllm.decode, has_replay=False)
    cache.add(source, stale_after=1.0, clock=lambda: 0.0).connected()
    return cache


def test_the_parts_of_a_snapshot_tell_what_each_key_follows() -> None:
    told = Told(Side("pure"), publisher())
    many = 2 * PART_KEYS + 100
    told.hear(stored([1, 2], [9] * 2 * B, None, B))
    told.hear(
        stored(
            range(10, 10 + many),
            [token for n in range(many) for token in (n >> 15, n & 0x7FFF)],
            2,
            B,
        )
    )
    told.hear(stored([5], [4, 4], 1, B))
    index = ArrayIndex(1 << 24, lambda: 0.0)
    side = Side("compiled", index)
    rank = side.ingest.watch("p", 0)
    told.snapshot(rank)
    links = told.cache._followed[0].resolver.names.chains()["gpu", 0][1]  # type: ignore[index]
    assert [position for position, _ in links] == [many + 2]
    depths = sorted(index.arrays.blocks.quarters[1 : many + 4, DEPTH].tolist())
    assert depths == sorted([*range(many + 2), 1])
