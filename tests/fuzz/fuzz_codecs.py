"""Coverage-guided fuzzing of the codecs: `make fuzz`.

Any input gives events or MalformedEventError, in bounded time and memory; and whatever the events
say, names, copies, keys and index agree after them. Seeds are the byte vectors of real engines.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris

ROOT = Path(__file__).resolve().parents[2]
VECTORS = ROOT.parent / "shared" / "vectors"
sys.path.insert(0, str(ROOT))

with atheris.instrument_imports(include=["indexer"]):
    from indexer.engines import sglang, trtllm, vllm
    from indexer.engines.event import Batch, MalformedEventError, Stored
    from indexer.ingest import Ingest
    from indexer.memory import MemoryIndex
    from indexer.rank_ingest import RankIngest
    from indexer.rank_source import RankSource

MOST_EVENTS = 4
"""Batches of one input that go through one rank, so that they can contradict each other."""


def trtllm_decode(payload: bytes) -> Batch:
    """Take an answer apart and decode each event."""
    codec = trtllm.Codec(4)
    events = [event for _, _, one in trtllm.split(payload) for event in codec(one).events]
    return Batch(0.0, tuple(events))


CODECS: dict[str, Callable[[bytes], Batch]] = {
    "vllm": vllm.decode,
    "sglang": sglang.decode,
    "trtllm": trtllm_decode,
}


def new_rank(decode: Callable[[bytes], Batch]) -> RankIngest:
    """Return a rank of its own, connected."""
    ingest = Ingest(
        MemoryIndex(), hash_seed="", pending_bytes=1 << 16, orphan_bytes=1 << 12,
        stale_after=1.0, clock=lambda: 0.0,
    )  # fmt: skip
    rank = ingest.add(RankSource("p", 0, "m", decode, has_replay=False, capacity=8))
    rank.connected()
    return rank


def target(decode: Callable[[bytes], Batch]) -> Callable[[bytes], None]:
    """Return what one input is put through."""

    def one_input(data: bytes) -> None:
        try:
            batch = decode(data)
        except MalformedEventError:
            return
        named = sum(len(event.hashes) for event in batch.events if isinstance(event, Stored))
        assert len(batch.events) <= len(data)
        assert named <= len(data)
        rank = new_rank(decode)
        for sequence in range(MOST_EVENTS):
            rank.live("", sequence, data)
        rank.check()

    return one_input


def seeds(engine: str, folder: Path) -> None:
    """Write the corpus."""
    if engine == "trtllm":
        block = {"block_hash": 1 << 63, "tokens": [{"token_id": 5}] * 4, "cache_level": 0}
        diff = {"type": "event_diff", "old_value": 0, "new_value": 1}
        for number, data in enumerate(
            (
                {"type": "created", "num_blocks_per_cache_level": [4, 2]},
                {"type": "stored", "parent_hash": None, "blocks": [block, block]},
                {"type": "removed", "block_hashes": [1 << 63]},
                {"type": "updated", "block_hash": 1 << 63, "cache_level": diff},
            )
        ):
            event = {"event_id": number, "data": data, "window_size": 64, "attention_dp_rank": 0}
            (folder / str(number)).write_text(json.dumps([event]))
        return
    file = json.loads((VECTORS / f"{engine}-events.json").read_text())
    for vector in file["vectors"]:
        (folder / vector["name"]).write_bytes(bytes.fromhex(vector["payload_hex"]))


def main() -> None:
    """Fuzz one codec for some seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=sorted(CODECS))
    parser.add_argument("--seconds", type=int, default=60)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as corpus:
        seeds(args.engine, Path(corpus))
        found = ROOT / "out" / "fuzz"
        found.mkdir(parents=True, exist_ok=True)
        options = [
            sys.argv[0], corpus, f"-max_total_time={args.seconds}", "-max_len=4096", "-timeout=5",
            "-rss_limit_mb=1024", f"-artifact_prefix={found}/{args.engine}-", "-print_final_stats=1",
        ]  # fmt: skip
        atheris.Setup(options, target(CODECS[args.engine]))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
