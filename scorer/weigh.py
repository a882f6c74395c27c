"""Computes what a prompt costs on each rank, from the blocks that they hold; orders ranks by costs."""

from collections.abc import Mapping, Sequence
from itertools import repeat, starmap
from random import Random
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from warmpath.scorer.candidate import Request
from warmpath.scorer.columns import Column, Columns, Costs
from warmpath.scorer.match import Match
from warmpath.scorer.prefill import PrefillModel
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


class Warmth(NamedTuple):
    """The tokens of a prompt that count as cached on a rank, and the time of the rest."""

    cached: int
    """Tokens that count as cached; less than the whole prompt, as the last one is always computed."""
    prefill: float
    """Seconds for computing the tokens that do not count, and for loads from slower tiers."""
    arriving: float = 0.0
    """Seconds of prefill that arriving blocks save."""


def warmth(match: Match, trust: str, prompt_tokens: int, model: PrefillModel) -> Warmth:
    """Return how many of a prompt's tokens count as cached on a rank, and the seconds for the rest.

    `match` are the blocks that the rank holds, `trust` is the level of its trust (a key of TRUST), and
    `model` says how fast the rank computes.
    """
    most = max(0, prompt_tokens - 1)
    known = min(match.known_tokens, most) * TRUST[trust]
    believed = max(match.arriving_tokens, match.assumed_tokens * ASSUMED)
    loading = 0.0
    if known >= believed:
        for tier, tokens in match.tokens_by_tier.items():
            loading += tokens * (1.0 - WEIGHTS[tier]) * model.per_token
    cached = int(min(max(known, believed), most))
    prefill = model.seconds(prompt_tokens - cached, cached) + loading
    without = int(min(max(known, match.assumed_tokens * ASSUMED), most))
    if without >= cached:
        return Warmth(cached, prefill)
    arriving = max(0.0, model.seconds(prompt_tokens - without, without) - prefill)
    return Warmth(cached, prefill, arriving)


def with_pull(
    prefill: Column, cached: Column, held: float, prompt_tokens: int, model: PrefillModel
) -> Column:
    """Return the seconds of each rank's prefill, with a pull where that is faster.

    A rank pulls the beginning of a prompt from the rank that holds most of it, and computes the rest.
    `prefill` are the seconds without a pull, `cached` the tokens that count as cached on each rank,
    `held` those that the best holder gives.
    """
    pulled = np.maximum(0.0, held - cached)
    seconds = model.seconds(prompt_tokens - held, held) + pulled * model.per_pulled_token
    faster: Column = np.where(pulled > 0, np.minimum(prefill, seconds), prefill)
    return faster


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


def order_of(costs: Costs, columns: Columns, rng: Random) -> Sequence[int]:
    """Return the candidates' indices, best first: by cost, with the tie rule that all policies share.

    Among equal costs fewer requests in flight come first, then more cached tokens, then a random draw.
    The order in which candidates were given never matters.
    """
    # No loop of Python's own: there may be thousands of candidates.
    draws = np.fromiter(starmap(rng.random, repeat((), len(columns.names))), np.float64)
    keys = (draws, -columns.cached, columns.load.in_flight, rounded(costs.cost))
    order: list[int] = np.lexsort(keys).tolist()
    return order


def rounded(cost: Column) -> Column:
    """Return costs rounded to nine decimal digits, so that equal sums in another order are equal."""
    mantissa, exponent = np.frexp(cost)
    found: Column = np.ldexp(np.rint(np.ldexp(mantissa, DIGITS)), exponent - DIGITS)
    return found
