"""Look-ups while events pour into the index."""

import statistics
import sys
import threading
import time
from collections.abc import Sequence

import numpy as np

from warmpath.indexer.embedded import embedded_index
from warmpath.indexer.follow.stream_source import RankIngest
from warmpath.indexer.keys.key import pack_tokens
from warmpath.indexer.ranks import Ingest
from warmpath.lab.bench.stand.look_up import BLOCKS, HOLDERS, no_collector, scores
from warmpath.lab.bench.stand.made_up_fleet import batches_of, feed, new_ingest, prompt_of
from warmpath.process.loop import SWITCH_SECONDS


def slowest_beside(paces: Sequence[int], *, rounds: int, seconds: float) -> dict[int, float]:
    """Return the p99 of scoring a prompt that 8 pods hold, in microseconds, by the pace of the events.

    These come from one more pod; the pace is blocks a second, stored or removed. Each p99 is the median
    of `rounds` measurements of `seconds` each.
    """
    index = embedded_index(1 << 30)
    ingest, ranks = new_ingest(index, HOLDERS + 1)
    packed = []
    for seed in range(50):
        for rank in ranks[:HOLDERS]:
            feed(rank, batches_of(seed, BLOCKS, events=1, each=BLOCKS))
        packed.append(pack_tokens(prompt_of(seed, BLOCKS)))
    messages = _messages(max(paces), seconds * 1.2)
    taken: dict[int, list[float]] = {pace: [] for pace in paces}
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        for _ in range(rounds):
            for pace in paces:
                ended = threading.Event()
                writer = threading.Thread(
                    target=_pour, args=(ranks[HOLDERS], messages, pace, ended)
                )
                writer.start()
                taken[pace].append(_slowest(ingest, packed, seconds))
                ended.set()
                writer.join()
    finally:
        sys.setswitchinterval(before)
    return {pace: statistics.median(each) for pace, each in taken.items()}


def _messages(pace: int, seconds: float) -> list[bytes]:
    """Return batches of 8 events of 8 blocks that store prompts and remove them again."""
    prompts = int(pace * seconds) // BLOCKS + 1
    return [
        payload
        for seed in range(prompts)
        for payload in batches_of(10_000 + seed, BLOCKS, events=8, each=8, removes=True)
    ]


def _pour(rank: RankIngest, messages: list[bytes], pace: int, ended: threading.Event) -> None:
    if not pace:
        return
    begun = time.perf_counter()
    for number, payload in enumerate(messages):
        if ended.is_set():
            return
        rank.live_many([("", rank.stream.expected, payload)])
        ahead = begun + number * 64 / pace - time.perf_counter()
        if ahead > 0:
            time.sleep(ahead)


def _slowest(ingest: Ingest, packed: list[bytes], seconds: float) -> float:
    """Return the p99 of looking prompts up for some time, in microseconds."""
    taken = []
    with no_collector():
        ended = time.perf_counter() + seconds
        number = 0
        while (begun := time.perf_counter()) < ended:
            scores(ingest, packed[number % len(packed)], BLOCKS)
            taken.append(time.perf_counter() - begun)
            number += 1
            time.sleep(0.0003)
    return float(np.percentile(taken, 99)) * 1e6
