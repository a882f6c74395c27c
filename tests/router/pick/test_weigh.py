"""What is weighed of the ranks that could take a request, and of its model's traffic of late; which is the best."""

from copy import deepcopy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.router.pick.picker_parts import BLOCK, KeyedPrompt, Parts, SizedPrompt, first
from tests.scorer.ranked import columns_of
from warmpath.indexer.trust import Level
from warmpath.router.load.engine_metrics import Observed
from warmpath.router.pick.options import Option
from warmpath.router.pick.traffic import (
    FULL,
    LEAST_PREFILLS,
    LONG,
    PREFILLS,
    SECONDS,
    Shares,
    Traffic,
    shares_of,
)
from warmpath.router.pods.table import Status
from warmpath.scorer.candidate import Load


def test_what_a_pod_held_counts_in_part_after_its_stream_broke_and_not_for_ever() -> None:
    parts = Parts(pods=1)
    parts.warm(0, 100)
    rank = parts.rank(0)
    rank.disconnected("cut")
    parts.now += 2
    parts.ingest.tick(100)
    assert rank.trust.level is Level.STALE
    assert parts.weigh().options[0].candidate.cached == 800
    parts.now += 601
    assert parts.weigh().options[0].candidate.cached == 0


def test_a_hit_in_a_shared_tier_counts_for_all_alike() -> None:
    parts = Parts(shared_tiers=frozenset({"remote"}))
    parts.warm(1, 50, tier="remote")
    found = {one.match.known_tokens for one in parts.weigh().options}
    assert found == {800}
    assert {one.match.tokens_by_tier["remote"] for one in parts.weigh().options} == {800}


def test_the_best_other_holder_is_named_where_it_holds_more() -> None:
    parts = Parts(pods=2)
    parts.warm(0, 100)
    assert parts.weigh().source is None
    for _ in range(40):
        parts.picker.choose(parts.ask(KeyedPrompt(range(9000, 9050)), pods=parts.pods[:1]), 1000.0)
    choice = parts.weigh()
    assert first(choice) == "pod-1"
    assert choice.source is not None
    assert choice.source.candidate.pod == "pod-0"


def test_an_engine_that_has_more_to_do_than_we_know_is_passed_over() -> None:
    parts = Parts(pods=2)
    parts.loads.observe("pod-0", 0, Observed(running=30, waiting=20, kv_usage=0.9, at=parts.now))
    assert first(parts.weigh()) == "pod-1"
    parts.now += 6
    assert {first(parts.weigh()) for _ in range(30)} == {"pod-0", "pod-1"}


def test_a_pod_that_is_picked_for_want_of_a_better_one_is_said_to_be_none() -> None:
    parts = Parts(pods=1)
    assert "not known to be healthy" not in str(parts.weigh().reason)
    parts.pods[0].status = Status(healthy=False, reason="no answer")
    assert str(parts.weigh().reason).endswith("It is not known to be healthy, and no other pod is.")


def test_an_idle_fleet_that_was_never_asked_is_not_taken_for_a_busy_one() -> None:
    assert Parts().weigh().utilisation == 0


def others_after(seconds: float, kv_usage: float, waiting: int = 0) -> float:
    """Return the cost to others on two busy engines with this much memory in use and such queues for so long."""
    parts = Parts(pods=2)
    for tenth in range(round(10 * seconds)):
        parts.now += 0.1
        used = kv_usage if tenth else 0.0
        for pod in parts.pods:
            parts.loads.observe(pod.id, 0, Observed(64, waiting, kv_usage=used, at=parts.now))
        parts.choose()
    return sum(map(others, parts.weigh().options))


def test_engines_with_little_memory_left_make_prefills_dear_to_others_after_a_while() -> None:
    assert others_after(1, 0.1) < others_after(1, 0.9) < 2 * others_after(1, 0.1)
    assert others_after(60, 0.9) > 5 * others_after(60, 0.1)


def test_full_batches_make_prefills_dear_to_others_as_well() -> None:
    assert others_after(60, 0.1, waiting=5) > 5 * others_after(60, 0.1)


def test_what_a_pod_without_events_holds_is_counted_in_the_blocks_of_its_model() -> None:
    parts = Parts(pods=2)
    for number in range(2):
        parts.size_blocks(number, 64)
    blind = parts.blind("blind")
    parts.weigh(pods=[*parts.pods, blind])
    parts.choose(prompt=SizedPrompt(641), pods=[blind])
    [told] = parts.weigh(policy="sglang", pods=[blind]).options
    assert dict(told.terms)["known"] == 640


def of_busy_pods(slow: float, busy: bool) -> tuple[Option, Option]:
    """Return two pods as they are weighed for a cold prompt, the second `slow` times as slow.

    Both have learned that. They have nothing to do, or one prefill each for a minute.
    """
    parts = Parts(pods=2)
    for number in range(80):
        prompt = KeyedPrompt(range(100 * number + 1, 100 * number + 101))
        pods = parts.pods[number % 2 : number % 2 + 1]
        name, choice = parts.choose(prompt=prompt, pods=pods)
        seconds = choice.options[0].candidate.prefill / choice.options[0].calibration
        parts.now += seconds * (slow if number % 2 else 1.0)
        parts.answer(name)
    waiting: list[str] = []
    for _ in range(60 if busy else 0):
        parts.now += 1.0
        short = KeyedPrompt(range(20_001, 20_003))
        before, waiting = waiting, [parts.choose(prompt=short, pods=[pod])[0] for pod in parts.pods]
        for name in before:
            parts.picker.ended(name, "failed", parts.now)
    prompt = KeyedPrompt(range(10_001, 10_101))
    first, second = sorted(parts.weigh(prompt=prompt).options, key=lambda one: one.candidate.pod)
    return first, second


