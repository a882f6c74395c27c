"""What our indexer holds of an engine, beside what that has: of a worker whose events are spoiled, and of vLLM's own.

Managers of vLLM 0.32 announced and had what is replayed here block by block. More than fits may be
announced only where a request asked for a full report, and is never shown after it was seen.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.indexer.consistent import check
from tests.indexer.followed import new_ingest
from tests.indexer.memory_index import MemoryIndex
from tests.lab.simworker.local_worker import LocalWorker
from tests.lab.simworker.v1.manager_replay import HYBRID, Operations, recorded
from tests.recordings import KV_CACHE_MANAGER
from warmpath.indexer.compiled.array_index import ArrayIndex
from warmpath.indexer.engines import sglang, vllm
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.follow.instance import Patience, RankSource
from warmpath.indexer.follow.stream_source import RankIngest
from warmpath.indexer.follow.subscribe import Subscriber
from warmpath.indexer.index.contract import Index
from warmpath.indexer.stream.replay import AskReplay
from warmpath.indexer.trust import Level
from warmpath.lab.simworker.v1.hashing.block_hash import maybe_convert_block_hash

SPOILED = {
    "drop": 0.3, "duplicate": 0.3, "reorder": 0.2, "delay": 0.2, "delay_seconds": 0.004, "seed": 1,
}  # fmt: skip
CODECS = {"vllm": vllm.decode, "sglang": sglang.decode}


def new_rank(decode: Any) -> RankIngest:
    clock = asyncio.get_running_loop().time
    ingest = new_ingest(MemoryIndex, stale_after=60.0, clock=clock)
    return ingest.add(RankSource("p", 0, "m", decode, has_replay=True, topic="kv"))


@asynccontextmanager
async def following(worker: LocalWorker, decode: Any) -> AsyncIterator[RankIngest]:
    rank = new_rank(decode)
    subscriber = Subscriber(
        rank,
        worker.context,
        events=worker.ready["events"],
        replay=worker.ready["replay"],
        patience=Patience(replay_seconds=5.0, reconnect_seconds=0.01, max_frame_bytes=1 << 20),
    )
    task = asyncio.create_task(subscriber.run())
    try:
        while rank.trust.level is not Level.EXACT:
            await asyncio.sleep(0.002)
        yield rank
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def traffic(worker: LocalWorker, rng: random.Random, requests: int) -> None:
    """Ask for prompts that share beginnings, far more of them than the cache holds."""
    for _ in range(requests):
        words = [[20 + rng.randrange(4)] * 8 for _ in range(rng.randrange(1, 4))]
        await worker.generate(prompt=[token for word in words for token in word], max_tokens=3)


def true_names(worker: LocalWorker, engine: str) -> set[int]:
    """Return what the worker's own block pool has cached, by the names on the wire."""
    cached: Any = worker.worker.ranks[0].engine
    # A digest is 32 bytes; managers of several groups append the group.
    blocks = cached.manager.block_pool.blocks
    return named(
        (block.block_hash[:32] for block in blocks if block.block_hash is not None), engine
    )


def named(digests: Iterable[bytes], engine: str) -> set[int]:
    cut = (lambda digest: digest[-8:]) if engine == "vllm" else (lambda digest: digest[:8])
    return {int.from_bytes(cut(digest), "big") for digest in digests}


async def agree(worker: LocalWorker, rank: RankIngest, engine: str) -> None:
    """Wait until the rank is exact and at the worker's last batch; then it must have its cache."""
    journal = worker.host._publishers[0].journal
    while rank.trust.level is not Level.EXACT or rank.stream.sequence != journal.next_sequence - 1:
        await asyncio.sleep(0.002)
    state: Any = rank.state
    assert state.resolver.names.holdings[Tier.GPU, 0].copies.keys() == true_names(worker, engine)
    # Keys tell the tokens too: they are those of one who heard every batch in order.
    told = new_rank(CODECS[engine])
    replays: list[AskReplay] = []
    told.ask = replays.append
    told.connected()
    [asked] = replays
    for frame in journal.since(0):
        told.replayed(asked.ticket, frame.sequence, frame.payload)
    told.replay_ended(asked.ticket)
    assert rank.state.held() == told.state.held()
    check(rank)


@pytest.mark.parametrize("dialect", ["vllm", "vllm-0.23", "sglang", "sglang-0.5.16"])
async def test_drops_duplicates_delays_and_a_restart_leave_exact_agreement(dialect: str) -> None:
    engine = dialect.partition("-")[0]
    rng = random.Random(dialect)
    async with (
        LocalWorker("--blocks=30", f"--dialect={dialect}") as worker,
        following(worker, CODECS[engine]) as rank,
    ):
        await worker.post("/faults", {"events": SPOILED})
        await traffic(worker, rng, 40)
        counts = worker.worker.faults()["batches"][0]
        assert min(counts[kind] for kind in ("drop", "duplicate", "delay", "reorder")) > 0
        # What is lost at the very end shows with the next batch that arrives.
        await worker.post("/faults", {"events": dict.fromkeys(SPOILED, 0)})
        await traffic(worker, rng, 5)
        await agree(worker, rank, engine)

        await worker.post("/faults", {"events": SPOILED, "restart": True})
        await traffic(worker, rng, 15)
        await worker.post("/faults", {"events": dict.fromkeys(SPOILED, 0)})
        await traffic(worker, rng, 5)
        await agree(worker, rank, engine)
        assert rank.stream.counts.restarts == 1


