"""The default policy: the least wait, prefill and delay of others, all in seconds."""

from dataclasses import dataclass
from random import Random
from typing import ClassVar

import numpy as np

from warmpath.scorer.candidate import Request
from warmpath.scorer.columns import (
    ARRIVING,
    COST,
    DISPLACED,
    IN_FLIGHT,
    LOADS,
    PREFILL,
    SLOWNESS,
    TERMS,
    WAIT,
    WAITING,
    Column,
    Columns,
    Costs,
    Figures,
)
from warmpath.scorer.policy import check_option

HIGHEST_UTILISATION = 0.95
"""Cap of the utilisation, since the weight of work diverges at 1."""
MOST_LONG = 0.1
"""Share of long prefills from which on crowding does not count on ranks of one speed."""
UNLIKE = 1.25
"""A rank is unlike the typical one if prefills take more than this times as long, or as short, there."""
UNLIKE_RARITY = 0.5
"""Least rarity of long prefills where all ranks are unlike the typical one."""

NAMES = ("wait", "prefill", "others", "decode", "displaced")
"""The names of the terms."""
KAPPA, EXPONENT, MEMORY, MU, SHARING, DISPLACING = range(6)
"""The policy's options in an array."""


@dataclass(frozen=True, slots=True)
class Warmpath:
    """The cost is in seconds, the sum of these terms.

    wait: until a new prefill would start. It is reduced by `sharing` times the prefill that arriving
    blocks save (at most times the wait): waiting for a prefill of the same prompt takes as long as
    computing it elsewhere, and delays no other request.

    prefill: of this prompt.

    others: the delay of the requests that come after: kappa x rho / (1 - rho) times this prefill (as on
    a rank of typical speed) at the fleet's utilisation rho, as in a queue, times the rank's crowding
    relative to the mean,
    ((1 + waiting) / (1 + mean waiting) x (1 + decoding) / (1 + mean decoding)) ^ (g x rarity).
    Crowding gathers long prompts on the ranks that few others use. That shortens the wait of the others
    if long prompts are rare; if not, they mostly wait for each other while other ranks are idle. So the
    rarity falls from 1 to 0 as their share grows from 0 to a tenth. Where ranks differ in speed, it is
    at least half of the share of unlike ranks, since a slow rank is the crowded one.
    Where KV memory is short, prompts wait for it, and a copy of blocks that another rank has takes it
    from all of them. So the term is (1 + memory x f) times as large, with f the share of ranks whose
    memory is nearly full.

    decode: mu for each request in flight, which this prompt's prefill delays.

    displaced: `displacing` times the prefill of the tokens that this prompt displaces although the
    rank's sessions will probably ask for them again (`router.pick.working_set`).

    It began as `study-mix` (`lab/policies/study_mix.py`), whose crowding multiplies the wait too.
    """

    costs_seconds: ClassVar[bool] = True
    kappa: float = 2.0
    g: float = 0.4
    """Exponent of crowding where no prompt is long. 0: only the fleet's utilisation counts, best for the
    longest waits (p99); higher values keep long prompts off crowded ranks, so that most requests wait
    less (p90)."""
    memory: float = 12.0
    """How much more `others` counts per share of ranks with full KV memory; 0: not at all."""
    mu: float = 0.002
    """Seconds that each request in flight on a rank adds to its cost (`decode`)."""
    sharing: float = 0.9
    """The share of a spared prefill that `wait` is reduced by. 0: simultaneous requests with one prompt
    each compute it on another pod. 1: a wait that is shorter than the prefill that it spares counts
    nothing, so that a shorter one is no better. Bursts of prompts with one beginning need nearly 1: each
    spared prefill shortens the queues of a full fleet."""
    displacing: float = 1.0
    """How much a displaced prefill counts; 0: not at all, so that sessions may pile up on one rank."""

    def __post_init__(self) -> None:
        check_option("kappa", self.kappa)
        check_option("g", self.g, highest=2.0)
        check_option("memory", self.memory)
        check_option("mu", self.mu)
        check_option("sharing", self.sharing, highest=1.0)
        check_option("displacing", self.displacing)

    @property
    def options(self) -> Column:
        return np.array([self.kappa, self.g, self.memory, self.mu, self.sharing, self.displacing])

    def costs(self, request: Request, columns: Columns, rng: Random) -> Costs:
        """Return each candidate's cost of this prompt, in seconds."""
        del rng
        figures = np.zeros((TERMS + len(NAMES), len(columns.names)))
        figures[:LOADS] = columns.load
        figures[PREFILL], figures[SLOWNESS] = columns.prefill, columns.slowness
        figures[ARRIVING], figures[DISPLACED] = columns.arriving, columns.displaced
        _, utilisation, _, long_share, full_share = request
        add_up(figures, self.options, utilisation, full_share, long_share)
        return Costs(figures[COST], tuple(zip(NAMES, figures[TERMS:], strict=True)))


def add_up(
    figures: Figures, options: Column, utilisation: float, full_share: float, long_share: float
) -> None:
    """Fill in candidates' costs and their terms (`Warmpath`); the shares are those of `Request`."""
    number = figures.shape[1]
    requests, all_waiting, unlike = 0.0, 0.0, 0.0
    for at in range(number):
        requests += figures[IN_FLIGHT, at]
        all_waiting += figures[WAITING, at]
        slowness = figures[SLOWNESS, at]
        if max(slowness, 1 / slowness) > UNLIKE:
            unlike += 1.0
    rho = min(utilisation, HIGHEST_UTILISATION)
    weight = options[KAPPA] * rho / (1 - rho) * (1 + options[MEMORY] * full_share)
    mean, mean_waiting = requests / number, all_waiting / number
    usual = (1 + mean_waiting) * (1 + max(0.0, mean - mean_waiting))
    # How rare long prefills count as, 0 to 1; 0 if their share is 1, which means not known.
    least = UNLIKE_RARITY * (unlike / number) * (1 - long_share)
    power = options[EXPONENT] * max(1 - long_share / MOST_LONG, least)
    for at in range(number):
        wait, waiting = figures[WAIT, at], figures[WAITING, at]
        in_flight, prefill = figures[IN_FLIGHT, at], figures[PREFILL, at]
        crowd = (1 + waiting) * (1 + max(0.0, in_flight - waiting)) / usual
        spared = options[SHARING] * min(figures[ARRIVING, at], wait)
        others = weight * prefill / figures[SLOWNESS, at] * crowd**power
        decode = options[MU] * in_flight
        figures[TERMS, at] = wait - spared
        figures[TERMS + 1, at] = prefill
        figures[TERMS + 2, at] = others
        figures[TERMS + 3, at] = decode
        displaced = options[DISPLACING] * figures[DISPLACED, at]
        figures[TERMS + 4, at] = displaced
        figures[COST, at] = wait - spared + prefill + others + decode + displaced
