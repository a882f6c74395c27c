"""Statistics of predicted and actual cached tokens of one pod and model, from which findings derive.

Counts fade exponentially, so that a mended fault disappears and a new one shows soon.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields

from warmpath.router.pick.pick import End
from warmpath.router.pick.weigh import Traits

FADING = 0.98
"""Each report multiplies the weights of earlier ones by this. After 34 reports half a weight is
left; the weights of infinitely many reports sum to 50 (`FULL`)."""

TOLERANCE_TOKENS = 64
TOLERANCE_SHARE = 0.05
"""A prediction is right within a block, TOLERANCE_TOKENS or this share of the prompt, whichever is
largest: other requests between the pick and the prefill change the cache by about as much."""

MOST_HITS = 64
"""Number of cached token counts that are kept; few could have a common divisor by accident."""

FULL = 1.0 / (1.0 - FADING)
"""The faded count of infinitely many reports."""


@dataclass(slots=True)
class ReportCounts:
    """Counts of the reports of requests with equal traits. All but `reports` are faded."""

    reports: int = 0
    right: float = 0.0
    over: float = 0.0
    """Reports with fewer cached tokens than predicted."""
    under: float = 0.0
    """Reports with more cached tokens than predicted."""
    void: float = 0.0
    """Those of `over` with no cached tokens at all."""
    blind: float = 0.0
    """Those of `under` for which no cached tokens were predicted."""
    counted: float = 0.0
    """Reports with the engine's own count of the prompt's tokens."""
    miscounted: float = 0.0
    """Those of `counted` whose count differs from the router's."""
    tokens: float = 0.0
    predicted: float = 0.0
    believed: float = 0.0
    """Those of `predicted` that were only believed: no event had announced them."""
    delivered: float = 0.0
    """Tokens that the engine found cached."""

    @property
    def weight(self) -> float:
        """The faded count of all reports."""
        return self.right + self.over + self.under

    @property
    def off_share(self) -> float:
        """The share of wrong predictions, 0 to 1; 0 without any report."""
        return (self.over + self.under) / self.weight if self.weight else 0.0

    @property
    def gap(self) -> float:
        """Predicted minus delivered tokens, as a share of the larger; -1 to 1."""
        most = max(self.predicted, self.delivered)
        return (self.predicted - self.delivered) / most if most else 0.0

    def share(self, count: float) -> float:
        """Return a faded count as a share of all reports."""
        return count / self.weight if self.weight else 0.0

    @property
    def miscounted_share(self) -> float:
        """The share of engines' token counts that differ from the router's; 0 without any count."""
        return self.miscounted / self.counted if self.counted else 0.0

    def fade(self) -> None:
        for name in FADED:
            setattr(self, name, getattr(self, name) * FADING)


COUNTS = tuple(one.name for one in fields(ReportCounts))
FADED = COUNTS[1:]


class Evidence:
    """The evidence of one pod and model; its size is bounded."""

    def __init__(self) -> None:
        self.tallies: dict[Traits, ReportCounts] = {}
        self.hits: deque[int] = deque(maxlen=MOST_HITS)
        """The last nonzero counts of cached tokens, mostly multiples of the block size."""
        self.block_size = 0
        """Tokens per block, from events or else from beliefs; 0: not known yet."""
        self.factors: dict[int, float] = {}
        """The calibration of each rank at its last pick."""
        self.ends = 0
        """Number of requests that have ended."""
        self.ended = 0.0
        """Requests that have ended, faded."""
        self.expired = 0.0
        """Those of `ended` that were never reported as finished or failed."""

    def found_cached(
        self,
        traits: Traits,
        tokens: int,
        predicted: int,
        cached: int,
        counted: int | None,
        *,
        believed: int = 0,
    ) -> None:
        """Count a report: the engine found `cached` of a prompt's `tokens`.

        `counted` is the engine's own count of the prompt's tokens; `believed` of the `predicted`
        tokens were only believed: no event had announced them.
        """
        tally = self.tallies.setdefault(traits, ReportCounts())
        tally.fade()
        tally.reports += 1
        tally.tokens += tokens
        tally.predicted += predicted
        tally.believed += believed
        tally.delivered += cached
        tolerance = max(self.block_size, TOLERANCE_TOKENS, TOLERANCE_SHARE * tokens)
        if predicted > cached + tolerance:
            tally.over += 1
            tally.void += not cached
        elif cached > predicted + tolerance:
            tally.under += 1
            tally.blind += not predicted
        else:
            tally.right += 1
        if counted is not None:
            tally.counted += 1
            tally.miscounted += counted != tokens
        if cached:
            self.hits.append(cached)

    def over(self, end: End) -> None:
        self.ends += 1
        self.ended = self.ended * FADING + 1
        self.expired = self.expired * FADING + (end == "expired")

    def of(self, wanted: Callable[[Traits], bool]) -> ReportCounts:
        """Return the summed tallies of all traits that `wanted` accepts."""
        counted = [tally for traits, tally in self.tallies.items() if wanted(traits)]
        return ReportCounts(*(sum(getattr(one, name) for one in counted) for name in COUNTS))