async def test_a_reset_under_running_requests_is_followed() -> None:
    async with LocalWorker("--blocks=30") as worker, following(worker, vllm.decode) as rank:
        rng = random.Random(5)
        await traffic(worker, rng, 5)
        await worker.post("/faults", {"slow": 500})
        asked = asyncio.create_task(traffic(worker, rng, 1))
        while not worker.worker.ranks[0].load().running:
            await asyncio.sleep(0.001)
        await worker.post("/reset_prefix_cache?reset_running_requests=true")
        await worker.post("/faults", {"slow": 1})
        await asked
        await traffic(worker, rng, 3)
        await agree(worker, rank, "vllm")


@pytest.mark.parametrize("dialect", ["vllm", "vllm-0.23", "sglang"])
async def test_blocks_are_followed_to_host_memory_and_back(dialect: str) -> None:
    engine = dialect.partition("-")[0]
    rng = random.Random(7)
    async with (
        LocalWorker("--blocks=30", "--cpu-blocks=45", f"--dialect={dialect}") as worker,
        following(worker, CODECS[engine]) as rank,
    ):
        of_rank: Any = worker.worker.ranks[0].engine
        connector = of_rank.scheduler.connector
        for spoiled in (SPOILED, dict.fromkeys(SPOILED, 0)):
            await worker.post("/faults", {"events": spoiled})
            await traffic(worker, rng, 40)
        while of_rank.busy:
            # Copies that are under way.
            await asyncio.sleep(0.001)
        await agree(worker, rank, engine)
        stored = named((key.block_hash for key in connector.manager.chunk_ids()), engine)
        assert len(stored) == 45
        state: Any = rank.state
        assert state.resolver.names.holdings[Tier.CPU, 0].copies.keys() == stored


class Followed:
    """One manager, and a rank that gets its events."""

    def __init__(self, index: Index, usable: int) -> None:
        ingest = new_ingest(lambda: index)
        self.rank: RankIngest = ingest.add(
            RankSource("p", 0, "m", vllm.decode, has_replay=False, capacity=usable, dialect="vllm")
        )
        self.rank.connected()
        self.reported = False
        """Whether hits were announced."""
        self.is_sound = True
        """Whether none were since what was too much was given up."""

    def report(self) -> None:
        self.reported, self.is_sound = True, False

    def hear(self, events: list[dict[str, object]]) -> None:
        drifts = self.rank.drifts
        payload = msgspec.msgpack.encode([0.0, events, 0])
        self.rank.live_many([("", self.rank.batches, payload)])
        self.is_sound |= self.rank.drifts > drifts
        check(self.rank)

    def shown(self) -> dict[int, set[object]]:
        """Return the names that are shown, by group."""
        saved = self.rank.state.save().one_by_one()
        return {one.group: set(one.copies) for one in saved.holdings if one.tier is Tier.GPU}


def truly_held(operations: Operations) -> dict[int, set[object]]:
    """Return the names of what a manager's pool has cached, by group."""
    pool = operations.manager.block_pool
    keys = [block.block_hash for block in pool.blocks if block.block_hash is not None]
    keys += [key for more in pool.cached_block_hashes_by_block.values() for key in more]
    held: dict[int, set[object]] = {}
    for key in keys:
        # A key is a digest and four bytes that tell the group.
        digest, group = key[:-4], int.from_bytes(key[-4:], "big")
        name = maybe_convert_block_hash(digest, use_int_block_hashes=True)  # type: ignore[arg-type]
        held.setdefault(group, set()).add(name)
    return held


@pytest.mark.parametrize("index", [ArrayIndex, MemoryIndex])
@pytest.mark.parametrize("path", [KV_CACHE_MANAGER, HYBRID], ids=["full attention", "hybrid"])
def test_more_than_fits_is_announced_only_by_full_reports_and_never_shown_once_it_was_seen(
    path: Path, index: type[Index]
) -> None:
    operations = Operations()
    asked_for: dict[str, str] = {}
    followed: list[Followed] = []
    seen: Counter[str] = Counter()
    for line in recorded(path):
        args = line["args"]
        operations.step(line["op"], args)
        if line["op"] == "new_manager":
            followed.append(Followed(index(), args["num_blocks"] - 1))
        elif line["op"] == "new_request":
            mode = args.get("kv_cache_report_mode", "incremental")
            asked_for[args["request_id"]] = mode
        elif line["op"] == "get_computed_blocks" and line["out"]["num_computed_tokens"]:
            if asked_for[args["request_id"]] == "full":
                followed[-1].report()
        elif line["op"] == "take_events" and line["out"]:
            one = followed[-1]
            one.hear(line["out"])
            if one.is_sound:
                seen["sound after a drift" if one.rank.drifts else "sound"] += 1
                held = truly_held(operations)
                for group, names in one.shown().items():
                    assert names <= held.get(group, set())
    for one in followed:
        assert one.reported or not one.rank.drifts
        seen["drifted"] += one.rank.drifts > 0
    assert min(seen["drifted"], seen["sound"], seen["sound after a drift"]) > 0
