"""Token ids to scores in process: the index against the peer's, and against itself under load."""

import gc
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

import numpy as np

from bench import peer
from bench.figure import Figure
from bench.fleet import BLOCK_SIZE, MODEL, batches_of, feed, new_ingest, prompt_of
from indexer.embedded import embedded_index
from indexer.ingest import Ingest
from indexer.key import Chain, Keyspace
from indexer.rank_ingest import RankIngest
from indexer.token import pack_tokens
from router.loop import SWITCH_SECONDS

TOKENS = 10_000
BLOCKS = TOKENS // BLOCK_SIZE
PODS = 64
HOLDERS = 8
PACE = 300_000
"""Blocks a second that pour in."""
ROOT = Keyspace(MODEL, BLOCK_SIZE).root()


def measure(*, quick: bool) -> list[Figure]:
    """Measure look-ups of prompts in process."""
    return [_cold(quick=quick), _long(quick=quick), _under_load(quick=quick)]


@contextmanager
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def chain_of(packed: bytes, blocks: int) -> Chain:
    """Return the chain of a prompt's first blocks."""
    return Chain(ROOT, packed, BLOCK_SIZE, blocks)


def scores(ingest: Ingest, packed: bytes, blocks: int) -> dict[tuple[str, int], int]:
    """Return how many leading tokens of a prompt each rank holds."""
    found = ingest.match(chain_of(packed, blocks), leading=True)
    return {(place.pod, place.rank): stop * BLOCK_SIZE for place, start, stop in found if not start}


def microseconds(ways: dict[str, Callable[[int], object]], calls: int) -> dict[str, list[float]]:
    """Time each way once a call, in turn; return all times in microseconds, sorted."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    with _no_collector():
        for call in range(calls):
            for name, way in ways.items():
                begun = time.perf_counter()
                way(call)
                taken[name].append((time.perf_counter() - begun) * 1e6)
    return {name: sorted(times) for name, times in taken.items()}


def _cold(*, quick: bool) -> Figure:
    """Measure prompts of 10,000 ids that 8 of 64 pods hold, each time another one."""
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
    """Measure the slowest of a hundred look-ups while events pour in beside them."""
    rounds, seconds = (3, 0.4) if quick else (9, 2.0)
    index = embedded_index(1 << 30)
    ingest, ranks = new_ingest(index, HOLDERS + 1)
    packed = []
    for seed in range(50):
        for rank in ranks[:HOLDERS]:
            feed(rank, batches_of(seed, BLOCKS, events=1, each=BLOCKS))
        packed.append(pack_tokens(prompt_of(seed, BLOCKS)))
    messages = _messages(seconds * 1.2)
    idle, loaded = [], []
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        for _ in range(rounds):
            idle.append(_slowest(ingest, packed, seconds))
            pouring = threading.Event()
            writer = threading.Thread(target=_pour, args=(ranks[HOLDERS], messages, pouring))
            writer.start()
            loaded.append(_slowest(ingest, packed, seconds))
            pouring.set()
            writer.join()
    finally:
        sys.setswitchinterval(before)
    return Figure(
        f"p99 of scoring in process while {PACE:,} blocks a second pour in",
        statistics.median(loaded),
        "us",
        statistics.median(idle),
        "p99 while nothing does",
        goal=3,
    )


def _messages(seconds: float) -> list[bytes]:
    """Return batches of 8 events of 8 blocks that store prompts, and remove them again."""
    prompts = int(PACE * seconds) // BLOCKS + 1
    return [
        payload
        for seed in range(prompts)
        for payload in batches_of(10_000 + seed, BLOCKS, events=8, each=8, removes=True)
    ]


def _pour(rank: RankIngest, messages: list[bytes], ended: threading.Event) -> None:
    begun = time.perf_counter()
    for number, payload in enumerate(messages):
        if ended.is_set():
            return
        rank.live_many([("", rank.stream.expected, payload)])
        ahead = begun + number * 64 / PACE - time.perf_counter()
        if ahead > 0:
            time.sleep(ahead)


def _slowest(ingest: Ingest, packed: list[bytes], seconds: float) -> float:
    """Return the p99 of looking prompts up for some time, in microseconds."""
    taken = []
    with _no_collector():
        ended = time.perf_counter() + seconds
        number = 0
        while (begun := time.perf_counter()) < ended:
            scores(ingest, packed[number % len(packed)], BLOCKS)
            taken.append(time.perf_counter() - begun)
            number += 1
            time.sleep(0.0003)
    return float(np.percentile(taken, 99)) * 1e6
