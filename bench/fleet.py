"""A made-up fleet for benchmarks: prompts, and event batches that say who holds them."""

from collections.abc import Iterator
from random import Random

import msgspec

from indexer.engines import vllm
from indexer.index import Index
from indexer.ingest import Ingest
from indexer.rank_ingest import RankIngest
from indexer.rank_source import RankSource

MODEL = "bench"
BLOCK_SIZE = 16
VOCAB_SIZE = 100_000


def new_ingest(index: Index, pods: int) -> tuple[Ingest, list[RankIngest]]:
    """Return an ingestion of `pods` pods into an index, and their ranks."""
    ingest = Ingest(index, hash_seed="", pending_bytes=1 << 20, stale_after=1.0, clock=lambda: 0.0)
    ranks = [
        ingest.add(
            RankSource(f"pod-{number}", 0, MODEL, vllm.decode, has_replay=False, dialect="vllm")
        )
        for number in range(pods)
    ]
    return ingest, ranks


def prompt_of(rng: Random, tokens: int) -> list[int]:
    """Return a prompt of random token ids."""
    return [rng.randrange(VOCAB_SIZE) for _ in range(tokens)]


def batches_of(rng: Random, prompt: list[int], *, events: int, blocks: int) -> Iterator[bytes]:
    """Yield vLLM batches that store a prompt: `events` a batch, each of `blocks` blocks."""
    parent = None
    step = blocks * BLOCK_SIZE
    batch = []
    for start in range(0, len(prompt) - step + 1, step):
        hashes = [rng.getrandbits(64) for _ in range(blocks)]
        batch.append(
            {
                "type": "BlockStored",
                "block_hashes": hashes,
                "parent_block_hash": parent,
                "token_ids": prompt[start : start + step],
                "block_size": BLOCK_SIZE,
                "lora_id": None,
                "medium": "GPU",
                "lora_name": None,
            }
        )
        parent = hashes[-1]
        if len(batch) == events:
            yield msgspec.msgpack.encode([0.0, batch, 0])
            batch = []
    if batch:
        yield msgspec.msgpack.encode([0.0, batch, 0])


def feed(rank: RankIngest, batches: list[bytes]) -> None:
    """Hand a rank its batches, numbered on from the last one."""
    first = (rank.stream.sequence if rank.stream.sequence is not None else -1) + 1
    for sequence, payload in enumerate(batches, first):
        rank.live("", sequence, payload)
