"""What picks predict is what engines deliver: requests one after the other, on caches too small for them."""

from collections.abc import Sequence
from random import Random

import msgspec
import pytest

from tests.router.pick.picker_parts import BLOCK, Parts, first
from warmpath.indexer.engines import vllm
from warmpath.indexer.follow.instance import RankSource
from warmpath.indexer.keys.key import pack_tokens
from warmpath.indexer.trust import Level
from warmpath.lab.simworker.engine import Generation
from warmpath.lab.simworker.v1.assemble import build_engine
from warmpath.lab.simworker.v1.cache.kv_cache_event import CacheEvent
from warmpath.lab.simworker.v1.engine import V1Engine
from warmpath.lab.simworker.v1.scheduling.scheduler_config import SchedulerConfig
from warmpath.lab.simworker.v1.specs.kv_cache_spec import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)
from warmpath.lab.simworker.virtual.cluster import VirtualCluster
from warmpath.router.pods.table import Pod
from warmpath.router.prompt.token_prompt import TokenPrompt

REQUESTS = 100
PROMPTS = 4
"""That fit into a pod, and a bit."""
DOCUMENTS = 12
SHAPE = {"block_size": BLOCK, "num_kv_heads": 1, "head_size": 1, "dtype": "float16"}


def engine(windows: int) -> V1Engine:
    """Return an engine with a full-attention cache and so many of a window of four blocks."""
    specs = [FullAttentionSpec(**SHAPE), *[SlidingWindowSpec(**SHAPE, sliding_window=64)] * windows]
    groups = [KVCacheGroupSpec([f"layer-{number}"], spec) for number, spec in enumerate(specs)]
    return build_engine(
        KVCacheConfig((10 * PROMPTS + 5) * len(groups) + 1, [], groups),
        SchedulerConfig(max_model_len=1024, max_num_seqs=8, max_num_batched_tokens=1024),
    )


class Loop:
    """Two pods of vLLM's scheduler, and a picker that gets their events `delay` seconds late."""

    def __init__(self, delay: float, windows: int) -> None:
        self.parts = Parts(pods=0)
        self.begun = self.parts.now
        names = ["pod-0", "pod-1"]
        sources = [RankSource(name, 0, "m", vllm.decode, has_replay=False) for name in names]
        self.ranks = [self.parts.ingest.add(source) for source in sources]
        for rank in self.ranks:
            rank.connected()
        self.parts.pods = [Pod(rank.pod, "", "m", (rank,)) for rank in self.ranks]
        self.batches = [0, 0]
        self.cluster = VirtualCluster(
            [engine(windows) for _ in names], self.route, on_events=self.take, event_delay=delay
        )
        self.bookings: dict[str, str] = {}
        self.gaps: list[int] = []
        """Of each request, tokens that were predicted cached and that the engine did not find."""

    def take(self, _now: float, pod: int, events: Sequence[CacheEvent]) -> None:
        payload = msgspec.msgpack.encode([0.0, events, 0])
        self.ranks[pod].live("", self.batches[pod], payload)
        self.batches[pod] += 1

    def run(self, seconds: float) -> None:
        """Serve requests of documents with endings of their own, so far apart that they never meet."""
        rng = Random(5)
        arrivals = []
        for number in range(REQUESTS):
            document, own = 1000 * (1 + rng.randrange(DOCUMENTS)), 100_000 + 1000 * number
            ids = [*range(document, document + 8 * BLOCK), *range(own, own + 2 * BLOCK + 1)]
            arrivals.append((number * seconds, self.generation(str(number), ids)))
        self.cluster.run(arrivals)

    def generation(self, name: str, ids: list[int]) -> Generation:
        waits = True

        def hear(_tokens: list[int], last: bool) -> None:
            nonlocal waits
            parts, booking = self.parts, self.bookings[name]
            parts.now = self.begun + self.cluster.now
            if waits:
                waits = False
                parts.picker.first_token(booking, parts.now)
            if last:
                placed = parts.picker.get(booking)
                assert placed is not None
                self.gaps.append(placed.expected.held - generation.num_cached_tokens)
                parts.picker.found_cached(
                    booking, generation.num_cached_tokens, placed.prompt_tokens
                )
                parts.picker.ended(booking, "finished", parts.now)

        generation = Generation(name, ids, 4, hear)
        return generation

    def route(self, generation: Generation, now: float) -> int:
        self.parts.now = self.begun + now
        prompt = TokenPrompt("m", pack_tokens(generation.prompt))
        self.bookings[generation.request_id], choice = self.parts.choose(prompt=prompt)
        return int(first(choice).removeprefix("pod-"))


@pytest.mark.parametrize("windows", [0, 1], ids=["full attention", "with a window"])
@pytest.mark.parametrize("delay", [0.001, 0.15], ids=["before the end", "after the end"])
def test_nothing_is_predicted_that_events_told_is_gone(delay: float, windows: int) -> None:
    loop = Loop(delay, windows)
    loop.run(seconds=0.2)
    assert len(loop.gaps) == REQUESTS
    assert all(rank.trust.level is Level.EXACT for rank in loop.ranks)
    assert sum(one.expected.held > 0 for one in loop.parts.placed) >= 30
    assert [gap for gap in loop.gaps if gap] == []
