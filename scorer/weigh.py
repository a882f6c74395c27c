"""Computes what a prompt costs on each rank, from the blocks that they hold; orders ranks by costs.

The functions over `Figures` are compiled by `router.pick.compiled`, and slow where they are not.
"""

import math
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from warmpath.scorer.candidate import Request
from warmpath.scorer.columns import (
    ARRIVING,
    CACHED,
    DISPLACED,
    IN_FLIGHT,
    PREFILL,
    Column,
    Columns,
    Costs,
    Figures,
)
from warmpath.scorer.match import Match
from warmpath.scorer.strategies import WEIGHTS

TRUST: Mapping[str, float] = MappingProxyType(
    {"exact": 1.0, "degraded": 0.8, "cold": 0.8, "stale": 0.5}
)
"""The share of a rank's known blocks that counts, by its trust.

These are estimates, not measurements: after a gap most of a large cache is still there; after the
stream broke, less and less, and after `pick.assumed-seconds` nothing counts.
"""

ASSUMED = 0.8
"""The share of assumed blocks that counts, since some are evicted by now."""

Held = NDArray[np.float64]
"""The tokens of a prompt that ranks hold: a row for each kind of holder, with these columns."""
KNOWN, ON_THEIR_WAY, SENT, SLOWER, COUNTED = range(5)
"""Leading tokens known from events, arriving, and assumed; the tokens in slower tiers, each times the
share of its prefill that a load takes; and the share of known tokens that counts (TRUST)."""
COLD = (0.0, 0.0, 0.0, 0.0, 1.0)
"""The row for ranks that hold nothing: their trust does not matter."""

BASE, PER_TOKEN, PER_CONTEXT, PER_PULLED = range(4)
"""The constants of a `PrefillModel` in an array."""


def held_of(match: Match, trust: str) -> tuple[float, float, float, float, float]:
    """Return the row of `Held` for a rank; `trust` is the level of its trust (a key of TRUST)."""
    slower = 0.0
    for tier, tokens in match.tokens_by_tier.items():
        slower += tokens * (1.0 - WEIGHTS[tier])
    return match.known_tokens, match.arriving_tokens, match.assumed_tokens, slower, TRUST[trust]


def warm(
    figures: Figures, held: Held, kinds: NDArray[np.intp], tokens: float, model: Column
) -> None:
    """Fill in the tokens that count as cached, the prefill's seconds, and those that arrivals save.

    `kinds` are the rows of `held` by rank, since many hold the same. Fewer tokens count than the
    prompt's `tokens`, as the last one is always computed. A rank pulls the beginning from the exact rank
    that holds most of it, and computes the rest, where that is faster.
    """
    base, per_token, per_context, per_pulled = (
        model[BASE], model[PER_TOKEN], model[PER_CONTEXT], model[PER_PULLED],
    )  # fmt: skip
    most, given = max(0.0, tokens - 1.0), 0.0
    for at in range(len(kinds)):
        kind = kinds[at]
        known = min(held[kind, KNOWN], most) * held[kind, COUNTED]
        assumed = held[kind, SENT] * ASSUMED
        believed = max(held[kind, ON_THEIR_WAY], assumed)
        cached = float(math.floor(min(max(known, believed), most)))
        left = tokens - cached
        seconds = base + left * (per_token + per_context * (cached + left / 2))
        if known >= believed:
            seconds += held[kind, SLOWER] * per_token
        without = float(math.floor(min(max(known, assumed), most)))
        figures[ARRIVING, at] = 0.0
        if without < cached:
            left = tokens - without
            alone = base + left * (per_token + per_context * (without + left / 2))
            figures[ARRIVING, at] = max(0.0, alone - seconds)
        figures[CACHED, at] = cached
        figures[PREFILL, at] = seconds
        if held[kind, COUNTED] == 1.0:
            given = max(given, min(held[kind, KNOWN], most))
    if per_pulled == math.inf:
        return
    left = tokens - given
    rest = base + left * (per_token + per_context * (given + left / 2))
    for at in range(len(kinds)):
        pulled = given - figures[CACHED, at]
        if pulled > 0:
            figures[PREFILL, at] = min(figures[PREFILL, at], rest + pulled * per_pulled)


