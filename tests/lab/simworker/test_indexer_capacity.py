"""What vLLM's own managers announced, beside what they had: recordings of 0.32, replayed block by block.

More than fits may be announced only where a request asked for a full report, and is never shown after it
was seen.
"""

import json
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from tests.indexer.consistent import check
from tests.indexer.followed import new_ingest
from tests.recordings import KV_CACHE_MANAGER
from warmpath.indexer.compiled.array_index import ArrayIndex
from warmpath.indexer.engines import vllm
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.follow.instance import RankSource
from warmpath.indexer.follow.stream_source import RankIngest
from warmpath.indexer.index.contract import Index
from warmpath.indexer.index.memory import MemoryIndex
from warmpath.lab.simworker.v1.hashing.block_hash import maybe_convert_block_hash
from warmpath.lab.simworker.v1.replay.replay_trace import read_trace
from warmpath.lab.simworker.v1.replay.trace_operations import TraceArgs, TraceOperations

HYBRID = Path(__file__).parent / "v1" / "vllm_hybrid.jsonl.gz"


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


def truly_held(operations: TraceOperations) -> dict[int, set[object]]:
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
@pytest.mark.parametrize("recording", ["kvm_trace", "hybrid"])
def test_more_than_fits_is_announced_only_by_full_reports_and_never_shown_once_it_was_seen(
    recording: str, index: type[Index]
) -> None:
    path = HYBRID if recording == "hybrid" else KV_CACHE_MANAGER
    operations = TraceOperations()
    asked_for: dict[str, str] = {}
    followed: list[Followed] = []
    seen: Counter[str] = Counter()
    for text in read_trace(path):
        line = json.loads(text)
        args = line["args"]
        operations.step(line["op"], TraceArgs(args))
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
