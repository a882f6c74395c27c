"""What an observation of a rank makes of what is booked there: by this router, and by others."""

from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal, NamedTuple

from router.load.engine_metrics import Observed
from router.load.other_routers import OthersBook
from router.load.rank_bookings import NANOSECONDS, Head, RankBook
from scorer.candidate import Load
from scorer.prefill import PrefillModel

Source = Literal["engine", "gateway"]

UNKNOWN_TOKENS = 2048
"""Of a prompt that somebody else sent, where we have none there to go by; none of it cached."""

TOLD_SECONDS = 0.3
"""How long after a pick another router may tell of it: two of its intervals of ours, and the way."""


@dataclass(frozen=True, slots=True)
class Typical:
    """What somebody else's request is taken to cost."""

    nanoseconds: int = round(PrefillModel().seconds(UNKNOWN_TOKENS, 0) * NANOSECONDS)
    uncached_tokens: int = UNKNOWN_TOKENS
    prompt_tokens: int = UNKNOWN_TOKENS


UNKNOWN = Typical()


@dataclass(frozen=True, slots=True)
class Seen:
    """An observation, and what it said that we did not know."""

    observed: Observed
    source: Source
    foreign: int
    """Requests that are not ours."""
    foreign_waiting: int
    """Requests in the engine's queue beyond ours that wait, as far as it tells."""
    typical: Typical
    explained: int = 0
    """Of the foreign ones, as many as other routers have told that they booked before."""
    explained_waiting: int = 0

    @property
    def others(self) -> int:
        """Requests that no router has told of."""
        return max(0, self.foreign - self.explained)

    @property
    def others_waiting(self) -> int:
        """Requests in the engine's queue beyond those that routers know to wait.

        They are somebody else's, or ours whose first tokens are taken for come (`router.load.bookings`).
        """
        # Ours may run already and be without a first token: they are not in the queue any more.
        return max(0, self.foreign_waiting - self.explained_waiting)

    def explained_by(self, others: OthersBook) -> "Seen":
        """Return it as it is after other routers told anew.

        What they told before it lacks what they booked just before it, and what they tell after it lacks
        what has ended since: so whatever explained most holds. What they booked in the moment after it
        is taken for booked before, as ours is that may not have reached the engine yet.
        """
        booked = others.out_by(self.observed.at + TOLD_SECONDS)
        waiting = min(booked, others.waiting)
        if booked <= self.explained and waiting <= self.explained_waiting:
            return self
        return replace(
            self,
            explained=max(booked, self.explained),
            explained_waiting=max(waiting, self.explained_waiting),
        )


class Correction(NamedTuple):
    """A rank's load as it is now, but for the passing of time, and what it was made of."""

    book: RankBook
    version: int
    """Of the book."""
    others: OthersBook
    seen: Seen | None
    lost: int
    """Bookings, of all routers, that are over without a report."""
    head: Head | None
    """The first that really waits, of those that are known: it alone weighs less as time passes."""
    free_since: float
    nanoseconds: int
    """Predicted prefill of all that really wait."""
    load: Load
    """The corrected load, with a wait that leaves out what the head has had."""

    def is_of(self, book: RankBook, others: OthersBook, seen: Seen | None) -> bool:
        """Whether it was made of just this."""
        return (
            self.book is book
            and self.version == book.version
            and self.others is others
            and self.seen is seen
        )


def seen_beside(book: RankBook, observed: Observed, source: Source) -> Seen:
    """Return an observation, beside what we have booked on the rank."""
    ours = sum(booking.since <= observed.at for booking in book.in_flight.values())
    ours_waiting = sum(booking.since <= observed.at for booking in book.waiting.values())
    foreign = max(0, observed.requests - ours)
    foreign_waiting = max(0, observed.waiting - ours_waiting)
    return Seen(
        observed,
        source,
        foreign,
        foreign_waiting,
        _typical(book) if foreign or foreign_waiting else UNKNOWN,
    )


def _typical(book: RankBook) -> Typical:
    """Return the mean of our own requests there: those that wait, or else those that run."""
    works = [booking.work for booking in (book.waiting or book.in_flight).values()]
    if not works:
        return UNKNOWN
    return Typical(
        sum(work.nanoseconds for work in works) // len(works),
        sum(work.uncached for work in works) // len(works),
        sum(work.prompt_tokens for work in works) // len(works),
    )


def correct(book: RankBook, others: OthersBook, seen: Seen | None, slack: float) -> Correction:
    """Return a rank's load, of what was booked there and what was seen."""
    lost = 0
    rest = others
    unknown = unknown_waiting = 0
    typical, queue, kv_usage = UNKNOWN, 0, 0.0
    if seen is not None:
        lost, ours_lost = _lost(book, others, seen.observed, slack)
        rest = others.without(lost - ours_lost)
        unknown, unknown_waiting, typical = seen.others, seen.others_waiting, seen.typical
        queue, kv_usage = seen.observed.waiting, seen.observed.kv_usage
    else:
        ours_lost = 0
    over = [*islice(book.in_flight.values(), ours_lost)]
    # Those that wait are in the same order, so the lost ones are the first of them.
    waited = [booking.work for booking in over if booking.id in book.waiting]
    nanoseconds = book.nanoseconds - sum(work.nanoseconds for work in waited) + rest.nanoseconds
    in_flight = len(book.in_flight) - ours_lost + rest.in_flight + unknown
    waiting = len(book.waiting) - len(waited) + rest.waiting
    # Some may have ended since.
    unknown_waiting = min(unknown_waiting, in_flight - waiting)
    nanoseconds += unknown_waiting * typical.nanoseconds
    context_tokens = book.context_tokens - sum(booking.work.prompt_tokens for booking in over)
    context_tokens += rest.context_tokens + unknown * typical.prompt_tokens
    prompt_tokens = book.prompt_tokens - sum(work.prompt_tokens for work in waited)
    prompt_tokens += rest.prompt_tokens + unknown_waiting * typical.prompt_tokens
    prompt_tokens = min(prompt_tokens, context_tokens)
    uncached_tokens = book.uncached_tokens - sum(work.uncached for work in waited)
    uncached_tokens += rest.uncached_tokens + unknown_waiting * typical.uncached_tokens
    load = Load(
        wait=nanoseconds / NANOSECONDS,
        waiting=waiting + unknown_waiting,
        in_flight=in_flight,
        waiting_uncached_tokens=min(uncached_tokens, prompt_tokens),
        waiting_prompt_tokens=prompt_tokens,
        context_tokens=context_tokens,
        queue=queue,
        kv_usage=kv_usage,
        last_pick=max(book.last_pick, rest.last_pick),
    )
    heads = [head for head in (book.head(len(waited)), rest.head) if head is not None]
    free_since = max(book.free_since, others.free_since)
    head = min(heads, default=None)
    return Correction(book, book.version, others, seen, lost, head, free_since, nanoseconds, load)


def _lost(book: RankBook, others: OthersBook, observed: Observed, slack: float) -> tuple[int, int]:
    """Return how many bookings are over without a report, of all routers, and of ours alone.

    An engine does not say whose requests it has. Each router may have lost some, in proportion to what
    it has there.
    """
    reached = observed.at - slack
    old = 0
    for booking in book.in_flight.values():
        if booking.since > reached:
            break
        old += 1
    known = old + others.out_by(reached)
    lost = max(0, known - observed.requests)
    return lost, lost * old // known if lost else 0
