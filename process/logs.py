"""The form of log lines, and limits of their number and length, since peers and callers cause them.

The form is text for people, or one JSON object a line for log pipelines. Texts that quote a peer are
shortened.
"""

import asyncio
import json
import logging
import re
from collections.abc import Callable
from datetime import UTC, datetime
from threading import Lock
from typing import Literal

LogForm = Literal["text", "json"]
FORMS: tuple[LogForm, ...] = ("text", "json")


def formatter(
    form: LogForm, process: int | None = None, trace_id: Callable[[], str] | None = None
) -> logging.Formatter:
    """Return the formatter of a form; lines have the number `process` unless it is None.

    `trace_id` returns the id of the trace under way, for a line of JSON; empty: there is none.
    """
    if form == "json":
        return JsonFormatter(process, trace_id)
    name = "" if process is None else f"[{process}] "
    return logging.Formatter(f"%(asctime)s {name}%(levelname)s %(name)s: %(message)s")


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object: time (RFC 3339, UTC), level, logger, message.

    `process` (a number) is added if the router runs several processes, `error` if there is a traceback,
    `trace_id` if the line is of a traced call.
    """

    def __init__(self, process: int | None, trace_id: Callable[[], str] | None = None) -> None:
        super().__init__()
        self._trace_id = trace_id
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if self._process is not None:
            line["process"] = self._process
        if self._trace_id is not None and (trace_id := self._trace_id()):
            line["trace_id"] = trace_id
        if record.exc_info:
            line["error"] = record.exc_text or self.formatException(record.exc_info)
        return json.dumps(line)


def shortened(text: str, most: int) -> str:
    """Return a text; of one longer than `most` characters only both ends, about `most` in all."""
    if len(text) <= most:
        return text
    cut = f" … {len(text) - most} characters … "
    kept = max(0, most - len(cut)) // 2
    return text[:kept] + cut + text[len(text) - kept :]


BURST = 20
"""The most lines of one kind in a burst."""
SECONDS = 10.0
"""Seconds after which a kind may write one more line."""
KINDS_AT_ONCE = 5
"""All kinds of one place in the code may together write as much as this number of kinds: clients can
have any number of addresses."""
MOST_CHARACTERS = 1000
"""The most characters of a line, without its traceback."""
MOST_TRACEBACK = 8000
"""The most characters of a traceback, whose exception may quote a peer."""
MOST_KINDS = 4096
"""The most kinds of lines that are remembered."""
NOTHING, ALL = 0, 1
"""In place of the hash of a line's first argument: NOTHING if it is no text, ALL for all kinds."""

# Control characters are escaped: a line break in a peer's text would forge a line.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

_formatter = logging.Formatter()


class _Allowance:
    __slots__ = ("at", "left_out", "lines", "most")

    def __init__(self, most: float, now: float) -> None:
        self.most = most
        self.lines = most
        self.at = now
        """When `lines` was counted."""
        self.left_out = 0

    def may(self, now: float) -> bool:
        """Return whether one more line may be written now; if not, count it as left out."""
        self.lines = min(self.most, self.lines + (now - self.at) * self.most / BURST / SECONDS)
        self.at = now
        if self.lines >= 1:
            return True
        self.left_out += 1
        return False

    def take(self) -> int:
        """Count a line as written; return how many were left out before it."""
        self.lines -= 1
        left_out, self.left_out = self.left_out, 0
        return left_out


class LogLimit(logging.Filter):
    """Lets a handler write a limited number of lines of each kind, and counts the lines left out.

    Lines are of one kind if they come from one place in the code and have the same first argument,
    mostly a pod's id or a client's address. `clock` returns seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._lock = Lock()
        self._kinds: dict[tuple[str, int, int], _Allowance] = {}
        """By file, line, and the hash of the first argument; with ALL for all kinds of a line."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line may be written; if so, add the number of lines left out before it."""
        if _is_departure(record):
            return False
        about = record.args[0] if isinstance(record.args, tuple) and record.args else ""
        kind = record.pathname, record.lineno, hash(about) if isinstance(about, str) else NOTHING
        now = self._clock()
        with self._lock:
            own = self._allowance(kind, BURST, now)
            every = self._allowance((*kind[:2], ALL), KINDS_AT_ONCE * BURST, now)
            may = own.may(now) and every.may(now)
            left_out = own.take() + every.take() if may else 0
        if may:
            message = shortened(record.getMessage(), MOST_CHARACTERS)
            message = _CONTROL.sub(lambda found: ascii(found[0])[1:-1], message)
            record.msg = f"{message} ({left_out} more of these)" if left_out else message
            record.args = None
            if record.exc_info:
                record.exc_text = shortened(
                    _formatter.formatException(record.exc_info), MOST_TRACEBACK
                )
        return may

    def _allowance(self, kind: tuple[str, int, int], most: int, now: float) -> _Allowance:
        found = self._kinds.pop(kind, None)
        if found is None:
            found = _Allowance(most, now)
        # The one that was used last stays longest.
        self._kinds[kind] = found
        if len(self._kinds) > MOST_KINDS:
            del self._kinds[next(iter(self._kinds))]
        return found


def _is_departure(record: logging.LogRecord) -> bool:
    """Return whether a line is gRPC's error about a caller that left before its answer."""
    raised = record.exc_info[0] if record.exc_info else None
    if raised is None or not record.name.startswith("grpc."):
        return False
    # ExecuteBatchError: gRPC could not write the answer to a call that has ended.
    return issubclass(raised, asyncio.CancelledError) or raised.__name__ == "ExecuteBatchError"


def limited_handler(clock: Callable[[], float]) -> logging.Handler:
    """Return a handler that writes the log to standard error, within the limits of `LogLimit`."""
    handler = logging.StreamHandler()
    handler.addFilter(LogLimit(clock))
    return handler
