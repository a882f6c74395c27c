"""Token ids to scores in process: the index against the peer's, and against itself under load."""

import statistics
from collections.abc import Callable
from random import Random

from warmpath.indexer.embedded import embedded_index
from warmpath.indexer.keys.key import pack_tokens
from warmpath.indexer.ranks import Ingest
from warmpath.lab.bench import peer
from warmpath.lab.bench.figure import Figure
from warmpath.lab.bench.speed import pauses
from warmpath.lab.bench.stand import kinds
from warmpath.lab.bench.stand.look_up import BLOCKS, HOLDERS, TOKENS, microseconds, scores
from warmpath.lab.bench.stand.made_up_fleet import (
    BLOCK_SIZE,
    batches_of,
    feed,
    new_ingest,
    prompt_of,
)
from warmpath.lab.bench.stand.pouring import slowest_beside

PODS = 64
PACE = 300_000
"""Blocks a second that events store or remove."""


def measure(*, quick: bool) -> list[Figure]:
    """Measure look-ups of prompts in process."""
    return [
        _cold(quick=quick),
        _long(quick=quick),
        _under_load(quick=quick),
        *pauses.measure(quick=quick),
        *kinds.measure_bytes(quick=quick),
    ]


def _cold(*, quick: bool) -> Figure:
    """Measure prompts of 10,000 ids that 8 of 64 pods hold, a random one for each look-up."""
    count, calls = (40, 200) if quick else (350, 2000)
    rng = Random(1)
    index = embedded_index(1 << 30)
    ingest, ranks = new_ingest(index, PODS)
    tree = peer.PeerIndex(BLOCK_SIZE) if peer.is_installed() else None
    prompts, packed = [], []
    for seed in range(count):
        prompt = prompt_of(seed, BLOCKS)[:TOKENS]
        holders = rng.sample(range(PODS), HOLDERS)
        prompts.append(prompt)
        packed.append(pack_tokens(prompt))
        hashes = tree.hashes(prompt) if tree else []
        for number in holders:
            rank = ranks[number]
            feed(rank, batches_of(seed, BLOCKS, events=1, each=BLOCKS))
            if tree:
                tree.store(number, hashes, [rng.getrandbits(63) for _ in hashes])
    which = [rng.randrange(count) for _ in range(calls)]
    ways: dict[str, Callable[[int], object]] = {
        "ours": lambda call: scores(ingest, packed[which[call]], BLOCKS)
    }
    if tree:
        theirs = tree
        for seed in range(0, count, 10):
            ours = sorted(scores(ingest, packed[seed], BLOCKS).values())
            assert ours == sorted(n * BLOCK_SIZE for n in theirs.scores(prompts[seed]).values())
        ways["peer"] = lambda call: theirs.scores(prompts[which[call]])
    taken = microseconds(ways, calls)
    return Figure(
        f"score {TOKENS:,} ids in process, {HOLDERS} holders of {PODS} pods, cold",
        statistics.median(taken["ours"]),
        "us",
        statistics.median(taken["peer"]) if tree else None,
        "Dynamo's hashes and find_matches",
        goal=0.25,
    )


def _long(*, quick: bool) -> Figure:
    """Measure a prompt 24 times as long that 96 pods hold."""
    ways: dict[str, Callable[[int], object]] = {}
    for name, tokens, pods in (("long", 240_000, 96), ("short", TOKENS, HOLDERS)):
        blocks = tokens // BLOCK_SIZE
        index = embedded_index(1 << 30)
        ingest, ranks = new_ingest(index, pods)
        payloads = list(batches_of(1, blocks, events=1, each=1000))
        for rank in ranks:
            feed(rank, payloads)
        packed = pack_tokens(prompt_of(1, blocks))
        assert len(scores(ingest, packed, blocks)) == pods

        def look(
            _: int, ingest: Ingest = ingest, packed: bytes = packed, blocks: int = blocks
        ) -> object:
            return scores(ingest, packed, blocks)

        ways[name] = look
    taken = microseconds(ways, 20 if quick else 300)
    return Figure(
        "score 240,000 ids in process, held by 96 pods",
        statistics.median(taken["long"]),
        "us",
        statistics.median(taken["short"]),
        f"{TOKENS:,} ids, held by {HOLDERS} pods",
        goal=30,
    )


def _under_load(*, quick: bool) -> Figure:
    """Measure the p99 of look-ups while events pour in."""
    rounds, seconds = (3, 0.4) if quick else (9, 2.0)
    slowest = slowest_beside((0, PACE), rounds=rounds, seconds=seconds)
    return Figure(
        f"p99 of scoring in process while {PACE:,} blocks a second pour in",
        slowest[PACE],
        "us",
        slowest[0],
        "p99 while nothing does",
        goal=3,
    )
