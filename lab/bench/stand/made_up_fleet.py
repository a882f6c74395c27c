"""A made-up fleet for benchmarks: prompts, and event batches that store them on pods."""

from collections.abc import Iterable, Iterator
from random import Random

import msgspec
import numpy as np

from warmpath.indexer.engines import vllm
from warmpath.indexer.follow.instance import RankSource
from warmpath.indexer.follow.stream_source import RankIngest
from warmpath.indexer.index.contract import Index
from warmpath.indexer.ranks import Ingest
from warmpath.router.pick.eligible import Wanted

MODEL = "bench"
WANTED = Wanted(MODEL)
BLOCK_SIZE = 16
VOCAB_SIZE = 100_000


def new_ingest(index: Index, pods: int, *, each: int = 1) -> tuple[Ingest, list[RankIngest]]:
    """Return an ingestion of `pods` pods of `each` ranks into an index, and their ranks in order."""
    ingest = Ingest(index, hash_seed="", pending_bytes=1 << 20, stale_after=1.0, clock=lambda: 0.0)
    ranks = [
        ingest.add(
            RankSource(f"pod-{number}", rank, MODEL, vllm.decode, has_replay=False, dialect="vllm")
        )
        for number in range(pods)
        for rank in range(each)
    ]
    return ingest, ranks


def prompt_of(seed: int, blocks: int) -> list[int]:
    """Return a made-up prompt of `blocks` full blocks and one token."""
    rng = np.random.default_rng(seed)
    tokens: list[int] = rng.integers(0, VOCAB_SIZE, blocks * BLOCK_SIZE + 1).tolist()
    return tokens


def batches_of(
    seed: int, blocks: int, *, events: int, each: int, owner: int = 0, removes: bool = False
) -> Iterator[bytes]:
    """Yield vLLM's batches that store a prompt: `events` events a batch, `each` blocks an event.

    Engines with another `owner` give blocks other hashes. With `removes` one last batch removes all
    of these blocks again.
    """
    rng = Random(seed * 1_000_003 + owner)
    prompt = prompt_of(seed, blocks)
    parent = None
    batch: list[dict[str, object]] = []
    gone: list[dict[str, object]] = []
    for start in range(0, blocks, each):
        names = [rng.getrandbits(64) | 1 for _ in range(min(each, blocks - start))]
        tokens = prompt[start * BLOCK_SIZE : (start + len(names)) * BLOCK_SIZE]
        batch.append(
            {
                "type": "BlockStored",
                "block_hashes": names,
                "parent_block_hash": parent,
                "token_ids": tokens,
                "block_size": BLOCK_SIZE,
                "lora_id": None,
                "medium": "GPU",
                "lora_name": None,
            }
        )
        gone.append({"type": "BlockRemoved", "block_hashes": names[::-1], "medium": "GPU"})
        parent = names[-1]
        if len(batch) == events:
            yield msgspec.msgpack.encode([0.0, batch, 0])
            batch = []
    if batch:
        yield msgspec.msgpack.encode([0.0, batch, 0])
    if removes:
        yield msgspec.msgpack.encode([0.0, gone[::-1], 0])


def feed(rank: RankIngest, batches: Iterable[bytes]) -> None:
    """Hand a rank its batches, numbered on from the last one."""
    first = (rank.stream.sequence if rank.stream.sequence is not None else -1) + 1
    for sequence, payload in enumerate(batches, first):
        rank.live("", sequence, payload)