def displace(figures: Figures, free: Figures, tokens: float) -> None:
    """Fill in the seconds of prefill of the wanted tokens that a prompt of `tokens` displaces.

    `free` has for each rank the tokens of its cache that are not wanted, beyond which new tokens
    displace wanted ones, and the share of the wanted ones that the cache holds; it may be empty.
    Displaced tokens take as long as those that displace them.
    """
    for at in range(figures.shape[1]):
        figures[DISPLACED, at] = 0.0
        if free.size:
            new = tokens - figures[CACHED, at]
            over = min(new - free[0, at], new)
            if over > 0:
                figures[DISPLACED, at] = figures[PREFILL, at] * over / new * free[1, at]


MOVE_SECONDS_PER_TOKEN = 4e-6
"""Seconds to move a token's KV: 320 KB (a 70B model with grouped queries) at 80 GB/s."""
STEPS = 300
"""Assumed decode steps of a request, since its real length is not known. The mean of the public
conversation trace is 343."""
STEP_SECONDS = 0.15e-3
"""Seconds that each further sequence adds to a decode step."""
STEP_SECONDS_PER_TOKEN = 35e-9
"""Seconds that each token of context adds to a decode step; as above, of a 70B model on four GPUs."""
FULL = 0.9
"""Share of the KV cache in use above which preemption is likely."""


def decode_costs(request: Request, columns: Columns) -> Costs:
    """Return each candidate's cost of decoding, in seconds, if another one does the prefill.

    A candidate receives the part of the prompt's KV cache that it lacks, and then reads the KV of all
    its sequences at each step. One whose KV usage is above FULL would have to preempt, which costs up to
    a whole prefill.
    """
    load = columns.load
    step = load.in_flight * STEP_SECONDS + load.context_tokens * STEP_SECONDS_PER_TOKEN
    full = np.maximum(0.0, load.kv_usage - FULL) / (1 - FULL)
    return Costs.sum_of(
        ("move", (request.prompt_tokens - columns.cached) * MOVE_SECONDS_PER_TOKEN),
        ("decode", step * STEPS),
        ("full", full * columns.prefill),
    )


DIGITS = 30
"""Number of binary digits of costs that are compared: nine decimal digits."""
WHOLE = 1.5 * 2**52
"""A number that, added and subtracted, leaves the nearest whole number of a lesser one."""

DRAW, ROUNDED = range(2)
"""Rows of the keys by which candidates are put in order, beside their figures."""


def rounded(cost: float) -> float:
    """Return a cost rounded to nine decimal digits, so that equal sums in another order are equal."""
    mantissa, exponent = math.frexp(cost)
    return math.ldexp(math.ldexp(mantissa, DIGITS) + WHOLE - WHOLE, exponent - DIGITS)


def put_in_order(figures: Figures, keys: NDArray[np.float64], order: NDArray[np.int64]) -> None:
    """Put the candidates' indices into `order[0]`, best first: by cost, with all policies' tie rule.

    Costs are those in `keys[ROUNDED]`. Among equal ones fewer requests in flight come first, then more
    cached tokens, then the lesser of `keys[DRAW]`, which is random. The order in which candidates were
    given never matters. `order[1]` is room for the work.
    """
    number = order.shape[1]
    for at in range(number):
        order[0, at] = at
    width = 1
    while width < number:
        for start in range(0, number, 2 * width):
            middle, end = min(start + width, number), min(start + 2 * width, number)
            left, right = start, middle
            for to in range(start, end):
                is_right = left == middle
                if not is_right and right < end:
                    one, other = order[0, left], order[0, right]
                    if keys[ROUNDED, one] != keys[ROUNDED, other]:
                        is_right = keys[ROUNDED, other] < keys[ROUNDED, one]
                    elif figures[IN_FLIGHT, one] != figures[IN_FLIGHT, other]:
                        is_right = figures[IN_FLIGHT, other] < figures[IN_FLIGHT, one]
                    elif figures[CACHED, one] != figures[CACHED, other]:
                        is_right = figures[CACHED, other] > figures[CACHED, one]
                    else:
                        is_right = keys[DRAW, other] < keys[DRAW, one]
                if is_right:
                    order[1, to] = order[0, right]
                    right += 1
                else:
                    order[1, to] = order[0, left]
                    left += 1
        for at in range(number):
            order[0, at] = order[1, at]
        width *= 2
