"""The published policies choose as they are described; every number here is worked out by hand."""

from collections.abc import Mapping
from functools import cache
from random import Random
from types import MappingProxyType

import numpy as np
import pytest

from tests.scorer.ranked import rank
from warmpath.scorer.candidate import Candidate, Load, Request
from warmpath.scorer.policy import Policy, make_policy, places


@cache
def usual(policy: str) -> Policy:
    return make_policy(policy)


def order(
    policy: str,
    *candidates: Candidate,
    options: dict[str, float] | None = None,
    tokens: int = 1000,
    utilisation: float = 0.0,
    affinity: str = "",
    seed: int = 0,
    known: Mapping[tuple[str, int], int] = MappingProxyType({}),
) -> list[str]:
    request = Request(tokens, utilisation, affinity)
    made = usual(policy) if options is None else make_policy(policy, options)
    return [one.candidate.pod for one in rank(made, request, candidates, Random(seed), known)]


def costs(policy: str, *candidates: Candidate, **options: float) -> dict[str, float]:
    ranked = rank(make_policy(policy, options), Request(1000, 0.5), candidates, Random(0))
    return {one.candidate.pod: one.cost for one in ranked}


def warm(pod: str, cached: int, load: Load | None = None, prefill: float = 0.0) -> Candidate:
    return Candidate(pod, 0, cached, prefill, load or Load())


def booked(pod: str, uncached: int, cached: int = 0, in_flight: int = 0) -> Candidate:
    return warm(pod, cached, Load(waiting_uncached_tokens=uncached, in_flight=in_flight))


def queued(
    pod: str, prompt: int, cached: int = 0, waiting: int = 0, in_flight: int = 0
) -> Candidate:
    load = Load(waiting_prompt_tokens=prompt, waiting=waiting, in_flight=in_flight)
    return warm(pod, cached, load)


def test_places_count_distinct_keys_from_the_least() -> None:
    first, second = np.array([2.0, 1.0, 2.0, 1.0]), np.array([0.0, 9.0, 0.0, 1e12])
    assert places(first, second).tolist() == [2, 0, 2, 1]


def test_random_looks_at_nothing() -> None:
    busy = Load(9.0, 9, 9, 9000, 9000, 9000, 9, 0.9, 9)
    candidates = warm("cold", 0, busy, 9.0), warm("idle", 999)
    firsts = [order("random", *candidates, seed=seed)[0] for seed in range(200)]
    assert 70 < firsts.count("cold") < 130


def test_round_robin_takes_the_one_picked_longest_ago() -> None:
    last = {"a": 12, "b": 10, "c": 11}
    for pick, expected in enumerate("bcabca", start=13):
        candidates = [warm(pod, 0, Load(last_pick=at)) for pod, at in last.items()]
        assert order("round-robin", *candidates)[0] == expected
        last[expected] = pick


def test_round_robin_takes_one_never_picked_first_and_tells_late_picks_apart() -> None:
    candidates = [warm(pod, 0, Load(last_pick=at)) for pod, at in (("a", 2**60), ("b", 0))]
    assert order("round-robin", *candidates) == ["b", "a"]
    candidates = [warm(pod, 0, Load(last_pick=2**60 + at)) for pod, at in (("a", 1), ("b", 0))]
    assert order("round-robin", *candidates) == ["b", "a"]


def test_least_load_counts_waiting_prompts_and_200_tokens_a_request() -> None:
    # 1000 + 0, 500 + 400, 0 + 1200
    candidates = queued("a", 1000), queued("b", 500, in_flight=2), queued("c", 0, 999, in_flight=6)
    assert costs("least-load", *candidates) == {"b": 900, "a": 1000, "c": 1200}
    assert order("least-load", *candidates, options={"per-request": 300}) == ["a", "b", "c"]


def test_session_hash_keeps_a_session_where_it_is() -> None:
    candidates = [warm(f"10.0.0.{n}", 0) for n in range(8)]
    for session in map(str, range(20)):
        first = order("session-hash", *candidates, affinity=session)
        assert order("session-hash", *candidates[::-1], affinity=session, seed=1) == first


def test_session_hash_moves_only_the_sessions_of_the_one_that_went() -> None:
    candidates = [warm(f"10.0.0.{n}", 0) for n in range(8)]
    gone = candidates[3].pod
    left = [one for one in candidates if one.pod != gone]
    moved = 0
    for session in map(str, range(400)):
        before = order("session-hash", *candidates, affinity=session)
        after = order("session-hash", *left, affinity=session)
        assert after == [pod for pod in before if pod != gone]
        moved += before[0] == gone
    assert 20 < moved < 90


def test_session_hash_gives_every_rank_a_place_of_its_own() -> None:
    candidates = [Candidate("pod", rank, 0, 0.0) for rank in range(4)]
    policy = make_policy("session-hash")
    winners = [
        rank(policy, Request(9, affinity=str(session)), candidates, Random(0))[0].candidate.rank
        for session in range(400)
    ]
    assert all(winners.count(rank) > 50 for rank in range(4))


