"""The compiled weighing finds the same as NumPy and plain objects would."""

import math
from random import Random
from typing import NamedTuple

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from warmpath.router.load.table import NEVER, SEEN, TURN
from warmpath.router.pick import compiled
from warmpath.router.pick.calibration import LEAST_DOUBT
from warmpath.router.pick.options import AVERAGE_CACHED, CHEAPEST, FULLEST, WARMEST
from warmpath.router.pick.traffic import FULL
from warmpath.scorer.candidate import Request
from warmpath.scorer.columns import (
    CACHED,
    COST,
    IN_FLIGHT,
    KV_USAGE,
    LOADS,
    TERMS,
    WAITING,
    Column,
    Columns,
    Costs,
    LoadColumns,
)  # fmt: skip
from warmpath.scorer.match import Match, Span
from warmpath.scorer.policies import warmpath
from warmpath.scorer.policies.warmpath import Warmpath
from warmpath.scorer.prefill import PrefillModel
from warmpath.scorer.weigh import ASSUMED, DRAW, held_of, rounded


class One(NamedTuple):
    """A rank with its load, what it holds, how its speed stands out, and its free room."""

    load: tuple[float, ...]
    match: Match
    trust: str
    apart: float
    doubt: float
    free: tuple[float, float]
    """Tokens of its cache that nobody wants, and the share of the wanted ones that it holds."""


NUMBERS = st.integers(0, 4) | st.integers(0, 100_000)
SECONDS = st.sampled_from([0.0, 0.5]) | st.floats(0, 1000, allow_subnormal=False)
LOADED = st.tuples(SECONDS, *[NUMBERS] * 6, st.floats(0, 1), NUMBERS, SECONDS)


def match(gpu: int, cpu: int, arriving: int, assumed: int) -> Match:
    stretches = (Span(0, gpu, "gpu"), Span(gpu, gpu + cpu, "cpu"))
    spans = tuple(one for one in stretches if one.stop > one.start)
    return Match(spans, 16, arriving_tokens=16 * arriving, assumed_tokens=16 * assumed)


BLOCKS = st.sampled_from([0, 3]) | st.integers(0, 70)
ONES = st.builds(
    One,
    LOADED,
    st.builds(match, BLOCKS, BLOCKS, BLOCKS, BLOCKS),
    st.sampled_from(["exact", "degraded", "cold", "stale"]),
    st.floats(-1, 1),
    st.floats(0.01, 1),
    st.tuples(st.just(math.inf) | st.integers(-2000, 4000), st.floats(0.1, 1)),
)
MODELS = st.builds(
    PrefillModel, per_pulled_token=st.just(math.inf) | st.floats(0, 1e-4, allow_subnormal=False)
)


def warmth(one: One, tokens: int, model: PrefillModel) -> tuple[float, float, float]:
    """Return the tokens that count as cached, the seconds of the others, and those saved by arrivals."""
    known_tokens, arriving, sent, slower, counted = held_of(one.match, one.trust)
    most = max(0, tokens - 1)
    known = min(known_tokens, most) * counted
    believed = max(arriving, sent * ASSUMED)
    cached = int(min(max(known, believed), most))
    loading = slower * model.per_token if known >= believed else 0.0
    prefill = model.seconds(tokens - cached, cached) + loading
    without = int(min(max(known, sent * ASSUMED), most))
    saved = model.seconds(tokens - without, without) - prefill
    return cached, prefill, max(0.0, saved) if without < cached else 0.0


def with_pull(
    prefill: Column, cached: Column, held: float, tokens: int, model: PrefillModel
) -> Column:
    """Return the seconds of each rank's prefill, with a pull where that is faster."""
    pulled = np.maximum(0.0, held - cached)
    if model.per_pulled_token == math.inf:
        return prefill
    seconds = model.seconds(tokens - held, held) + pulled * model.per_pulled_token
    faster: Column = np.where(pulled > 0, np.minimum(prefill, seconds), prefill)
    return faster


def costs(policy: Warmpath, request: Request, columns: Columns) -> Costs:
    """Return the default policy's costs."""
    rho = min(request.utilisation, warmpath.HIGHEST_UTILISATION)
    weight = policy.kappa * rho / (1 - rho) * (1 + policy.memory * request.full_share)
    load, in_flight, number = columns.load, columns.load.in_flight, len(columns.names)
    mean, mean_waiting = float(in_flight.sum()) / number, float(load.waiting.sum()) / number
    usual = (1 + mean_waiting) * (1 + max(0.0, mean - mean_waiting))
    slowness, long_share = columns.slowness, request.long_share
    unlike = float(np.mean(np.maximum(slowness, 1 / slowness) > warmpath.UNLIKE))
    least = warmpath.UNLIKE_RARITY * unlike * (1 - long_share)
    rarity = max(1 - long_share / warmpath.MOST_LONG, least)
    wait = load.wait - policy.sharing * np.minimum(columns.arriving, load.wait)
    crowd = (1 + load.waiting) * (1 + np.maximum(0.0, in_flight - load.waiting)) / usual
    others = weight * columns.prefill / slowness * crowd ** (policy.g * rarity)
    displaced = policy.displacing * columns.displaced
    terms = wait, columns.prefill, others, policy.mu * in_flight, displaced
    return Costs.sum_of(*zip(warmpath.NAMES, terms, strict=True))


