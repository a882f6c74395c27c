"""What reports of one pod and model say of its predictions: the material that findings are made of.

Counts fade, so that a fault that is mended stops to show and a new one is seen against a long good past.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from indexer.invariant import BrokenInvariantError
from router.pick.pending import End
from router.pick.weigh import Traits

FADING = 0.98
"""What a report leaves of the weight of those before it: half of it after 34, all of them weigh 50."""

TOLERANCE_TOKENS = 64
TOLERANCE_SHARE = 0.05
"""A prediction is right within a block, so many tokens or this share of the prompt. Others'
requests that run between the pick and the prefill move the truth by about as much."""

MOST_HITS = 64
"""Cached token counts that are kept: enough for their common divisor to be no chance."""

FULL = 1.0 / (1.0 - FADING)


@dataclass(slots=True)
class Tally:
    """Reports of requests that are alike. All but `reports` are faded counts."""

    reports: int = 0
    right: float = 0.0
    over: float = 0.0
    """The engine found less than was predicted."""
    under: float = 0.0
    """It found more."""
    void: float = 0.0
    """Of `over`: it found nothing."""
    blind: float = 0.0
    """Of `under`: nothing was predicted."""
    counted: float = 0.0
    """The engine's count of the prompt's tokens was told."""
    miscounted: float = 0.0
    """It was not ours."""
    tokens: float = 0.0
    """Of the prompts."""
    predicted: float = 0.0
    """Of these tokens, those predicted to be cached."""
    believed: float = 0.0
    """Of the predicted ones, those that no event had told of."""
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
        """How many fewer tokens were delivered than predicted, as a share of the larger; -1 to 1."""
        most = max(self.predicted, self.delivered)
        return (self.predicted - self.delivered) / most if most else 0.0

    def share(self, count: float) -> float:
        """Return a faded count as a share of all reports."""
        return count / self.weight if self.weight else 0.0

    @property
    def miscounted_share(self) -> float:
        """The share of engines' token counts that are not ours; 0 where none was told."""
        return self.miscounted / self.counted if self.counted else 0.0

    def plus(self, other: "Tally") -> "Tally":
        """Return both together."""
        return Tally(
            self.reports + other.reports,
            self.right + other.right,
            self.over + other.over,
            self.under + other.under,
            self.void + other.void,
            self.blind + other.blind,
            self.counted + other.counted,
            self.miscounted + other.miscounted,
            self.tokens + other.tokens,
            self.predicted + other.predicted,
            self.believed + other.believed,
            self.delivered + other.delivered,
        )

    def fade(self) -> None:
        """Let what is known count less."""
        self.right *= FADING
        self.over *= FADING
        self.under *= FADING
        self.void *= FADING
        self.blind *= FADING
        self.counted *= FADING
        self.miscounted *= FADING
        self.tokens *= FADING
        self.predicted *= FADING
        self.believed *= FADING
        self.delivered *= FADING


class Evidence:
    """Of one pod and model; bounded: traits have few values, and hits are a ring."""

    def __init__(self) -> None:
        self.tallies: dict[Traits, Tally] = {}
        self.hits: deque[int] = deque(maxlen=MOST_HITS)
        """What engines found cached, where that was anything: multiples of a block, mostly."""
        self.block_size = 0
        """Tokens a block, as told by events or else assumed of what was sent there; 0: neither yet."""
        self.factors: dict[int, float] = {}
        """By rank: its calibration when it was last picked."""
        self.ends = 0
        """Requests that are over."""
        self.ended = 0.0
        """The same, faded."""
        self.expired = 0.0
        """Of these, those of which no report said so."""

    def told(
        self,
        traits: Traits,
        tokens: int,
        predicted: int,
        cached: int,
        counted: int | None,
        *,
        believed: int = 0,
    ) -> None:
        """Take what an engine found cached of a prompt of `tokens`, and its own count of them.

        No event had told of `believed` of the predicted ones.
        """
        tally = self.tallies.setdefault(traits, Tally())
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
        """Take note of a request's end."""
        self.ends += 1
        self.ended = self.ended * FADING + 1
        self.expired = self.expired * FADING + (end == "expired")

    def of(self, wanted: Callable[[Traits], bool]) -> Tally:
        """Return the reports of requests that have the wanted traits, together."""
        whole = Tally()
        for traits, tally in self.tallies.items():
            if wanted(traits):
                whole = whole.plus(tally)
        return whole

    def check(self) -> None:
        """Raise BrokenInvariantError where counts are impossible."""
        for traits, tally in self.tallies.items():
            parts = (
                tally.weight <= min(tally.reports, FULL) + 1e-6,
                tally.void <= tally.over + 1e-6,
                tally.blind <= tally.under + 1e-6,
                tally.miscounted <= tally.counted + 1e-6,
                tally.counted <= tally.weight + 1e-6,
                tally.believed <= tally.predicted + 1e-6,
                tally.predicted <= tally.tokens + 1e-6,
            )
            if not all(parts):
                raise BrokenInvariantError(f"the tally of {traits} is impossible: {tally}")
        if self.expired > self.ended + 1e-6 or self.ended > min(self.ends, FULL) + 1e-6:
            raise BrokenInvariantError(f"{self.expired} of {self.ended} requests expired")
        if not all(self.hits):
            raise BrokenInvariantError("nothing is no hit")
