"""Choices and picks as the picker makes them, of ranks whose blocks a test sets."""

from collections.abc import Mapping
from itertools import count

import numpy as np

from tests.router.pick.picker_parts import SizedPrompt
from tests.scorer.ranked import figures
from warmpath.indexer.engines.cache_groups import Group, Layout
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.index.slot import RankName
from warmpath.indexer.rank import Rank
from warmpath.indexer.trust import Level, Trust
from warmpath.router.load.rank_bookings import Booking, Work
from warmpath.router.match.match import Matches
from warmpath.router.pick.eligible import Wanted, field_of
from warmpath.router.pick.options import Option, Options
from warmpath.router.pick.pick import Pick, Predictions
from warmpath.router.pick.traffic import Shares
from warmpath.router.pick.weigh import Ask, Choice, Traits
from warmpath.router.pods.table import Pod
from warmpath.scorer.candidate import Candidate, Load
from warmpath.scorer.match import Match, Span

BLOCK = 16
TOKENS = 1600
NUMBERS = count()
EXACT = Trust(Level.EXACT, "followed from the first batch", 5.0)


class FakeRank(Rank):
    """A rank that is followed from the first event on."""

    has_events = True

    def __init__(self, pod: str, number: int = 0, *, block_size: int = BLOCK) -> None:
        super().__init__(pod, number, "not told yet", lambda: 5.0)
        self.believe(EXACT)
        self.is_connected = True
        self.layout = Layout({0: Group("", block_size)} if block_size else {})
        self.held = 100
        self.counted: Mapping[str, int] = {"stored_blocks": 100, "removed_blocks": 0}

    def blocks_in_use(self) -> int:
        return self.held

    def blocks(self) -> Mapping[Tier, int]:
        return {Tier.GPU: self.held}

    def counts(self) -> Mapping[str, int]:
        return self.counted


def option(
    name: str, held: int = 0, *, number: int = 0, arriving: int = 0, wait: float = 0.0
) -> Option:
    """Return a candidate that holds `held` tokens; the prefill of 1,000 others takes a second."""
    match = Match((Span(0, held // BLOCK, "gpu"),) if held else (), BLOCK, arriving_tokens=arriving)
    load = Load(wait=wait, waiting=int(wait > 0), in_flight=2, waiting_uncached_tokens=70)
    prefill = (TOKENS - match.matched_tokens) / 1000
    candidate = Candidate(name, number, match.matched_tokens, prefill, load)
    terms = (("wait", wait), ("prefill", prefill))
    return Option(
        candidate, match, EXACT, wait + prefill, terms, 1.0, f"{name}:8000", False, 0, True
    )


def choice(*options: Option, tokens: int = TOKENS, block_size: int = BLOCK) -> Choice:
    """Return the choice of the least cost; events have shown `block_size`."""
    ranks = [FakeRank(*one.name, block_size=block_size) for one in options]
    pods = [Pod(one.pod, f"{one.pod}:8000", "m", (one,)) for one in ranks]
    columns = figures([one.candidate for one in options])
    order = sorted(range(len(options)), key=lambda place: options[place].cost)
    cached, held = columns.cached, [one.match.matched_tokens for one in options]
    known = [one.match.known_tokens for one in options]
    terms = [name for name, _ in options[0].terms]
    matches = Matches()
    matches.update((rank, one.match) for rank, one in zip(ranks, options, strict=True))
    ordered = Options(
        field_of(pods),
        np.array(
            [
                *columns.load,
                cached,
                columns.prefill,
                columns.slowness,
                columns.arriving,
                columns.displaced,
                [one.calibration for one in options],
                [one.cost for one in options],
                *([dict(one.terms)[name] for one in options] for name in terms),
            ]
        ),
        order,
        [
            0.5,
            0.0,
            0.5,
            0.0,
            cached.mean(),
            columns.prefill.argmin(),
            max(order, key=lambda at: held[at]),
            max(order, key=lambda at: known[at]),
        ],
        terms=terms,
        matches=matches,
    )
    ask = Ask(SizedPrompt(tokens), field_of(()), Wanted("m"))
    return Choice(ask, "warmpath", True, 0.5, Shares(0.5, 0.0), ordered)


def placed(
    made: Choice,
    *,
    at: float = 100.0,
    shadow: bool = False,
    model: str = "m",
    traits: Traits = Traits(),  # noqa: B008  frozen
) -> Pick:
    """Return the pick of a choice's first option."""
    where = made.options[0].name
    booking = None
    if not shadow:
        work = Work(model, *where, made.ask.tokens, 0, 1.0)
        booking = Booking("b", 1, work, at + 600, since=at, late_at=at)
    predicted = Predictions(made.options[:], made.ask.tokens, lambda *_: 0)
    held = [one.match.matched_tokens for one in made.options]
    number = next(NUMBERS)
    return Pick(
        number,
        f"pick-{number}",
        model,
        traits,
        made.ask.tokens,
        at,
        picked=where,
        available=max(held),
        average=round(sum(held) / len(held)),
        predicted=predicted,
        choice=made,
        shadow=shadow,
        went=where,
        expected=predicted[where],
        booking=booking,
    )


def follow(one: Pick, pod: str, number: int = 0) -> None:
    """Let a pick go to another rank, as a report said."""
    one.go(RankName(pod, number))
    if one.booking is None:
        work = Work(one.model, pod, number, one.prompt_tokens, 0, 1.0)
        one.booking = Booking("b", 1, work, one.at + 600, since=one.at, late_at=one.at)
