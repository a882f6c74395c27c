"""The record of a pick until its request ends: predictions, bookings and progress.

Engines' reports are compared with its predictions later.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from operator import itemgetter
from typing import Literal, NamedTuple

import msgspec

from warmpath.indexer.index.slot import RankName
from warmpath.indexer.rank import Rank
from warmpath.indexer.trust import Level
from warmpath.router.load.rank_bookings import Booking
from warmpath.router.match.forms import BlockForm
from warmpath.router.pick.options import Candidates
from warmpath.router.pick.weigh import Choice, Traits
from warmpath.router.pods.table import Pod
from warmpath.scorer.columns import FIGURES
from warmpath.scorer.match import Match


class Predicted(NamedTuple):
    """The prediction for a candidate."""

    held: int
    """Tokens that a request would find cached."""
    cached: int
    """The part of `held` that `prefill` leaves out, as cached."""
    wait: float
    """Seconds until its prefill would begin."""
    prefill: float
    """Seconds that its prefill would take."""
    shared: float = 0.0
    """Seconds of `prefill` that it shares with others (`Candidate.shared`)."""
    factor: float = 1.0
    """The rank's calibration factor."""
    room: int = 0
    """Most blocks that may be assumed on the rank; 0 if its events are complete."""
    blocks: int = 0
    """Most blocks of which the rank's cache, as far as it is known, has room."""
    believed: int = 0
    """Tokens of `held` that no event has announced."""
    is_exact: bool = False
    """Whether the events that show the rank's cache were complete."""
    booked: float = 0.0
    """Seconds of `wait` that belong to requests which routers have booked."""


PREDICTED = itemgetter(
    *(FIGURES.index(name) for name in ("wait", "foreign_wait", "cached", "prefill", "factor"))
)
"""Returns those of a candidate's figures that a prediction has."""

UNPREDICTED = Predicted(0, 0, 0.0, 0.0)
"""The prediction for a rank that was not a kept candidate."""


def held(match: Match, prompt_tokens: int) -> int:
    """Return the tokens that a request would find cached; the last one never is."""
    return min(match.matched_tokens, max(0, prompt_tokens - 1))


class Predictions(Mapping[RankName, Predicted]):
    """The predictions for some candidates, by pod and rank; made on access, as only one will be used."""

    def __init__(
        self, candidates: Candidates, prompt_tokens: int, blocks: Callable[[Pod, Rank], int]
    ) -> None:
        """`blocks` returns the most blocks that a rank may hold."""
        self._candidates = candidates
        self._prompt_tokens = prompt_tokens
        self._blocks = blocks

    @cached_property
    def _places(self) -> Mapping[RankName, int]:
        return {seat.name: at for at, seat in enumerate(self._candidates.seats)}

    def __getitem__(self, name: RankName) -> Predicted:
        return self.at(self._places[name])

    def at(self, at: int) -> Predicted:
        """Return the prediction for one of the candidates, by its index; none for a removed rank."""
        candidates = self._candidates
        seat, match = candidates.seats[at], candidates.matches[at]
        pod, rank = seat.pod(), seat.rank()
        if pod is None or rank is None:
            return UNPREDICTED
        wait, foreign, cached, prefill, factor = PREDICTED(candidates.figures[:, at].tolist())
        tokens = held(match, self._prompt_tokens)
        blocks = self._blocks(pod, rank)
        return Predicted(
            tokens,
            int(cached),
            wait,
            prefill,
            candidates.shared * factor,
            factor,
            0 if rank.trust.level is Level.EXACT else blocks,
            blocks,
            max(0, tokens - match.known_tokens),
            candidates.trusts[at].level is Level.EXACT,
            wait - foreign,
        )

    def __iter__(self) -> Iterator[RankName]:
        return (seat.name for seat in self._candidates.seats)

    def __len__(self) -> int:
        return len(self._candidates.seats)


End = Literal["finished", "failed", "expired", "cancelled"]
"""How a request ended. `cancelled`: its caller turned out to be gone, with the pick's answer unread."""