def test_session_hash_without_a_session_leaves_it_to_the_tie_rule() -> None:
    candidates = queued("a", 0, in_flight=2), queued("b", 0, in_flight=1)
    assert order("session-hash", *candidates) == ["b", "a"]


def test_session_hash_takes_any_text_for_a_session() -> None:
    assert order("session-hash", warm("a", 0), affinity="\ud800 or any") == ["a"]


BAND = queued("too-busy", 35_001, 990), queued("edge", 35_000, 500), queued("same", 34_000, 500), queued("least", 10_000), queued("busiest", 90_000, 999)  # fmt: skip
"""The band ends at 1.5 x 10,000 + 20,000 = 35,000."""
MIXED = (
    warm("warm", 800, Load(queue=10, kv_usage=0.9)),  # 3 x 0.2 + 2 x 1.0 + 2 x 0.9 = 4.4
    warm("cold", 0, Load(queue=0, kv_usage=0.1)),  # 3 x 1.0 + 2 x 0.0 + 2 x 0.1 = 3.2
    warm("mid", 500, Load(queue=5, kv_usage=0.2)),  # 3 x 0.5 + 2 x 0.5 + 2 x 0.2 = 2.9
)
A_BLOCK = warm("first-block", 16, Load(queue=3)), warm("none", 0)
OVERLAP = (
    warm("a", 900, Load(waiting_uncached_tokens=500, context_tokens=4000)),  # 600 + 5000
    warm("b", 0, Load(waiting_uncached_tokens=0, context_tokens=3000)),  # 1000 + 4000
)
GATED = booked("warm", 201_000, 999), booked("idle", 990), booked("cold", 1010, 500)
"""14 s are 200,000 tokens: who has 1,000 booked or fewer may come in."""
AMPLE = booked("w", 9000, 900), booked("c", 6000, 0)
TILTED = queued("warm", 0, 999, in_flight=33), queued("cold", 0, 0, in_flight=0)
TALL = queued("warm", 0, 999, in_flight=440), queued("cold", 0, 0, in_flight=400)
"""440 - 400 > 32, and 440 is not above 1.1 x 400."""
STICKY = queued("warm", 9000, 999, waiting=4), queued("b", 10), queued("c", 5)


@pytest.mark.parametrize(
    ("policy", "candidates", "options", "expected"),
    [
        # The warmest, whatever waits there.
        ("longest-prefix", (queued("a", 10**7, 500), queued("b", 0, 499), queued("c", 5, 500)), None, "c a b"),
        ("weighted", MIXED, {"prefix": 9}, "warm mid cold"),
        ("weighted", A_BLOCK, None, "none first-block"),
        # With min-max a single block makes a whole score.
        ("weighted", A_BLOCK, {"min-max": 1}, "first-block none"),
        # 4 x 600 + 5000 = 7400 against 4 x 1000 + 4000 = 8000
        ("overlap-cost", OVERLAP, {"overlap-weight": 4}, "a b"),
        ("load-band", BAND, None, "same edge least too-busy busiest"),
        ("load-band", BAND, {"slack": 0}, "least"),
        ("load-band", BAND, {"factor": 9}, "busiest"),
        # It exploits where most is cached and loads are even: 79,999 < 2 x 10,000 + 60,000.
        ("preble", (queued("warm", 79_999, 501), queued("cold", 10_000, 500)), None, "warm cold"),
        # The least booked of the warm: 5001, 4200; the cold one at 201 takes no part.
        ("llmd-token", (booked("a", 5000, 999), booked("b", 4000, 800), booked("cold", 0, 799)), None, "b a cold"),
        # A cold one comes in that would start sooner by the gate, which counts in tokens.
        ("llmd-token", GATED, None, "idle warm cold"),
        ("llmd-token", GATED, {"gate": 13}, "cold"),
        ("llmd-token", GATED, {"gate": 15}, "warm"),
        ("llmd-token", AMPLE, {"gate": 3000.0, "per-token": 1.0}, "c"),
        ("llmd-token", AMPLE, {"gate": 3001.0, "per-token": 1.0}, "w"),
        # The shortest queue when out of balance: by how many, and by how many times.
        ("sglang", TILTED, None, "cold warm"),
        ("sglang", TILTED, {"abs": 33}, "warm cold"),
        ("sglang", TALL, {"rel": 1.2}, "warm cold"),
        ("sglang", TALL, {"rel": 1.05}, "cold warm"),
        # It stays until more than q wait.
        ("sticky-queue", STICKY, None, "warm c b"),
        ("sticky-queue", STICKY, {"q": 3}, "c b warm"),
    ],
)  # fmt: skip
def test_candidates_come_in_the_order_of_the_policys_description(
    policy: str, candidates: tuple[Candidate, ...], options: dict[str, float] | None, expected: str
) -> None:
    """Options by which one wins that others lose to are tried by their winner alone."""
    names = expected.split()
    assert order(policy, *candidates, options=options)[: len(names)] == names