@given(
    st.lists(ONES, min_size=1, max_size=12),
    st.integers(0, 3000),
    MODELS,
    st.floats(0, 1),
    st.floats(0, 1),
    st.sampled_from([0.0, 0.05, 1.0]),
    st.randoms(use_true_random=False),
)
def test_all_figures_and_the_order_are_those_of_numpy(
    ones: list[One],
    tokens: int,
    model: PrefillModel,
    busy: float,
    weight: float,
    long_share: float,
    rng: Random,
) -> None:
    number, policy, usual, now = len(ones), Warmpath(), 1.3, 50.0
    rows = np.array(rng.sample(range(20), number), np.intp)
    table = np.zeros((SEEN + 1, 20))
    table[TURN] = NEVER
    for row, one in zip(rows, ones, strict=True):
        table[:LOADS, row] = one.load
    far = np.array([(at, one.apart, one.doubt) for at, one in enumerate(ones)])
    held = np.array([held_of(one.match, one.trust) for one in ones], np.float64)
    free, kept = np.array([one.free for one in ones], np.float64).T
    draws = np.array([rng.random() for _ in ones])
    keys, order, found = (
        np.empty((2, number)),
        np.empty((2, number), np.int64),
        np.empty(compiled.FOUND),
    )
    keys[DRAW] = draws
    figures = np.empty((TERMS + len(warmpath.NAMES), number))
    constants = np.array([model.base, model.per_token, model.per_context, model.per_pulled_token])
    rest = (
        table, rows, held, np.arange(number), far, np.empty(0), np.stack((free, kept)), keys, order, constants, policy.options, found, now,
        float(tokens), usual, busy, 0.25, weight, long_share,
    )  # fmt: skip
    compiled.weigh(compiled.ALL, figures, *rest)

    loads = np.array([one.load for one in ones], np.float64).T
    shares = np.mean(loads[WAITING] != 0), np.mean(loads[KV_USAGE] >= FULL)
    utilisation = busy + weight * (shares[0] - busy)
    full_share = 0.25 + weight * (shares[1] - 0.25)
    cached, prefill, arriving = np.array([warmth(one, tokens, model) for one in ones], np.float64).T
    exact = [one.match.known_tokens for one in ones if one.trust == "exact"]
    most = min(max(exact, default=0), max(0, tokens - 1))
    prefill = with_pull(prefill, cached, most, tokens, model)
    share = max(LEAST_DOUBT, 1 - utilisation) ** 2
    slowness = np.array(
        [
            math.exp(one.apart * (1 - share * one.doubt / one.apart**2))
            if one.apart**2 > share * one.doubt
            else 1.0
            for one in ones
        ]
    )
    factor = usual * slowness
    new = tokens - cached
    share_of = np.clip(np.minimum(new - free, new), 0.0, None) / np.maximum(new, 1.0)
    displaced = prefill * factor * share_of * kept
    columns = Columns(
        [("", 0)] * number, LoadColumns(*loads), cached, prefill * factor, slowness,
        arriving * factor, displaced, lambda: cached,
    )  # fmt: skip
    request = Request(tokens, utilisation, "", long_share, full_share)
    cost, terms = costs(policy, request, columns)
    assert figures[:LOADS].tolist() == loads.tolist()
    assert figures[CACHED].tolist() == cached.tolist()
    expected = [*columns[2:7], factor, cost, *(term for _, term in terms)]
    np.testing.assert_allclose(figures[LOADS:], np.array(expected), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(
        found[:AVERAGE_CACHED], (*shares, utilisation, full_share), rtol=1e-12
    )
    by = [rounded(one) for one in figures[COST]]
    right = np.lexsort((draws, -cached, loads[IN_FLIGHT], by)).tolist()
    assert order[0].tolist() == right
    assert found[AVERAGE_CACHED] == cached.sum() / number
    assert found[CHEAPEST] == figures[LOADS + 1].argmin()
    held_there = [one.match.matched_tokens for one in ones]
    known = [one.match.known_tokens for one in ones]
    assert found[WARMEST] == max(right, key=lambda at: held_there[at])
    assert found[FULLEST] == max(right, key=lambda at: known[at])

    # The policy itself, for whoever has columns.
    by_columns = policy.costs(request, columns, rng)
    np.testing.assert_allclose(by_columns.cost, cost, rtol=1e-12, atol=1e-12)
