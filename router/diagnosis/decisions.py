"""Keeps the last decisions: candidates, choice, reason, and the request's outcome. No prompts.

`DecisionView` is a decision as the live page and the log of decisions show it.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import msgspec

from warmpath.indexer.index.slot import RankName
from warmpath.process.command_line import seconds
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.pick.messages import Weighed, candidate_message, weighed
from warmpath.router.pick.pick import End, Pick, Witness
from warmpath.router.pick.weigh import Choice

KEPT_CANDIDATES = 4
"""Most candidates kept of a decision: the pick and its first fall-backs."""

ENDS: dict[End, "pb.Decision.State.ValueType"] = {
    "finished": pb.Decision.FINISHED,
    "failed": pb.Decision.FAILED,
    "expired": pb.Decision.EXPIRED,
    "cancelled": pb.Decision.CANCELLED,
}


@dataclass(slots=True)
class Kept:
    """One decision. Times are seconds of the picker's clock."""

    booking_id: str
    model: str
    policy: str
    prompt_tokens: int
    at: float
    candidates: Sequence[Weighed]
    """The candidates at the time of the pick; `listed` makes messages of them."""
    reason: Callable[[], str]
    """Writes why the first candidate was picked: few decisions are ever listed."""
    shadow: bool
    went: RankName
    """The pod and rank that serve the request: the picked ones until another is reported."""
    state: "pb.Decision.State.ValueType"
    request_id: str = ""
    trace_id: str = ""
    waited: float = 0.0
    """Seconds that the pick waited in the queue."""
    cached: int | None = None
    """Tokens that the engine found cached; None before they are reported."""
    ttft: float | None = None
    """Seconds from the pick to the first token; None before it is reported."""


class Decisions(Witness):
    """A ring of the last `most` decisions, filled by the picker's calls.

    A time of the picker + `wall_offset()` is seconds since the Unix epoch.
    """

    def __init__(self, most: int = 256, *, wall_offset: Callable[[], float] = lambda: 0.0) -> None:
        self._most = most
        self._wall_offset = wall_offset
        self._kept: OrderedDict[int, Kept] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def picked(self, placed: Pick, choice: Choice) -> None:
        """Keep a decision."""
        self._keep(placed, choice, pb.Decision.PICKED)

    def withdrawn(self, placed: Pick, choice: Choice) -> None:
        """Keep a decision whose pick was withdrawn."""
        self._keep(placed, choice, pb.Decision.CANCELLED)

    def _keep(self, placed: Pick, choice: Choice, state: "pb.Decision.State.ValueType") -> None:
        if not self._most:
            return
        if len(self._kept) >= self._most:
            self._kept.popitem(last=False)
        self._kept[placed.number] = Kept(
            placed.booking_id,
            placed.model,
            choice.policy,
            choice.ask.tokens,
            placed.at,
            [weighed(one) for one in choice.options[:KEPT_CANDIDATES]],
            choice.because(),
            shadow=placed.shadow,
            went=placed.went,
            state=state,
            request_id=placed.request_id,
            trace_id=placed.trace_id,
            waited=placed.waited,
        )

    def started(self, placed: Pick, now: float) -> None:
        """Record the pod and rank that serve the request."""
        del now
        kept = self._kept.get(placed.number)
        if kept is not None:
            kept.went = placed.went
            if kept.state == pb.Decision.PICKED:
                kept.state = pb.Decision.STARTED

    def first_token(self, placed: Pick, now: float) -> None:
        """Record the time from the pick to the first token."""
        kept = self._kept.get(placed.number)
        if kept is not None:
            kept.state = pb.Decision.FIRST_TOKEN
            kept.ttft = now - placed.at

    def found_cached(self, placed: Pick, cached: int, prompt_tokens: int | None) -> None:
        """Record the tokens that the engine found cached."""
        del prompt_tokens
        kept = self._kept.get(placed.number)
        if kept is not None:
            kept.cached = cached

    def ended(self, placed: Pick, end: End, now: float) -> None:
        """Record how the request ended."""
        del now
        kept = self._kept.get(placed.number)
        if kept is not None:
            kept.state = ENDS[end]

    def take(self, number: int) -> pb.Decision | None:
        """Return a decision that is kept here, and keep it no more; None if it is not."""
        kept = self._kept.pop(number, None)
        return None if kept is None else self._message(kept)

    def listed(self, limit: int = 0, model: str = "", pod: str = "") -> Iterator[pb.Decision]:
        """Return the decisions of a `model` and a picked `pod`, newest first; an empty name matches all.

        At most `limit` are returned, 0: all. The iterator makes each message lazily.
        """
        found = (
            kept
            for kept in [*reversed(self._kept.values())]
            if model in ("", kept.model) and pod in ("", kept.candidates[0].candidate.pod)
        )
        return map(self._message, islice(found, limit or None))

    def _message(self, kept: Kept) -> pb.Decision:
        offset = self._wall_offset()
        return pb.Decision(
            booking_id=kept.booking_id,
            at=kept.at + offset,
            model=kept.model,
            policy=kept.policy,
            prompt_tokens=kept.prompt_tokens,
            candidates=[candidate_message(one, offset, ()) for one in kept.candidates],
            reason=kept.reason() + _waited(kept.waited),
            waited_seconds=kept.waited,
            request_id=kept.request_id,
            trace_id=kept.trace_id,
            shadow=kept.shadow,
            state=kept.state,
            pod=kept.went[0],
            rank=kept.went[1],
            cached_tokens=kept.cached,
            ttft=kept.ttft,
        )


def _waited(value: float) -> str:
    """Return the sentence, after a space, that a pick waited; empty if it did not."""
    return f" It waited {seconds(value)} in the queue." if value else ""


class CandidateView(msgspec.Struct, frozen=True):
    """One candidate of a decision."""

    pod: str
    rank: int
    matched_tokens: int
    cost: float
    predicted_ttft: float


class DecisionView(msgspec.Struct, frozen=True):
    """One decision."""

    booking_id: str
    request_id: str
    """The `x-request-id` of the call or of the HTTP request; empty: none came."""
    trace_id: str
    """The trace of the pick; empty: it was not sampled."""
    at: float
    model: str
    policy: str
    prompt_tokens: int
    pod: str
    rank: int
    state: str
    reason: str
    shadow: bool
    waited_seconds: float
    cached_tokens: int | None
    """Tokens that the engine found cached; None before they are reported."""
    ttft: float | None
    """Seconds from the pick to the first token; None before it is reported."""
    candidates: list[CandidateView]


def decision_view(one: pb.Decision) -> DecisionView:
    """Return the view of a decision."""
    return DecisionView(
        booking_id=one.booking_id,
        request_id=one.request_id,
        trace_id=one.trace_id,
        at=one.at,
        model=one.model,
        policy=one.policy,
        prompt_tokens=one.prompt_tokens,
        pod=one.pod,
        rank=one.rank,
        state=pb.Decision.State.Name(one.state).lower(),
        reason=one.reason,
        shadow=one.shadow,
        waited_seconds=one.waited_seconds,
        cached_tokens=one.cached_tokens if one.HasField("cached_tokens") else None,
        ttft=one.ttft if one.HasField("ttft") else None,
        candidates=[
            CandidateView(each.pod, each.rank, each.matched_tokens, each.cost, each.predicted_ttft)
            for each in one.candidates
        ],
    )
