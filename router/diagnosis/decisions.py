"""Keeps the last decisions: candidates, choice, reason, and the request's outcome. No prompts.

`decision_view` is a decision as the live page and the log of decisions show it. The log gets a line of
JSON for a pick when its request ends.
"""

import asyncio
import logging
import os
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from warmpath.process.command_line import in_words, seconds
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.pick.messages import candidate_message
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


def wall_offset_of(
    wall: Callable[[], float] = time.time, clock: Callable[[], float] = time.monotonic
) -> Callable[[], float]:
    """Return a function that returns the seconds to add to a time of `clock` to get one of `wall`.

    `wall` returns Unix time; its difference to `clock` is measured again after it was set.
    """
    known = wall() - clock()

    def offset() -> float:
        nonlocal known
        now = wall() - clock()
        if abs(now - known) > STEP_SECONDS:
            known = now
        return known

    return offset


ALL = pb.ListDecisionsRequest()


class Kept(msgspec.Struct, frozen=True):
    """A pick, and what the message of a decision has beside it; few of these are ever made."""

    placed: Pick
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
        if not self._most:
            return
        if len(self._kept) >= self._most:
            self._kept.popitem(last=False)
        self._kept[placed.number] = Kept(placed, choice.reason)

    def withdrawn(self, placed: Pick, choice: Choice) -> None:
        Decisions.picked(self, placed, choice)

    def take(self, number: int) -> pb.Decision | None:
        """Return the decision of pick `number` and forget it; None if it is not kept here."""
        kept = self._kept.pop(number, None)
        return None if kept is None else self._message(kept)

    def listed(self, asked: pb.ListDecisionsRequest = ALL) -> Iterator[pb.Decision]:
        """Return the decisions that a request asks for, newest first. Each message is made lazily."""
        found = (
            kept
            for kept in [*reversed(self._kept.values())]
            if asked.model in ("", kept.placed.model)
            and asked.pod in ("", kept.placed.picked.pod)
            and asked.session_id in ("", kept.placed.session, kept.placed.parent_session)
        )
        return map(self._message, islice(found, asked.limit or None))

    def _message(self, kept: Kept) -> pb.Decision:
        placed, offset = kept.placed, self._wall_offset()
        waited = f" It waited {seconds(placed.waited)} in the queue." if placed.waited else ""
        first_token_at = placed.first_token_at
        return pb.Decision(
            booking_id=placed.booking_id,
            at=placed.at + offset,
            model=placed.model,
            policy=kept.reason.policy,
            prompt_tokens=placed.prompt_tokens,
            waited_seconds=placed.waited,
            request_id=placed.request_id,
            trace_id=placed.trace_id,
            session_id=placed.session,
            parent_session_id=placed.parent_session,
            session_final=placed.ends_session,
            shadow=placed.shadow,
            state=_state(placed),
            pod=placed.went[0],
            rank=placed.went[1],
            cached_tokens=placed.cached_tokens,
            ttft=None if first_token_at is None else first_token_at - placed.at,
            candidates=[
                candidate_message(one, offset, ())
                for one in kept.reason.contenders[:KEPT_CANDIDATES]
            ],
            reason=f"{kept.reason}{waited}",
        )


def _state(placed: Pick) -> "pb.Decision.State.ValueType":
    if placed.end is not None:
        return ENDS[placed.end]
    if placed.first_token_at is not None:
        return pb.Decision.FIRST_TOKEN
    return pb.Decision.STARTED if placed.is_started else pb.Decision.PICKED


FIELDS = (
    *("booking_id", "request_id", "trace_id", "session_id", "parent_session_id", "session_final"),
    *("at", "model", "policy", "prompt_tokens"),
    *("pod", "rank", "state", "reason", "shadow", "waited_seconds", "cached_tokens", "ttft"),
)
"""The fields that are shown of a decision beside its candidates; those that it lacks are null."""
CANDIDATE_FIELDS = ("pod", "rank", "matched_tokens", "cost", "predicted_ttft")


