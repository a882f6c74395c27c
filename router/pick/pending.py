"""What is kept of a pick until it is over: what was expected of it, and how far it has come."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from router.load.bookings import Booking
from router.match.forms import Form
from router.pick.predicted import Predicted
from router.pick.weigh import Choice, Traits

End = Literal["finished", "failed", "expired"]


@dataclass(slots=True)
class Placed:
    """A pick that is not over: what reports are compared with."""

    number: int
    """Of all picks of a picker; a name may be given twice."""
    booking_id: str
    model: str
    traits: Traits
    prompt_tokens: int
    at: float
    picked: tuple[str, int]
    """The pod and rank that were picked."""
    available: int
    """Tokens that the warmest candidate held."""
    predicted: Mapping[tuple[str, int], Predicted]
    """What was expected of the best few candidates; of all, in shadow."""
    shadow: bool
    went: tuple[str, int]
    """Where it is now: where it was picked to go unless a report said otherwise."""
    session: str = ""
    is_whole: bool = True
    """Whether all of its tokens were known, not estimated."""
    keys: Mapping[Form, bytes] = field(default_factory=dict)
    """Of its blocks, as each candidate has them, until its first token."""
    booking: Booking | None = None
    decoding: Booking | None = None
    """On the rank that decodes, where that is another one."""
    ticket: int | None = None
    """Of its arriving blocks."""
    has_told: bool = False
    """Whether a report has said what the engine found."""
    first_token_at: float | None = None
    is_untimed: bool = False
    """Whether it says nothing of its engine's speed: a report of it came late, by way of another router,
    or its pod is gone."""
    output_tokens: int = 0
    """Of its answer, as reported with its end."""
    choice: Choice | None = None
    """Until it is known whether its caller got the answer."""

    @property
    def is_placed(self) -> bool:
        """Whether it is known where it went: of one in shadow, only once a report has said."""
        return not self.shadow or self.booking is not None

    @property
    def counts_in_full(self) -> bool:
        """Whether all of it, and all that is held of it where it went, was counted on.

        Where less was, a first token that comes early says nothing of the engine's speed.
        """
        expected = self.predicted.get(self.went)
        return self.is_whole and expected is not None and expected.held == expected.cached

    @property
    def captured(self) -> int:
        """Tokens held where it went; 0 where nothing was known of that."""
        expected = self.predicted.get(self.went)
        return expected.held if expected else 0

    @property
    def believed(self) -> int:
        """Of `captured`, tokens that no event has told of."""
        expected = self.predicted.get(self.went)
        return expected.believed if expected else 0


class Witness(Protocol):
    """Who wants to know of picks. Times are seconds of the picker's clock."""

    def picked(self, placed: Placed, choice: Choice) -> None:
        """Take note of a pick."""

    def withdrawn(self, placed: Placed, choice: Choice) -> None:
        """Take note of a pick whose caller went away unanswered; nothing else is told of it."""

    def started(self, placed: Placed, now: float) -> None:
        """Take note that it went out, to `placed.went`."""

    def first_token(self, placed: Placed, now: float) -> None:
        """Take note of its first token."""

    def told(self, placed: Placed, cached: int, prompt_tokens: int | None) -> None:
        """Take note of what the engine found cached; once a pick."""

    def ended(self, placed: Placed, end: End, now: float) -> None:
        """Take note of its end."""
