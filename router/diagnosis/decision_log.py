"""The log of decisions: writes a line of JSON for a pick when its request ends. No prompts."""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import msgspec

from warmpath.process.command_line import in_words
from warmpath.router.diagnosis.decisions import Decisions, decision_view
from warmpath.router.pick.pick import End, Pick
from warmpath.router.pick.weigh import Choice

log = logging.getLogger(__name__)

MOST_OPEN = 10_000
"""Most picks whose end is waited for; of more, the oldest gets no line."""
MOST_LINES = 10_000
"""Most lines that wait until they are written."""


class DecisionLog(Decisions):
    """Makes lines of a `share` of all picks, drawn by `rng`; `taken` returns those made since.

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
        """Return the lines since the last call, each with its break, and for how many was no room."""
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
        super().ended(placed, end, now)
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
    """Append new lines to a file every second, until cancelled; relative to `folder`, - is stdout.

    The file is opened for each write, so that it may be moved away (logrotate). Lines that cannot be
    written are lost, and the log says so.
    """
    while True:
        await asyncio.sleep(PAUSE)
        await write_now(kept, file, folder)


async def write_now(kept: DecisionLog, file: str, folder: Path) -> None:
    """Append the lines that are there."""
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
