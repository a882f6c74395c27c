"""Keeps the last decisions: candidates, choice, reason, and the request's outcome. No prompts.

`decision_view` is a decision as the live page and the log of decisions show it.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

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
        self._keep(placed, choice, pb.Decision.PICKED)

    def withdrawn(self, placed: Pick, choice: Choice) -> None:
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
        del now
        kept = self._kept.get(placed.number)
        if kept is not None:
            kept.went = placed.went
            if kept.state == pb.Decision.PICKED:
                kept.state = pb.Decision.STARTED

    def first_token(self, placed: Pick, now: float) -> None:
        kept = self._kept.get(placed.number)
        if kept is not None:
            kept.state = pb.Decision.FIRST_TOKEN
            kept.ttft = now - placed.at

    def found_cached(self, placed: Pick, cached: int, prompt_tokens: int | None) -> None:
        del prompt_tokens
        kept = self._kept.get(placed.number)
        if kept is not None:
            kept.cached = cached

    def ended(self, placed: Pick, end: End, now: float) -> None:
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
        waited = f" It waited {seconds(kept.waited)} in the queue." if kept.waited else ""
        return pb.Decision(
            booking_id=kept.booking_id,
            at=kept.at + offset,
            model=kept.model,
            policy=kept.policy,
            prompt_tokens=kept.prompt_tokens,
            candidates=[candidate_message(one, offset, ()) for one in kept.candidates],
            reason=kept.reason() + waited,
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


FIELDS = (
    *("booking_id", "request_id", "trace_id", "at", "model", "policy", "prompt_tokens"),
    *("pod", "rank", "state", "reason", "shadow", "waited_seconds", "cached_tokens", "ttft"),
)
"""What is shown of a decision beside its candidates; those that it lacks are null."""
CANDIDATE_FIELDS = ("pod", "rank", "matched_tokens", "cost", "predicted_ttft")


def decision_view(one: pb.Decision) -> dict[str, Any]:
    """Return what is shown of a decision, for JSON."""
    view = {name: getattr(one, name) for name in FIELDS}
    view["state"] = pb.Decision.State.Name(one.state).lower()
    view |= {name: None for name in ("cached_tokens", "ttft") if not one.HasField(name)}
    view["candidates"] = [
        {name: getattr(each, name) for name in CANDIDATE_FIELDS} for each in one.candidates
    ]
    return view
