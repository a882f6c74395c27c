"""Event payloads to index, by the shape of the batches."""

from collections.abc import Callable
from random import Random

from bench.figure import Figure
from bench.fleet import BLOCK_SIZE, batches_of, feed, new_ingest, prompt_of
from bench.timing import take_turns
from indexer.engines import vllm
from indexer.memory import MemoryIndex

SHAPES = ((16, 8), (1, 64), (1, 8))
"""Events a batch, and blocks an event."""
CHAIN = 16 * 8 * 4
"""Blocks of one stored prompt."""


def measure(*, quick: bool) -> list[Figure]:
    """Measure one rank's ingestion, against decoding the same payloads and nothing more."""
    chains = 4 if quick else 100
    found = []
    for events, blocks in SHAPES:
        rng = Random(1)
        batches = [
            batch
            for _ in range(chains)
            for batch in batches_of(
                rng, prompt_of(rng, CHAIN * BLOCK_SIZE), events=events, blocks=blocks
            )
        ]
        ways = {"ingest": _ingesting(batches), "decode": _decoding(batches)}
        seconds = take_turns(ways, rounds=3 if quick else 9)
        found.append(
            Figure(
                f"ingest batches of {events} x {blocks} blocks",
                chains * CHAIN / seconds["ingest"] / 1e3,
                "thousand blocks/s",
                "decoding them alone",
                seconds["ingest"] / seconds["decode"],
            )
        )
    return found


def _ingesting(batches: list[bytes]) -> Callable[[], None]:
    def ingest() -> None:
        _, (rank,) = new_ingest(MemoryIndex(), 1)
        feed(rank, batches)
        assert not rank.malformed

    return ingest


def _decoding(batches: list[bytes]) -> Callable[[], None]:
    def decode() -> None:
        for payload in batches:
            vllm.decode(payload)

    return decode