IN_SECONDS = (
    warm("a", 0, Load(wait=0.5, context_tokens=10_000), prefill=0.1),  # 0.5 + 0.1 + 0.7
    warm("b", 0, Load(wait=0.0, context_tokens=10_000), prefill=0.5),  # 0.5 + 0.7
)
CROWDED = (
    warm("a", 0, Load(wait=1.0, in_flight=15), 0.5),  # (1 + 2 x 0.5 + 0.03) x 16^0.5 = 8.12
    warm("b", 0, Load(wait=6.0, in_flight=0), 0.5),  # 7
)


@pytest.mark.parametrize(
    ("policy", "candidates", "options", "expected"),
    [
        ("weighted", MIXED, {}, {"mid": 2.9, "cold": 3.2, "warm": 4.4}),
        ("overlap-cost", OVERLAP, {}, {"b": 5000, "a": 5600}),
        ("overlap-time", IN_SECONDS, {}, {"b": 1.2, "a": 1.3}),
        # (500 + 100) x 4 = 2400; (0 + 1000) x 2 = 2000
        ("lmetric", (booked("a", 500, 900, in_flight=3), booked("b", 0, 0, in_flight=1)), {}, {"b": 2000, "a": 2400}),
        # The least booked, where none is warm.
        ("llmd-token", (booked("a", 500, 700), booked("b", 0, 0)), {}, {"a": 800, "b": 1000}),
        ("study-mix", CROWDED, {"g": 0.5}, {"b": 7.0, "a": 8.12}),
        ("study-mix", CROWDED, {"g": 0.0}, {"a": 2.03, "b": 7.0}),
        ("study-mix", CROWDED, {"g": 0.0, "mu": 1.0}, {"a": 17.0, "b": 7.0}),
    ],
)  # fmt: skip
def test_costs_are_those_of_the_policys_description(
    policy: str,
    candidates: tuple[Candidate, ...],
    options: dict[str, float],
    expected: dict[str, float],
) -> None:
    assert costs(policy, *candidates, **options) == pytest.approx(expected)


def test_preble_explores_where_half_or_less_is_cached_or_loads_are_uneven() -> None:
    def with_booked(pod: str, prompt: int, cached: int, uncached: int, in_flight: int) -> Candidate:
        return warm(
            pod,
            cached,
            Load(
                waiting_prompt_tokens=prompt, waiting_uncached_tokens=uncached, in_flight=in_flight
            ),
        )

    half = with_booked("warm", 5000, 500, 1000, 0), with_booked("cold", 10_000, 0, 0, 10)
    # 70e-6 x 1500 = 0.105; 70e-6 x 1000 + 0.002 x 10 = 0.09
    assert costs("preble", *half) == pytest.approx({"cold": 0.09, "warm": 0.105})
    uneven = with_booked("warm", 80_000, 999, 2000, 0), with_booked("cold", 10_000, 0, 0, 0)
    assert order("preble", *uneven) == ["cold", "warm"]


def test_sglang_takes_the_smallest_tree_where_half_or_less_is_cached() -> None:
    large = {("a", 0): 900, ("b", 0): 5}
    assert order("sglang", warm("a", 501), warm("b", 0), known=large) == ["a", "b"]
    assert order("sglang", warm("a", 500), warm("b", 0), known=large) == ["b", "a"]
    busy, less_busy = (warm(pod, 0, Load(in_flight=number)) for pod, number in (("a", 2), ("b", 1)))
    assert order("sglang", busy, less_busy, known={("a", 0): 5, ("b", 0): 5}) == ["b", "a"]


def test_sglang_takes_the_smaller_tree_of_equally_warm_and_busy_candidates() -> None:
    trees = {("a", 0): 900, ("b", 0): 600, ("c", 0): 5}
    one, other, colder = warm("a", 600), warm("b", 600), warm("c", 599)
    assert order("sglang", one, other, colder, known=trees) == ["b", "a", "c"]
    busier = warm("b", 600, Load(in_flight=1))
    assert order("sglang", one, busier, colder, known=trees) == ["a", "b", "c"]


def test_study_mix_weighs_work_by_utilisation() -> None:
    candidates = warm("warm", 900, Load(wait=3.0), 0.1), warm("cold", 0, Load(), 2.0)
    # alpha 1: 3.1 against 2.0; alpha 1 + 0.6/0.4 = 2.5: 3.25 against 5.0
    assert order("study-mix", *candidates) == ["cold", "warm"]
    assert order("study-mix", *candidates, utilisation=0.6) == ["warm", "cold"]


def test_study_mix_caps_utilisation() -> None:
    policy = make_policy("study-mix", {"g": 0})
    ranked = rank(policy, Request(1000, 1.0), [warm("a", 0, Load(wait=1.0), 0.5)], Random(0))
    assert ranked[0].cost == pytest.approx(1.0 + 20 * 0.5)
