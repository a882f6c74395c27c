"""A pick: the pod for a request, fall-backs, and why."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from warmpath.indexer.trust import Trust
from warmpath.router.pick.options import MOST_CANDIDATES, Option
from warmpath.router.pick.weigh import Choice


@dataclass(frozen=True, slots=True)
class Candidate:
    """A rank that could take a request."""

    pod: str
    rank: int
    address: str
    """The address that `Index.add` was given."""
    matched_tokens: int
    """Leading tokens that it holds, known or believed."""
    believed_tokens: int
    """The part of `matched_tokens` that no event has announced."""
    outstanding_tokens: int
    """Tokens to compute that were booked on it before."""
    cost: float
    """The figure that the policy compares, lower is better; seconds for the default policy."""
    predicted_ttft: float
    """Seconds until the first token: the wait and the prefill."""
    trust: Trust
    ready: bool
    """False if the pod's events have ended; such pods are candidates only where there are no others."""


@dataclass(frozen=True, slots=True)
class Source:
    """A rank that holds more of the prompt than the picked one, for engines that can pull KV from it."""

    pod: str
    rank: int
    address: str
    matched_tokens: int


@dataclass(frozen=True, slots=True)
class Picked:
    """A pick."""

    booking_id: str
    """The name of the pick in reports."""
    candidates: Sequence[Candidate]
    """The pick, then fall-backs, best first; at most 8."""
    decode: Sequence[Candidate]
    """For a disaggregated pick: the ranks for decoding, best first, at most 8."""
    prompt_tokens: int
    source: Source | None
    choice: Choice = field(repr=False)

    @property
    def pod(self) -> str:
        """The picked pod."""
        return self.candidates[0].pod

    @property
    def rank(self) -> int:
        """The picked rank."""
        return self.candidates[0].rank

    @property
    def reason(self) -> str:
        """Why the pod was picked, in a sentence."""
        return str(self.choice.reason)


def picked_of(booking_id: str, choice: Choice) -> Picked:
    """Return a choice as its caller sees it."""
    source = choice.source
    return Picked(
        booking_id,
        [_candidate(option) for option in choice.options[:MOST_CANDIDATES]],
        [_candidate(option) for option in choice.decode[:MOST_CANDIDATES]],
        choice.ask.tokens,
        None
        if source is None
        else Source(
            source.candidate.pod,
            source.candidate.rank,
            source.address,
            source.match.known_tokens,
        ),
        choice,
    )


def _candidate(option: Option) -> Candidate:
    candidate, match = option.candidate, option.match
    return Candidate(
        candidate.pod,
        candidate.rank,
        option.address,
        match.matched_tokens,
        match.believed_tokens,
        candidate.load.waiting_uncached_tokens,
        option.cost,
        option.predicted_ttft,
        option.trust,
        option.serves,
    )
