"""Fleets over time: what picks predict is delivered, pods that are alike share what comes, silent ones are avoided."""

from collections.abc import Iterator, Sequence
from random import Random

import msgspec
import pytest

from tests.router.consistent import check
from tests.router.pick.picker_parts import BLOCK, KeyedPrompt, Parts, first
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
from warmpath.router.load.engine_metrics import Observed
from warmpath.router.load.stuck import ENOUGH
from warmpath.router.pick.report import Report, carry_out
from warmpath.router.pods.table import Pod
from warmpath.router.prompt.token_prompt import TokenPrompt
from warmpath.scorer.policy import policy_names
from warmpath.scorer.prefill import PrefillModel

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


BLOCKS = 100


def picks(parts: Parts, speeds: Sequence[float], requests: int, spread: float) -> list[int]:
    """Serve requests with nothing in common, each once the one before is over; count them by pod.

    `speeds` are the pods' seconds of prefill over the model's; each prefill is off by `spread`, as one
    standard deviation of its logarithm.
    """
    rng, model, found = Random(7), PrefillModel(), [0] * len(speeds)
    picker = parts.picker
    begin = len(parts.placed)
    for number in range(begin, begin + requests):
        prompt = KeyedPrompt(range(number * BLOCKS + 1, (number + 1) * BLOCKS + 1))
        name, choice = parts.choose(prompt=prompt)
        pod = int(first(choice)[-1])
        found[pod] += 1
        parts.now += speeds[pod] * model.seconds(prompt.tokens, 0) * rng.lognormvariate(0, spread)
        picker.first_token(name, parts.now)
        parts.now += 0.3
        picker.found_cached(name, 0, prompt.tokens)
        picker.ended(name, "finished", parts.now)
        parts.now += 1.0
    return found


@pytest.mark.parametrize("spread", [0.0, 0.05, 0.4])
@pytest.mark.parametrize("speed", [0.1, 0.5, 1.0, 3.0])
def test_pods_that_are_alike_share_what_comes(speed: float, spread: float) -> None:
    # 100 each; by the draw alone, 126 are three standard deviations.
    assert min(picks(Parts(pods=4), [speed] * 4, 400, spread)) >= 70


def test_pods_that_differ_by_a_few_per_cent_share_what_comes() -> None:
    assert min(picks(Parts(pods=2), [1.0, 1.07], 200, 0.1)) >= 75


def test_a_pod_that_was_not_measured_yet_is_no_dearer_than_the_others() -> None:
    parts = Parts(pods=3)
    picks(parts, [0.5] * 3, 100, 0.1)
    parts.pods.append(parts.pod("pod-3"))
    assert picks(parts, [0.5] * 4, 100, 0.1)[3] >= 15


def test_a_pod_that_is_twice_as_fast_gets_what_comes_and_the_slow_one_is_tried_again() -> None:
    parts = Parts(pods=2)
    picks(parts, [1.0, 2.0], 100, 0.1)
    assert picks(parts, [1.0, 2.0], 200, 0.1)[0] >= 180
    # The slow one is mended, and nobody says so.
    picks(parts, [1.0, 1.0], 1500, 0.1)
    assert min(picks(parts, [1.0, 1.0], 200, 0.1)) >= 70


def heard() -> tuple[Parts, Iterator[KeyedPrompt]]:
    """Return two pods whose answers are known to be reported, and prompts that neither holds."""
    parts, other = Parts(pods=2), prompts()
    for _ in range(2 * ENOUGH):
        parts.served(0.1, prompt=next(other))
    return parts, other


def prompts() -> Iterator[KeyedPrompt]:
    number = 1000
    while True:
        number += 1000
        yield KeyedPrompt(range(number, number + 4))


@pytest.mark.parametrize("is_watched", [True, False])
def test_a_hung_engine_loses_its_hot_prefix_and_comes_back_when_it_answers(
    is_watched: bool,
) -> None:
    parts, other = heard()
    parts.warm(0, 100)
    sent: dict[str, list[str]] = {"pod-0": [], "pod-1": []}
    for _ in range(150):
        booking_id, choice = parts.choose(is_watched=is_watched)
        sent[first(choice)].append(booking_id)
        parts.now += 0.4
        for one in sent["pod-1"]:
            parts.answer(one)
        # Its metrics stand still, and say that it is idle.
        parts.loads.observe("pod-0", 0, Observed(1, 0, 0.1, parts.now))
        check(parts.picking)
    assert len(sent["pod-0"]) < 20
    for one in sent["pod-0"]:
        parts.answer(one)
    assert parts.served(0.1, prompt=next(other)) == "pod-0"


@pytest.mark.parametrize("is_refusal", [False, True])
def test_clients_that_leave_early_hide_no_hung_engine_and_its_refusals_make_none(
    is_refusal: bool,
) -> None:
    parts, _ = heard()
    for _ in range(20):
        booking_id, _ = parts.choose(pods=parts.pods[:1], is_watched=True)
        parts.now += 0.5
        carry_out(Report(booking_id, "failed", is_refusal=is_refusal), parts.picker, parts.now)
    assert set(parts.loads.avoided(parts.now)) == (set() if is_refusal else {("pod-0", 0)})


def test_picks_whose_callers_are_gone_before_their_answers_make_no_engine_stuck() -> None:
    parts, _ = heard()
    for _ in range(20):
        booking_id, _ = parts.choose(pods=parts.pods[:1], is_watched=True)
        placed = parts.picker.get(booking_id)
        assert placed is not None
        parts.now += 0.5
        parts.picker.cancel(booking_id, placed.number, parts.now)
    assert not parts.loads.avoided(parts.now)


@pytest.mark.parametrize("policy", policy_names())
def test_no_policy_picks_a_stuck_rank_while_there_is_another(policy: str) -> None:
    parts, other = heard()
    parts.warm(0, 100)
    parts.choose(pods=parts.pods[:1])
    parts.now += 10.0
    for _ in range(5):
        assert parts.served(0.1, prompt=next(other), policy=policy) == "pod-1"
    assert parts.served(0.1, prompt=next(other), policy=policy, pods=parts.pods[:1]) == "pod-0"


def test_where_all_ranks_are_stuck_all_take_part() -> None:
    parts, other = heard()
    for pod in parts.pods:
        parts.choose(prompt=next(other), pods=[pod])
    parts.now += 10.0
    assert len(parts.loads.avoided(parts.now)) == 2
    assert len(parts.weigh(prompt=next(other)).options) == 2


def test_a_stuck_pod_of_one_role_is_avoided_for_that_role() -> None:
    parts = Parts(pods=4, roles=["prefill", "prefill", "decode", "decode"])
    other = prompts()
    for _ in range(2 * ENOUGH):
        parts.served(0.1, prompt=next(other), disaggregated=True)
    parts.choose(prompt=next(other), disaggregated=True, pods=[parts.pods[0], parts.pods[2]])
    parts.now += 10.0
    choice = parts.weigh(prompt=next(other), disaggregated=True)
    assert [one.candidate.pod for one in choice.options] == ["pod-1"]
    assert [one.candidate.pod for one in choice.decode] == ["pod-3"]
