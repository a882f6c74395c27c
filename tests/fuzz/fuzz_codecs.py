"""Coverage-guided fuzzing of the codecs: `make fuzz`.

Any input gives events or MalformedEventError, in bounded time and memory; whatever the events say,
a rank's names, copies, keys and index agree afterwards. The compiled index reads the same input with
its bounds checked, and must hold the same blocks as the index in pure Python. Seeds are the byte
vectors of real engines.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import atheris

from tests.fuzz.guided import COMPILED, ROOT, asked, fuzz

with atheris.instrument_imports(include=["warmpath.indexer"], exclude=COMPILED):
    from tests.indexer.consistent import check
    from tests.indexer.memory_index import MemoryIndex
    from warmpath.indexer.compiled.array_index import ArrayIndex
    from warmpath.indexer.compiled.scan.dialect import DIALECTS
    from warmpath.indexer.compiled.warm_up import warm_up
    from warmpath.indexer.engines import sglang, trtllm, vllm
    from warmpath.indexer.engines.event import Batch, MalformedEventError, Stored
    from warmpath.indexer.follow.instance import RankSource
    from warmpath.indexer.follow.stream_source import RankIngest
    from warmpath.indexer.index.contract import Index
    from warmpath.indexer.ranks import Ingest

MOST_EVENTS = 4
"""How often a rank gets one input as a batch, so that its events can contradict each other."""


def trtllm_decode(payload: bytes) -> Batch:
    """Split an answer of TensorRT-LLM into events and decode each."""
    codec = trtllm.Codec(4)
    events = [event for one in trtllm.split(payload) for event in codec(one).events]
    return Batch(0.0, tuple(events))


CODECS: dict[str, Callable[[bytes], Batch]] = {
    "vllm": vllm.decode,
    "sglang": sglang.decode,
    "trtllm": trtllm_decode,
}


def new_rank(index: Index, decode: Callable[[bytes], Batch], dialect: str = "") -> RankIngest:
    """Return a connected rank in a new ingestion."""
    ingest = Ingest(
        index, hash_seed="", pending_bytes=1 << 16,
        stale_after=1.0, clock=lambda: 0.0,
    )  # fmt: skip
    source = RankSource("p", 0, "m", decode, has_replay=False, capacity=8, dialect=dialect)
    rank = ingest.add(source)
    rank.connected()
    return rank


def target(engine: str) -> Callable[[bytes], None]:
    """Return the function that tests one input."""
    decode = CODECS[engine]

    def one_input(data: bytes) -> None:
        ranks = [new_rank(MemoryIndex(), decode)]
        if engine in DIALECTS:
            ranks.append(new_rank(ArrayIndex(1 << 20), decode, engine))
        for rank in ranks:
            for sequence in range(MOST_EVENTS):
                rank.live("", sequence, data)
            check(rank)
            assert rank.state.held() == ranks[0].state.held()
            assert rank.trust == ranks[0].trust
        try:
            batch = decode(data)
        except MalformedEventError:
            return
        named = sum(len(event.hashes) for event in batch.events if isinstance(event, Stored))
        assert len(batch.events) <= len(data)
        assert named <= len(data)

    return one_input


def seeds(engine: str, folder: Path) -> None:
    """Write the corpus into a folder, one file for each seed."""
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
    file = json.loads((ROOT / "tests" / "recorded" / f"{engine}-events.json").read_text())
    for vector in file["vectors"]:
        (folder / vector["name"]).write_bytes(bytes.fromhex(vector["payload_hex"]))


def main() -> None:
    """Fuzz one codec for some seconds."""
    engine, seconds = asked(__doc__, CODECS)
    warm_up(ArrayIndex(1 << 20))
    fuzz(engine, seconds, partial(seeds, engine), target(engine))


if __name__ == "__main__":
    main()
