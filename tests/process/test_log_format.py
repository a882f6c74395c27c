"""Log lines as text and as JSON."""

import io
import json
import logging
import sys

import pytest

from warmpath.process.logs import LogForm, LogLimit, formatter


def written(form: LogForm, *args: object, process: int | None = None, failed: bool = False) -> str:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.addFilter(LogLimit(lambda: 0.0))
    handler.setFormatter(formatter(form, process))
    error = None
    if failed:
        try:
            int("of no use")
        except ValueError:
            error = sys.exc_info()
    record = logging.LogRecord("a.room", logging.WARNING, __file__, 1, "pod %s: %s", args, error)
    record.created = 1_750_000_000.25
    handler.handle(record)
    return out.getvalue()


@pytest.mark.parametrize(("trace_id", "has"), [("0af7", True), ("", False)])
def test_a_line_of_json_has_the_trace_under_way(trace_id: str, has: bool) -> None:
    record = logging.LogRecord("a.room", logging.WARNING, __file__, 1, "text", (), None)
    line = json.loads(formatter("json", None, lambda: trace_id).format(record))
    assert line.get("trace_id") == (trace_id if has else None)


def test_a_line_of_json_has_its_parts() -> None:
    line = written("json", "pod-1", 'says "no"\nand more')
    assert line.count("\n") == 1
    assert json.loads(line) == {
        "time": "2025-06-15T15:06:40.250Z",
        "level": "warning",
        "logger": "a.room",
        "message": 'pod pod-1: says "no"\\nand more',
    }


def test_a_line_of_json_has_the_process_and_the_traceback() -> None:
    line = json.loads(written("json", "pod-1", "fails", process=2, failed=True))
    assert line["process"] == 2
    assert line["error"].endswith("'of no use'")


@pytest.mark.parametrize(
    ("process", "begins"), [(None, "WARNING a.room: pod"), (3, "[3] WARNING a.room: pod")]
)
def test_a_line_of_text_is_for_people(process: int | None, begins: str) -> None:
    line = written("text", "pod-1", "is up", process=process)
    assert line.partition(",")[2].partition(" ")[2] == f"{begins} pod-1: is up\n"
