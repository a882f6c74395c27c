"""Keeps the last decisions: candidates, choice, reason, and the request's outcome. No prompts.

`decision_view` is a decision as the live page and the log of decisions show it.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from warmpath.process.command_line import seconds
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.pick.messages import candidate_message
from warmpath.router.pick.options import Option
from warmpath.router.pick.pick import End, Pick, Witness
from warmpath.router.pick.reason import Reason
from warmpath.router.pick.weigh import Choice

KEPT_CANDIDATES = 4
"""Most candidates kept of a decision: the pick and its first fall-backs."""

ENDS: dict[End, "pb.Decision.State.ValueType"] = {
    "finished": pb.Decision.FINISHED,
    "failed": pb.Decision.FAILED,
    "expired": pb.Decision.EXPIRED,
    "cancelled": pb.Decision.CANCELLED,
}


STEP_SECONDS = 0.05
"""The clock was set if it has moved by more than this against the monotonic one. Smaller steps are left
out, so that the same moment is told as the same number."""


class WallOffset:
    """Returns what to add to a time of `clock` to get a time of `wall`, Unix time in seconds.

    It holds even after the machine's clock was set.
    """

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall = wall
        self._clock = clock
        self._offset = wall() - clock()

    def __call__(self) -> float:
        offset = self._wall() - self._clock()
        if abs(offset - self._offset) > STEP_SECONDS:
            self._offset = offset
        return self._offset


class Kept(NamedTuple):
    """One decision, and what its message gets only if it is listed, as few decisions ever are."""

    message: pb.Decision
    at: float
    """The time of the pick, by the picker's clock."""
    candidates: Sequence[Option]
    """The candidates at the time of the pick."""
    reason: Reason


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
        message = pb.Decision(
            booking_id=placed.booking_id,
            model=placed.model,
            policy=choice.policy,
            prompt_tokens=choice.ask.tokens,
            waited_seconds=placed.waited,
            request_id=placed.request_id,
            trace_id=placed.trace_id,
            shadow=placed.shadow,
            state=state,
            pod=placed.went[0],
            rank=placed.went[1],
        )
        options = choice.options[:KEPT_CANDIDATES]
        self._kept[placed.number] = Kept(message, placed.at, options, choice.reason)

    def _message(self, placed: Pick) -> pb.Decision:
        """Return the message of a pick; one that nobody sees if the pick is not kept."""
        kept = self._kept.get(placed.number)
        return pb.Decision() if kept is None else kept.message

    def started(self, placed: Pick) -> None:
        message = self._message(placed)
        message.pod, message.rank = placed.went
        message.state = max(message.state, pb.Decision.STARTED)

    def first_token(self, placed: Pick, now: float) -> None:
        message = self._message(placed)
        message.state, message.ttft = pb.Decision.FIRST_TOKEN, now - placed.at

    def found_cached(self, placed: Pick, cached: int, prompt_tokens: int | None) -> None:
        del prompt_tokens
        self._message(placed).cached_tokens = cached

    def ended(self, placed: Pick, end: End, now: float) -> None:
        del now
        self._message(placed).state = ENDS[end]

    def take(self, number: int) -> pb.Decision | None:
        """Return a decision that is kept here, and keep it no more; None if it is not."""
        kept = self._kept.pop(number, None)
        return None if kept is None else self._whole(kept)

    def listed(self, limit: int = 0, model: str = "", pod: str = "") -> Iterator[pb.Decision]:
        """Return the decisions of a `model` and a picked `pod`, newest first; an empty name matches all.

        At most `limit` are returned, 0: all. The iterator makes each message lazily.
        """
        found = (
            kept
            for kept in [*reversed(self._kept.values())]
            if model in ("", kept.message.model) and pod in ("", kept.candidates[0].candidate.pod)
        )
        return map(self._whole, islice(found, limit or None))

    def _whole(self, kept: Kept) -> pb.Decision:
        message, offset = kept.message, self._wall_offset()
        message.at = kept.at + offset
        del message.candidates[:]
        message.candidates.extend(candidate_message(one, offset, ()) for one in kept.candidates)
        waited = message.waited_seconds
        text = f" It waited {seconds(waited)} in the queue." if waited else ""
        message.reason = f"{kept.reason}{text}"
        return message


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
