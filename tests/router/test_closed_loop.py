"""What picks predict is what engines deliver: requests one after the other, on caches too small for them."""

from random import Random

import pytest
from picker_parts import BLOCK, KeyedPrompt, Parts, first

from bench.simulate_router import Followed
from indexer.watched import WatchedRank
from simworker.cluster import VirtualCluster
from simworker.engine import Generation
from simworker.v1.assemble import build_engine, kv_cache_config
from simworker.v1.scheduler_config import SchedulerConfig

REQUESTS = 100
BLOCKS = 45
"""Of a pod: four prompts and a bit."""
DOCUMENTS = 12


class Loop:
    """Two pods of vLLM's scheduler, and a picker that hears of their events `delay` seconds late."""

    def __init__(self, delay: float) -> None:
        self.parts = Parts(pods=2)
        self.begun = self.parts.now
        self.followed = []
        for pod in self.parts.pods:
            [rank] = pod.ranks
            assert isinstance(rank, WatchedRank)
            self.followed.append(Followed(rank, BLOCK))
        scheduler = SchedulerConfig(max_model_len=1024, max_num_seqs=8, max_num_batched_tokens=1024)
        self.cluster = VirtualCluster(
            [build_engine(kv_cache_config(BLOCKS + 1, BLOCK), scheduler) for _ in range(2)],
            self.route,
            on_events=lambda _now, number, events: self.followed[number].take(events),
            event_delay=delay,
        )
        self.prompts: dict[str, KeyedPrompt] = {}
        self.bookings: dict[str, str] = {}
        self.gaps: list[int] = []
        """Of each request, tokens that were predicted cached and that the engine did not find."""

    def run(self, seconds: float) -> None:
        """Serve requests of documents with endings of their own, so far apart that they never meet."""
        rng = Random(5)
        arrivals = []
        for number in range(REQUESTS):
            document = 1000 * (1 + rng.randrange(DOCUMENTS))
            keys = [*range(document, document + 8), 10**6 + 2 * number, 10**6 + 2 * number + 1]
            name = str(number)
            self.prompts[name] = KeyedPrompt(keys)
            arrivals.append((number * seconds, self.generation(name, keys)))
        self.cluster.run(arrivals)

    def generation(self, name: str, keys: list[int]) -> Generation:
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
                self.gaps.append(placed.captured - generation.num_cached_tokens)
                parts.picker.told(booking, generation.num_cached_tokens, placed.prompt_tokens)
                parts.picker.ended(booking, "finished", parts.now)

        generation = Generation(
            name,
            range(len(keys) * BLOCK + 1),
            4,
            hear,
            prompt_hashes=[key.to_bytes(8, "big") for key in keys],
        )
        return generation

    def route(self, generation: Generation, now: float) -> int:
        self.parts.now = self.begun + now
        name = generation.request_id
        self.bookings[name], choice = self.parts.choose(prompt=self.prompts[name])
        return int(first(choice).removeprefix("pod-"))


@pytest.mark.parametrize("delay", [0.001, 0.15], ids=["before the end", "after the end"])
def test_nothing_is_predicted_that_events_told_is_gone(delay: float) -> None:
    loop = Loop(delay)
    loop.run(seconds=0.2)
    assert len(loop.gaps) == REQUESTS
    assert sum(one.captured > 0 for one in loop.parts.placed) >= 10
    assert [gap for gap in loop.gaps if gap] == []
