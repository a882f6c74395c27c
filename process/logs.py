"""The form of log lines: text for people, or one JSON object a line for log pipelines."""

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

LogForm = Literal["text", "json"]
FORMS: tuple[LogForm, ...] = ("text", "json")


def formatter(
    form: LogForm, process: int | None = None, trace_id: Callable[[], str] | None = None
) -> logging.Formatter:
    """Return the formatter of a form; with `process`, lines have the number of the process.

    `trace_id` returns the id of the trace under way, which JSON has; empty: none is.
    """
    if form == "json":
        return JsonFormatter(process, trace_id)
    name = "" if process is None else f"[{process}] "
    return logging.Formatter(f"%(asctime)s {name}%(levelname)s %(name)s: %(message)s")


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object: time (RFC 3339, UTC), level, logger, message.

    `process` is there if the router runs several, `error` if there is a traceback, `trace_id` if a call
    is under way that is traced.
    """

    def __init__(self, process: int | None, trace_id: Callable[[], str] | None = None) -> None:
        super().__init__()
        self._trace_id = trace_id
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
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