def others(option: Option) -> float:
    return dict(option.terms)["others"]


def test_on_a_quiet_fleet_a_small_difference_of_speed_counts_nothing() -> None:
    usual, slower = of_busy_pods(1.07, busy=False)
    assert slower.candidate.prefill == pytest.approx(usual.candidate.prefill)


def test_a_difference_of_speed_counts_on_a_full_fleet_sooner_but_costs_others_nothing() -> None:
    usual, slower = of_busy_pods(1.3, busy=False)
    assert slower.candidate.prefill == pytest.approx(usual.candidate.prefill)
    usual, slower = of_busy_pods(1.3, busy=True)
    assert 1.01 < slower.candidate.prefill / usual.candidate.prefill < 1.3
    assert others(slower) == pytest.approx(others(usual), rel=0.01), "its seconds weigh many times"


def test_a_slow_pod_of_a_full_fleet_takes_its_time_and_costs_others_no_more() -> None:
    usual, slow = of_busy_pods(3.0, busy=True)
    assert slow.candidate.prefill == pytest.approx(3.0 * usual.candidate.prefill, rel=0.05)
    assert others(slow) == pytest.approx(others(usual), rel=0.01)


def prefills(trust: Level, **options: object) -> list[float]:
    """Return the seconds of PROMPT's prefill on a pod that holds 90 blocks, and on a cold one."""
    parts = Parts(pods=2, **options)
    parts.warm(0, blocks=90, trust=trust)
    return [one.candidate.prefill for one in parts.weigh().options]


def test_a_cold_pod_pulls_what_an_exact_one_holds() -> None:
    warm, cold = prefills(Level.EXACT, pull_token_seconds=1e-5)
    assert warm == prefills(Level.EXACT)[0]
    assert cold == pytest.approx(warm + 90 * BLOCK * 1e-5)


def test_nobody_counts_on_the_blocks_of_a_pod_whose_view_is_not_exact() -> None:
    assert prefills(Level.DEGRADED, pull_token_seconds=1e-5) == prefills(Level.DEGRADED)


def test_a_busy_holder_is_the_source_of_another_pods_prefill() -> None:
    parts = Parts(pods=2, pull_token_seconds=1e-6)
    parts.warm(0, blocks=90)
    for _ in range(3):
        parts.choose(prompt=KeyedPrompt(range(20_001, 20_101)), pods=parts.pods[:1])
    choice = parts.weigh()
    assert first(choice) == "pod-1"
    assert choice.source is not None
    assert choice.source.candidate.pod == "pod-0"


def after(*prefills: float) -> Traffic:
    traffic = Traffic()
    for number, prefill in enumerate(prefills):
        traffic.see(Shares(0.5, 0.0), prefill, float(number))
    return traffic


@given(st.lists(st.floats(0.0, 100.0), min_size=LEAST_PREFILLS, max_size=LEAST_PREFILLS + 50))
def test_prefills_are_long_by_the_mean_of_the_latest(prefills: list[float]) -> None:
    whole = [round(one * 1e9) for one in prefills]
    mean = sum(whole) / len(whole)
    share = sum(one > LONG * mean for one in whole) / len(whole)
    assert abs(after(*prefills).long_share - share) < 1e-9


def test_all_may_be_long_until_enough_are_known() -> None:
    assert Traffic().long_share == 1
    assert after(*[1.0] * (LEAST_PREFILLS - 1)).long_share == 1
    assert after(*[1.0] * LEAST_PREFILLS).long_share == 0


def test_prefills_of_long_ago_are_forgotten() -> None:
    earlier, latest = [1.0, 50.0] * PREFILLS, [1.0] * PREFILLS
    assert after(*earlier, *latest).long_share == 0


def average(traffic: Traffic, shares: tuple[float, float], now: float) -> Shares:
    """Return the average shares after these."""
    after = deepcopy(traffic)
    after.see(Shares(*shares), 1.0, now)
    return Shares(*after.before(now)[:2])


def test_averages_follow_the_shares_within_half_a_minute_or_so() -> None:
    traffic = Traffic()
    assert average(traffic, (0.25, 0.5), 0.0) == (0.25, 0.5), "the first one is all that is known"
    for second in range(60):
        share = 1.0 if second else 0.0
        traffic.see(Shares(share, 1 - share), 1.0, float(second))
    busy, full = average(traffic, (1.0, 0.0), 60.0)
    assert 0.9 < busy < 1.0
    assert 0.0 < full < 0.1
    assert average(traffic, (0.0, 1.0), 160.0) == (0.0, 1.0)


SHARES = st.builds(Shares, busy=st.floats(0, 1), full=st.floats(0, 1))


@given(st.lists(st.tuples(st.floats(0, 2 * SECONDS), SHARES), min_size=1, max_size=20))
def test_an_average_lies_between_the_shares_that_were_seen(
    steps: list[tuple[float, Shares]],
) -> None:
    traffic, now = Traffic(), 0.0
    for seconds, shares in steps:
        now += seconds
        traffic.see(shares, 1.0, now)
    found = average(traffic, steps[-1][1], now)
    for share, seen in zip(found, zip(*(shares for _, shares in steps), strict=True), strict=True):
        assert min(seen) - 1e-9 <= share <= max(seen) + 1e-9


def test_a_rank_is_busy_with_a_prefill_to_do_and_full_without_memory_left() -> None:
    loads = [
        Load(waiting=1, in_flight=1),
        Load(in_flight=9, kv_usage=FULL),
        Load(waiting=2, in_flight=2, kv_usage=1.0),
        Load(kv_usage=FULL - 0.01),
        Load(),
    ]
    assert shares_of(np.array([*columns_of(loads)])) == (0.4, 0.4)
