"""A large fleet in virtual time: the router's own index, picker and reports, and engines of few lines.

An engine computes one prefill at a time, as long as the router predicts, and announces the blocks of
the prompt with its first token. Half of the prompts are known to the fleet; the others are new.
"""

import heapq
import math
import time
from collections.abc import Iterator
from itertools import count
from random import Random
from typing import NamedTuple

from warmpath.indexer.index.slot import RankName
from warmpath.indexer.keys.key import pack_tokens
from warmpath.lab.bench.figure import Figure
from warmpath.lab.bench.stand.asked import Asked
from warmpath.lab.bench.stand.look_up import no_collector
from warmpath.lab.bench.stand.made_up_fleet import (
    BLOCK_SIZE,
    MODEL,
    WANTED,
    batches_of,
    feed,
    prompt_of,
)
from warmpath.router.load.rank_bookings import Work
from warmpath.router.pick.weigh import Ask
from warmpath.router.prompt.token_prompt import TokenPrompt

PODS, RANKS = 1000, 8
RATE = 20_000
"""Requests a second."""
BLOCKS = 250
TOKENS = BLOCKS * BLOCK_SIZE
ANSWER_SECONDS = 4.0
"""From the first token to the end."""
KNOWN = 400
"""Prompts at the beginning; each rank holds one of them."""
NEW = 0.5
"""The share of the requests whose prompt is new."""


class Found(NamedTuple):
    """What happened in a simulated time; the values are processor seconds per request, unless named."""

    pick: float
    reports: float
    events: float
    cached: float
    """The share of the known prompts' tokens that was cached where they went."""


def measure(*, quick: bool) -> Iterator[Figure]:
    """Measure what requests cost in the fleet, or in one of a few pods (`quick`)."""
    pods, requests = (4, 200) if quick else (PODS, 4000)
    rate = RATE * pods / PODS
    found = simulate(pods, rate, requests)
    name = f"virtual fleet of {pods:,} pods x {RANKS} ranks, {rate:,.0f} requests/s"
    for what, seconds in (
        ("1,000 picks", found.pick),
        ("the reports of 1,000 requests", found.reports),
        ("the events of 1,000 requests", found.events),
    ):
        yield Figure(f"{name}: {what}", seconds * 1e3, "s")
    yield Figure(f"{name}: known tokens that were cached", found.cached * 100, "%")


def simulate(pods: int, rate: float, requests: int) -> Found:
    """Let `requests` requests come at `rate` a second, into a fleet that has been busy for long."""
    return _Fleet(pods, rate).run(requests)


class _Fleet:
    """The router's parts and the engines of a fleet."""

    def __init__(self, pods: int, rate: float) -> None:
        self._parts = Asked(pods, 0, each=RANKS)
        self._rate = rate
        self._rng = Random(1)
        self._new = count(KNOWN)
        self._ranks = {RankName(rank.pod, rank.number): rank for rank in self._parts.ranks}
        self._free = dict.fromkeys(self._ranks, 0.0)
        """When each rank will have computed the prefills that it has."""
        self._due: list[tuple[float, int, str, int, RankName]] = []
        """First tokens: the time, a number for ties, the booking, the prompt's seed, the rank."""
        self._holds: set[tuple[RankName, int]] = set()
        self._spent = dict.fromkeys(("pick", "reports", "events"), 0.0)
        self._cached = self._known = 0
        for number, name in enumerate(self._ranks):
            self._store(name, number % KNOWN)
        self._running = [self._begin(name) for name in self._of_running()]

    def _of_running(self) -> list[RankName]:
        """Return the ranks of the requests that are being answered at the beginning."""
        return self._rng.choices([*self._ranks], k=round(self._rate * ANSWER_SECONDS))

    def _begin(self, name: RankName) -> str:
        bookings = self._parts.picking.bookings
        booking = bookings.book(Work(MODEL, *name, TOKENS, TOKENS // 2, 0.2), 0.0)
        bookings.first_token(booking.id, 0.0)
        return booking.id

    def run(self, requests: int) -> Found:
        """Serve requests, and report first tokens as they come and as many ends."""
        self._spent = dict.fromkeys(self._spent, 0.0)
        with no_collector():
            for number in range(requests):
                now = number / self._rate
                self._report_until(now)
                self._place(now, number)
                self._parts.picking.bookings.finish(self._running[number], now)
            self._report_until(math.inf)
        spent = {what: seconds / requests for what, seconds in self._spent.items()}
        share = self._cached / max(1, self._known)
        return Found(spent["pick"], spent["reports"], spent["events"], share)

    def _place(self, now: float, number: int) -> None:
        """Pick a rank for a request, and let the engine there begin."""
        is_new = self._rng.random() < NEW
        seed = next(self._new) if is_new else self._rng.randrange(KNOWN)
        prompt = TokenPrompt(MODEL, pack_tokens(prompt_of(seed, BLOCKS)))
        begun = time.process_time()
        ask = Ask(prompt, self._parts.eligible(WANTED), WANTED)
        booking, choice = self._parts.picker.choose(ask, now)
        self._spent["pick"] += time.process_time() - begun
        one = choice.options[0].candidate
        name = RankName(one.pod, one.rank)
        if not is_new:
            self._known += TOKENS
            self._cached += one.cached
        begun = time.process_time()
        assert self._parts.picker.started(booking, now, None)
        self._spent["reports"] += time.process_time() - begun
        self._free[name] = max(now, self._free[name]) + one.prefill
        heapq.heappush(self._due, (self._free[name], number, booking, seed, name))

    def _report_until(self, now: float) -> None:
        """Report the first tokens that come until then, and the ends of their requests."""
        while self._due and self._due[0][0] <= now:
            at, _, booking, seed, name = heapq.heappop(self._due)
            self._store(name, seed)
            begun = time.process_time()
            self._parts.picker.first_token(booking, at)
            self._parts.picker.ended(booking, "finished", at)
            self._spent["reports"] += time.process_time() - begun

    def _store(self, name: RankName, seed: int) -> None:
        """Let a rank announce a prompt's blocks, unless it holds them."""
        if (name, seed) in self._holds:
            return
        self._holds.add((name, seed))
        batches = list(batches_of(seed, BLOCKS, events=1, each=BLOCKS))
        begun = time.process_time()
        feed(self._ranks[name], batches)
        self._spent["events"] += time.process_time() - begun