def decision_view(one: pb.Decision) -> dict[str, Any]:
    """Return the fields that are shown of a decision, for JSON."""
    view = {name: getattr(one, name) for name in FIELDS}
    view["state"] = pb.Decision.State.Name(one.state).lower()
    view |= {name: None for name in ("cached_tokens", "ttft") if not one.HasField(name)}
    view["candidates"] = [
        {name: getattr(each, name) for name in CANDIDATE_FIELDS} for each in one.candidates
    ]
    return view


log = logging.getLogger(__name__)

MOST_OPEN = 10_000
"""Most picks whose end is waited for; of more, the oldest gets no line."""
MOST_LINES = 10_000
"""Most lines that wait until they are written."""


class DecisionLog(Decisions):
    """Makes lines of a `share` of all picks, drawn by `rng`; `taken` returns the new ones.

    A time of the picker + `wall_offset()` is seconds since the Unix epoch.
    """

    def __init__(self, share: float, rng: Random, *, wall_offset: Callable[[], float]) -> None:
        super().__init__(MOST_OPEN, wall_offset=wall_offset)
        self._share = share
        self._rng = rng
        self._lines: list[bytes] = []
        self._dropped = 0
        """Lines for which there was no room since `taken`."""
        self.lost = 0
        """Lines that were not written: there was no room, or the file could not be used."""

    def taken(self) -> tuple[list[bytes], int]:
        """Return the lines since the last call, with line breaks, and how many found no room."""
        taken = self._lines, self._dropped
        self._lines, self._dropped = [], 0
        return taken

    def picked(self, placed: Pick, choice: Choice) -> None:
        if self._rng.random() < self._share:
            super().picked(placed, choice)

    def withdrawn(self, placed: Pick, choice: Choice) -> None:
        if self._rng.random() < self._share:
            super().withdrawn(placed, choice)
            self._write(placed)

    def ended(self, placed: Pick, end: End, now: float) -> None:
        del end, now
        self._write(placed)

    def _write(self, placed: Pick) -> None:
        decision = self.take(placed.number)
        if decision is None:
            return
        if len(self._lines) >= MOST_LINES:
            self._dropped += 1
            self.lost += 1
            return
        self._lines.append(msgspec.json.encode(decision_view(decision)) + b"\n")


PAUSE = 1.0
STANDARD_OUTPUT = "-"


async def write_decisions(kept: DecisionLog, file: str, folder: Path) -> None:
    """Append new lines every second, until cancelled, to `file` in `folder`; - is stdout.

    The file is opened for each write, so that it may be moved away (logrotate). Lines that cannot be
    written are lost, and the log says so.
    """
    while True:
        await asyncio.sleep(PAUSE)
        await write_now(kept, file, folder)


async def write_now(kept: DecisionLog, file: str, folder: Path) -> None:
    """Append the lines made since the last time, once; otherwise as `write_decisions`."""
    lines, dropped = kept.taken()
    if dropped:
        log.warning(
            "pick.decision-log: %d decisions are not logged: more than %d ended before they were"
            " written; a smaller pick.decision-log-share keeps a sample",
            dropped, MOST_LINES,
        )  # fmt: skip
    if lines:
        try:
            await asyncio.to_thread(_append, lines, file, folder)
        except OSError as error:
            kept.lost += len(lines)
            text = "pick.decision-log: %d decisions are not logged: %s"
            log.warning(text, len(lines), in_words(error))


def _append(lines: Sequence[bytes], file: str, folder: Path) -> None:
    if file == STANDARD_OUTPUT:
        sys.stdout.buffer.writelines(lines)
        sys.stdout.buffer.flush()
        return
    path = folder / file
    with open(path, "ab", opener=_private) as opened:
        opened.writelines(lines)


def _private(path: str, flags: int) -> int:
    """Open a file that only its owner may read, if it is made now; do not wait for a pipe."""
    return os.open(path, flags | os.O_NONBLOCK, 0o600)
