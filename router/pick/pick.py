"""The record of a pick until its request ends: predictions, bookings and progress."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from warmpath.router.load.bookings import Booking
from warmpath.router.match.forms import BlockForm
from warmpath.router.pick.predicted import Predicted
from warmpath.router.pick.weigh import Choice, Traits

End = Literal["finished", "failed", "expired", "cancelled"]
"""`cancelled`: its caller turned out to be gone, with its answer unread."""


@dataclass(slots=True)
class Placed:
    """A pick whose request has not ended."""

    number: int
    """Unique in a picker, unlike the booking id, which a caller may reuse."""
    booking_id: str
    model: str
    traits: Traits
    prompt_tokens: int
    at: float
    picked: tuple[str, int]
    """The pod and rank that were picked."""
    available: int
    """Tokens that the warmest candidate held."""
    average: int
    """Tokens that the candidates held on average, rounded."""
    predicted: Mapping[tuple[str, int], Predicted]
    """The predictions, for the best candidates; in a shadow pick, for all of them."""
    shadow: bool
    went: tuple[str, int]
    """The pod and rank that serve it: those picked, unless a report named others."""
    session: str = ""
    request_id: str = ""
    """The caller's name for its request; empty: none."""
    trace_id: str = ""
    """The trace of the pick; empty: it was not sampled."""
    is_whole: bool = True
    """Whether it has tokens and all of them were known, not estimated."""
    is_watched: bool = False
    """Whether its end is always reported (`Ask.is_watched`)."""
    keys: Mapping[BlockForm, bytes] = field(default_factory=dict)
    """The packed keys of its blocks, by form, until its first token."""
    booking: Booking | None = None
    decoding: Booking | None = None
    """The booking on the decoding rank, if that is another one."""
    ticket: int | None = None
    """The ticket of its arriving blocks."""
    is_reported: bool = False
    """Whether any report of it has come."""
    is_refused: bool = False
    """Whether its rank is known to have refused it, or another one to have answered."""
    has_cached_tokens: bool = False
    """Whether a report has given the engine's cached tokens."""
    first_token_at: float | None = None
    is_untimed: bool = False
    """Whether its times must not be used for calibration: a report came late through another router, or
    its pod was removed."""
    output_tokens: int = 0
    """Output tokens, as reported with its end."""
    waited: float = 0.0
    """Seconds that it waited in the queue."""
    choice: Choice | None = None
    """The choice, until it is known whether the caller received the answer."""

    @property
    def is_placed(self) -> bool:
        """Whether it is known where the request went: for a shadow pick, only after a report."""
        return not self.shadow or self.booking is not None

    @property
    def counts_in_full(self) -> bool:
        """Whether its predicted prefill used the whole prompt and all tokens held on its rank.

        Otherwise an early first token does not show that the engine is fast.
        """
        expected = self.predicted.get(self.went)
        return self.is_whole and expected is not None and expected.held == expected.cached

    @property
    def captured(self) -> int:
        """Tokens held where it went; 0 if that was not predicted."""
        expected = self.predicted.get(self.went)
        return expected.held if expected else 0

    @property
    def believed(self) -> int:
        """Those of `captured` that are believed, without an event."""
        expected = self.predicted.get(self.went)
        return expected.believed if expected else 0


class Witness(Protocol):
    """An observer of picks. Times are seconds of the picker's clock."""

    def picked(self, placed: Placed, choice: Choice) -> None:
        """Handle a pick whose answer was sent."""

    def withdrawn(self, placed: Placed, choice: Choice) -> None:
        """Handle a pick whose answer reached nobody; it is the last call for this pick."""

    def started(self, placed: Placed, now: float) -> None:
        """Handle the report that a request went out, to `placed.went`."""

    def first_token(self, placed: Placed, now: float) -> None:
        """Handle the report of the first token."""

    def found_cached(self, placed: Placed, cached: int, prompt_tokens: int | None) -> None:
        """Handle the engine's cached tokens, and its count of prompt tokens; once per pick."""

    def ended(self, placed: Placed, end: End, now: float) -> None:
        """Handle a request's end."""
