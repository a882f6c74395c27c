"""Writes the log of decisions to its file."""

import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from warmpath.process.command_line import in_words
from warmpath.router.diagnosis.decision_log import MOST_LINES, DecisionLog

log = logging.getLogger(__name__)

PAUSE = 1.0
"""Seconds between two writes."""
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
    lines = kept.take()
    if dropped := kept.take_dropped():
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
