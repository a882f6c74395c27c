"""How many routers and Redis shards a fleet takes, computed from measured costs.

Every pod brings the same traffic. A fleet is one or several cells: a cell's routers know its pods only.
"""

import math
from collections.abc import Iterator, Mapping

import numpy as np

from warmpath.lab.bench.figure import Figure
from warmpath.lab.bench.scale import calls, picks, shared
from warmpath.lab.bench.scale.fleet import BLOCKS, NEW, PODS, RANKS, RATE
from warmpath.lab.bench.stand.look_up import TOKENS
from warmpath.router.peers.run import INTERVALS

FULL = 0.7
"""The share of a core, a router's or a Redis shard's, that may be busy."""
CELLS = (16, 64, PODS)
"""Pods of a cell."""
STORED = BLOCKS * NEW
"""Blocks of prompts that a request lets an engine store; as many are removed."""
DECODED = 10.0
"""Blocks of its answer: 160 tokens."""
REPORTS = 3
POLL_SECONDS = 0.05
"""`shared-index.poll-seconds`, by default."""
MOST_ROUTERS = 256

Costs = Mapping[str, float]
"""Measured figures: seconds of 1,000 calls, or as their name says."""


def measure(found: Costs, sizes: tuple[int, ...]) -> Iterator[Figure]:
    """Yield what the fleet of `lab.bench.scale.fleet` takes, in cells of several sizes.

    `sizes` are the numbers of ranks for which picks were measured.
    """
    for pods in CELLS:
        requests = RATE * pods / PODS
        name = f"cell of {pods:,} pods x {RANKS} ranks, {requests:,.0f} requests/s"
        router = Router(found, sizes, pods * RANKS, requests)
        apart, together = router.needed(shares=False), router.needed(shares=True)
        for what, value, unit in (
            ("a core's time for all picks and reports", router.picks, "s"),
            ("a core's time of each router for events", router.events, "s"),
            ("a core's time of each router to poll copies in Redis", router.polls, "s"),
            ("a core's time of each of 2 routers to share bookings", router.sharing(2), "s"),
            ("routers (0: no number is enough)", apart or 0, ""),
            ("routers that share bookings (0: no number is enough)", together or 0, ""),
            (
                "Redis shards, with a copy in each router",
                redis(found, pods, requests, apart or 0),
                "",
            ),
        ):
            yield Figure(f"{name}: {what}", value, unit)


class Router:
    """A router's share of a second's work; the unit is a core."""

    def __init__(self, found: Costs, sizes: tuple[int, ...], ranks: int, requests: float) -> None:
        def at_ranks(name: list[float]) -> float:
            return float(np.interp(ranks, sizes, name)) / 1000

        picking = [found[picks.pick_name(size)] for size in sizes]
        beyond = at_ranks(picking) - picking[0] / 1000
        call, report = found[calls.PICKS] / 1000, found[calls.REPORTS] / 1000
        self.picks = requests * (call + beyond + REPORTS * report)
        """The picks and reports of all requests."""
        least, most = calls.PACES[1:]  # from 0 on, most of the difference are wake-ups
        poured = found[calls.name_of(TOKENS, most)] - found[calls.name_of(TOKENS, least)]
        self.events = requests * (STORED + DECODED) * poured / (most - least)
        self.polls = ranks / RANKS * found[shared.POLLS] / 1000 / POLL_SECONDS
        self._write, self._read, self._renew = (
            at_ranks([found[name(size)] for size in sizes])
            for name in (picks.write_name, picks.read_name, picks.renew_name)
        )

    def sharing(self, routers: int) -> float:
        """Return the share for the rounds in which so many routers share bookings."""
        if routers == 1:
            return 0.0
        spent = self._write + (routers - 1) * self._read + self._renew
        return spent / (spent + sum(INTERVALS) / 2)

    def needed(self, *, shares: bool) -> int | None:
        """Return how many routers it takes, if they share bookings; None if no number is enough."""
        for routers in range(1, MOST_ROUTERS):
            sharing = self.sharing(routers) if shares else 0.0
            if self.picks / routers + self.events + sharing <= FULL:
                return routers
        return None


def redis(found: Costs, pods: int, requests: float, routers: int) -> int:
    """Return the number of shards that publishers and the routers' copies take."""
    still = found[f"{shared.STILL}: processor"] / 1000
    polled = found[f"{shared.POLLED}: processor"] / 1000 / POLL_SECONDS
    stored = found[f"{shared.written(shared.PROMPTS)}: processor"] / 1000
    decoded = found[f"{shared.written(shared.STEPS)}: processor"] / 1000
    copied = found[f"{shared.COPIED}: processor"] / 1000
    # Engines remove as many blocks as they store, and removing costs about as much.
    written = 2 * (STORED * stored + DECODED * decoded)
    of_requests = requests * (written + 2 * routers * (STORED + DECODED) * copied)
    return math.ceil((of_requests + pods * (still + routers * polled)) / FULL)