class Pick(msgspec.Struct, eq=False):
    """A pick whose request has not ended."""

    number: int
    """Unique in a picker, unlike the booking id, which a caller may reuse."""
    booking_id: str
    model: str
    traits: Traits
    prompt_tokens: int
    at: float
    picked: RankName
    """The pod and rank that were picked."""
    available: int
    """Tokens that the warmest candidate held."""
    average: int
    """Tokens that the candidates held on average, rounded."""
    predicted: Mapping[RankName, Predicted]
    """The predictions for the best candidates, in a shadow pick for all of them; none after its end."""
    choice: Choice
    """The choice behind it; deleted when the pick is settled, since it holds all candidates."""
    shadow: bool
    went: RankName
    """The pod and rank that serve it: those picked, unless a report named others."""
    expected: Predicted
    """The prediction for the rank where it went."""
    request_id: str = ""
    """The caller's name for its request; empty: none."""
    trace_id: str = ""
    """The id of the pick's trace; empty: it was not sampled."""
    client: str = ""
    """The product that its client's User-Agent begins with; empty: not known."""
    tenant: str = ""
    session: str = ""
    parent_session: str = ""
    ends_session: bool = False
    is_whole: bool = True
    """Whether it has tokens and all of them were known, not estimated."""
    is_watched: bool = False
    """Whether its end is always reported (`Ask.is_watched`)."""
    keys: Mapping[BlockForm, bytes] = {}
    """The packed keys of its blocks, by form, until its first token."""
    texts: Mapping[BlockForm, bytes] = {}
    """The same of its bytes, if its tokens are known, but may not be the next time."""
    is_blind: bool = False
    """Whether `keys` are of its bytes, since its tokens are not known."""
    booking: Booking | None = None
    decoding: Booking | None = None
    """The booking on the decoding rank, if that is another one."""
    ticket: int | None = None
    """The ticket of its arriving blocks (`indexer.believed`); None: it has none."""
    is_reported: bool = False
    """Whether any report of it has come."""
    is_started: bool = False
    """Whether a report has said that it went out."""
    end: "End | None" = None
    """How its request ended."""
    is_refused: bool = False
    """Whether its rank is known to have refused it, or another one to have answered."""
    cached_tokens: int | None = None
    """The engine's cached tokens, by the first report that gave them."""
    first_token_at: float | None = None
    is_past: bool = False
    """Whether its request was over before the pick, which is in shadow then: it has no booking."""
    is_untimed: bool = False
    """Whether its times must not be used for calibration: a report came late through another router, or
    its pod was removed."""
    output_tokens: int = 0
    """Output tokens, as reported with its end."""
    waited: float = 0.0
    """Seconds that it waited in the queue."""
    is_settled: bool = False
    """Whether it is known that its caller received the answer."""

    @property
    def is_placed(self) -> bool:
        """Whether it is known where the request went: for a shadow pick, only after a report."""
        return not self.shadow or self.is_past or self.booking is not None

    @property
    def is_predicted(self) -> bool:
        """Whether the rank where it went was a kept candidate."""
        return self.expected is not UNPREDICTED

    @property
    def counts_in_full(self) -> bool:
        """Whether its predicted prefill used the whole prompt and all tokens held on its rank.

        Otherwise an early first token does not show that the engine is fast.
        """
        expected = self.expected
        return self.is_whole and self.is_predicted and expected.held == expected.cached

    def go(self, where: RankName) -> None:
        """Note that its request went to a rank."""
        if where != self.went:
            self.went, self.expected = where, self.predicted.get(where, UNPREDICTED)


class Witness:
    """An observer of picks; this base class ignores all. Times are seconds of the picker's clock."""

    def picked(self, placed: Pick, choice: Choice) -> None:
        """Handle a pick whose answer was sent."""

    def withdrawn(self, placed: Pick, choice: Choice) -> None:
        """Handle a pick whose answer reached nobody; it is the last call for this pick."""

    def started(self, placed: Pick) -> None:
        """Handle the report that a request went out, to `placed.went`."""

    def first_token(self, placed: Pick, now: float) -> None:
        """Handle the report of the first token."""

    def found_cached(self, placed: Pick, cached: int, prompt_tokens: int | None) -> None:
        """Handle the engine's cached tokens, and its count of prompt tokens; once per pick."""

    def ended(self, placed: Pick, end: End, now: float) -> None:
        """Handle a request's end."""


PAUSE_SECONDS = 0.1
"""Least time between two doubts of a model: a doubt takes a walk over all its pods."""


class DoubtedModels(Witness):
    """A witness of picks: calls `doubt` with the model whose pods' adapters may have changed.

    An engine answers 404 for an adapter that was unloaded, and a gateway reports that as any failure.
    The model is empty where no pod lists the name of the request: any pod may have loaded it.
    """

    def __init__(self, doubt: Callable[[str], None]) -> None:
        self._doubt = doubt
        self._doubted_at: dict[str, float] = {}
        """When each model was doubted last."""

    def ended(self, placed: Pick, end: End, now: float) -> None:
        """Doubt the models that pods list, if a request failed that named no base model."""
        if end != "failed" or (placed.model and not placed.traits.has_adapter):
            return
        if now - self._doubted_at.get(placed.model, -math.inf) >= PAUSE_SECONDS:
            self._doubted_at[placed.model] = now
            self._doubt(placed.model)
