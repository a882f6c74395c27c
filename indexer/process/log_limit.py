"""What the log may take: peers and callers decide how often something is worth a line, and how long."""

import asyncio
import logging
import re
from collections.abc import Callable
from threading import Lock

from indexer.process.shortened import shortened

BURST = 20
"""Lines that one place in the code writes at once about one thing."""
SECONDS = 10.0
"""Until it may write another one."""
MOST_CHARACTERS = 1000
"""Of a line, without the traceback."""
MOST_TRACEBACK = 8000
"""Characters of one: what was raised may say what a peer sent."""
MOST_KINDS = 4096
"""Kinds of lines that are remembered."""

# Peers' texts are quoted: one with a line break would write a line of its own.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

_formatter = logging.Formatter()


class LogLimit(logging.Filter):
    """Lets through so many lines of a kind and counts the rest, for one handler.

    Lines are of one kind that one place in the code writes about one thing, which is the first one
    that it names: a pod mostly. `clock` tells seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._lock = Lock()
        self._kinds: dict[tuple[str, int, int], tuple[float, float, int]] = {}
        """Of each kind: the lines that it may write, when that was so, and how many were left out."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is written; make it say what was left out before it."""
        if _is_departure(record):
            return False
        about = record.args[0] if isinstance(record.args, tuple) and record.args else ""
        kind = record.pathname, record.lineno, hash(about) if isinstance(about, str) else 0
        now = self._clock()
        with self._lock:
            lines, at, left_out = self._kinds.pop(kind, (float(BURST), now, 0))
            lines = min(float(BURST), lines + (now - at) / SECONDS)
            may = lines >= 1
            self._kinds[kind] = (lines - 1, now, 0) if may else (lines, now, left_out + 1)
            if len(self._kinds) > MOST_KINDS:
                del self._kinds[next(iter(self._kinds))]
        if may:
            message = _CONTROL.sub(_escaped, shortened(record.getMessage(), MOST_CHARACTERS))
            record.msg = f"{message} ({left_out} more of these)" if left_out else message
            record.args = None
            if record.exc_info:
                record.exc_text = shortened(
                    _formatter.formatException(record.exc_info), MOST_TRACEBACK
                )
        return may


def _is_departure(record: logging.LogRecord) -> bool:
    """Whether gRPC logs, as an error, that a caller left before its call was begun or answered."""
    raised = record.exc_info[0] if record.exc_info else None
    if raised is None or not record.name.startswith("grpc."):
        return False
    # An answer to a call that has ended is one that gRPC's core could not write.
    return issubclass(raised, asyncio.CancelledError) or raised.__name__ == "ExecuteBatchError"


def _escaped(found: re.Match[str]) -> str:
    return ascii(found[0])[1:-1]


def limited_handler(clock: Callable[[], float]) -> logging.Handler:
    """Return what writes a process's log to standard error, within these limits."""
    handler = logging.StreamHandler()
    handler.addFilter(LogLimit(clock))
    return handler
