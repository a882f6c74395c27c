"""Limits the number and length of log lines, since peers and callers can cause any number of them."""

import asyncio
import logging
import re
from collections.abc import Callable
from threading import Lock

from indexer.process.shortened import shortened

BURST = 20
"""The most lines of one kind in a burst."""
SECONDS = 10.0
"""Seconds after which a kind may write one more line."""
MOST_CHARACTERS = 1000
"""The most characters of a line, without its traceback."""
MOST_TRACEBACK = 8000
"""The most characters of a traceback, whose exception may quote a peer."""
MOST_KINDS = 4096
"""The most kinds of lines that are remembered."""

# Control characters are escaped: a line break in a peer's text would forge a line.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

_formatter = logging.Formatter()


class LogLimit(logging.Filter):
    """Lets a handler write a limited number of lines of each kind, and counts the lines left out.

    Lines are of one kind if they come from one place in the code and have the same first argument,
    mostly a pod's id. `clock` returns seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._lock = Lock()
        self._kinds: dict[tuple[str, int, int], tuple[float, float, int]] = {}
        """For each kind: how many lines it may write, when that was counted, how many were left out."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is written; add the number of lines left out before it."""
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
    """Return whether a line is gRPC's error about a caller that left before its answer."""
    raised = record.exc_info[0] if record.exc_info else None
    if raised is None or not record.name.startswith("grpc."):
        return False
    # ExecuteBatchError: gRPC could not write the answer to a call that has ended.
    return issubclass(raised, asyncio.CancelledError) or raised.__name__ == "ExecuteBatchError"


def _escaped(found: re.Match[str]) -> str:
    return ascii(found[0])[1:-1]


def limited_handler(clock: Callable[[], float]) -> logging.Handler:
    """Return a handler that writes the log to standard error within these limits."""
    handler = logging.StreamHandler()
    handler.addFilter(LogLimit(clock))
    return handler
