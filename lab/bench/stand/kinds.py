"""Kinds of events beside plain integers: hashes in bytes, hybrid models, EAGLE's pairs, adapters, salts.

Each kind is followed in process in turns with plain blocks, up to tens of thousands of blocks a rank.
The figures are processor time, and a block's bytes by the index's own count.
"""

import statistics
import time
from dataclasses import dataclass, field
from random import Random

import msgspec

from warmpath.indexer.embedded import embedded_index
from warmpath.indexer.engines import sglang, vllm
from warmpath.indexer.follow.instance import RankSource
from warmpath.indexer.follow.stream_source import RankIngest
from warmpath.indexer.index.contract import Index
from warmpath.indexer.ranks import Ingest
from warmpath.lab.bench.figure import Figure
from warmpath.lab.bench.stand.made_up_fleet import BLOCK_SIZE, VOCAB_SIZE

EACH = 20
"""Blocks a batch."""
TURN = 25
"""Batches of a turn."""
TURNS = 120
TENANTS = 16
PLAIN = "plain integers"
KINDS = (
    "names of 32 bytes",
    "a hybrid model of two groups",
    "pairs of tokens",
    "an adapter",
    "an adapter and salts",
)

Event = dict[str, object]


@dataclass
class Followed:
    """One rank with events of a kind, in an index of its own."""

    kind: str
    index: Index = field(default_factory=lambda: embedded_index(1 << 30))
    seconds: list[float] = field(default_factory=list)
    """Processor time of each turn."""

    def __post_init__(self) -> None:
        ingest = Ingest(
            self.index, hash_seed="", pending_bytes=1, stale_after=1.0, clock=lambda: 0.0
        )
        engine = "sglang" if self.kind == "pairs of tokens" else "vllm"
        decode = sglang.decode if engine == "sglang" else vllm.decode
        source = RankSource("pod", 0, "bench", decode, has_replay=False, dialect=engine)
        self.rank: RankIngest = ingest.add(source)
        self.rank.connected()
        self._rng = Random(1)

    def turn(self) -> None:
        """Follow the batches of one more turn."""
        frames = [("", self.rank.batches + at, self._batch()) for at in range(TURN)]
        begun = time.process_time()
        self.rank.live_many(frames)
        self.seconds.append(time.process_time() - begun)

    def _batch(self) -> bytes:
        rng = self._rng
        names: list[object] = [rng.getrandbits(64) for _ in range(EACH)]
        tokens: list[object] = [rng.randrange(VOCAB_SIZE) for _ in range(EACH * BLOCK_SIZE)]
        event: Event = {
            "type": "BlockStored",
            "block_hashes": names,
            "parent_block_hash": None,
            "token_ids": tokens,
            "block_size": BLOCK_SIZE,
            "lora_id": None,
            "medium": "GPU",
        }
        events = [event]
        if self.kind == "names of 32 bytes":
            event["block_hashes"] = [rng.randbytes(32) for _ in names]
        elif self.kind == "a hybrid model of two groups":
            event |= {"group_idx": 0, "kv_cache_spec_kind": "full_attention"}
            window = {"kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 128}
            events.append(event | window | {"group_idx": 1})
        elif self.kind == "pairs of tokens":
            pairs = zip(tokens, [*tokens[1:], 0], strict=True)
            event["token_ids"] = [list(pair) for pair in pairs]
        elif self.kind != PLAIN:
            event |= {"lora_name": "an-adapter", "lora_id": 1}
            keys = [["an-adapter"] for _ in names]
            if self.kind == "an adapter and salts":
                keys[0].append(f"tenant-{rng.randrange(TENANTS)}")
            event["extra_keys"] = keys
        return msgspec.msgpack.encode([0.0, events, 0])


def measure_time(*, quick: bool) -> list[Figure]:
    """Measure the processor time for following each kind, in the last turns, beside plain blocks."""
    ranks = _followed(quick=quick)
    last = {one.kind: statistics.median(one.seconds[len(one.seconds) // 2 :]) for one in ranks}
    held = f"{ranks[0].index.stats().keys:,} blocks held"
    figures = [
        Figure(
            f"follow batches of {EACH} blocks in process, {kind}, {held}",
            last[kind] / TURN * 1e6,
            "us a batch",
            last[PLAIN] / TURN * 1e6,
            PLAIN,
            goal=2.0,
        )
        for kind in KINDS
    ]
    grown = {one.kind: _growth(one.seconds) for one in ranks}
    figures += [
        Figure(
            f"how much longer a batch takes than at a quarter of the blocks, {kind}",
            grown[kind],
            "x",
            grown[PLAIN],
            PLAIN,
            goal=1.5,
        )
        for kind in KINDS[:3]
    ]
    return figures


def _growth(seconds: list[float]) -> float:
    """Return the last turns' time, divided by that of turns at the end of the first quarter."""
    some = len(seconds) // 8
    early, late = seconds[some : 2 * some], seconds[-some:]
    return statistics.median(late) / statistics.median(early)


def measure_bytes(*, quick: bool) -> list[Figure]:
    """Measure a block's bytes, by the index's own count."""
    taken = {}
    for one in _followed(quick=quick):
        stats = one.index.stats()
        taken[one.kind] = stats.bytes / stats.keys
    return [
        Figure(f"bytes a block, {kind}", taken[kind], "bytes", taken[PLAIN], PLAIN, goal=1.5)
        for kind in KINDS
    ]


def _followed(*, quick: bool) -> list[Followed]:
    ranks = [Followed(kind) for kind in (PLAIN, *KINDS)]
    for _ in range(TURNS // 4 if quick else TURNS):
        for one in ranks:
            one.turn()
    return ranks
