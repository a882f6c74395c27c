"""No peer fills the log; its lines are text or JSON."""

import asyncio
import io
import json
import logging
import sys

import pytest
from grpc._cython import cygrpc  # type: ignore[attr-defined]

from warmpath.process.logs import (
    BURST,
    KINDS_AT_ONCE,
    MOST_CHARACTERS,
    MOST_KINDS,
    MOST_TRACEBACK,
    SECONDS,
    LogForm,
    LogLimit,
    formatter,
    limited_handler,
    shortened,
)


class Log:
    """What was written, by a clock of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.limit = LogLimit(lambda: self.now)
        self.lines: list[str] = []

    def say(self, pod: str, reason: str, line: int = 1) -> None:
        record = logging.LogRecord(
            "x", logging.INFO, "x.py", line, "pod %s: %s", (pod, reason), None
        )
        if self.limit.filter(record):
            self.lines.append(record.getMessage())


def test_lines_of_one_kind_are_counted_past_a_burst_and_told_with_the_next() -> None:
    log = Log()
    for _ in range(20_000):
        log.say("a", "a frame was dropped")
    assert log.lines == ["pod a: a frame was dropped"] * BURST
    log.say("b", "another pod")
    log.say("a", "another place", line=2)
    assert log.lines[BURST:] == ["pod b: another pod", "pod a: another place"]
    log.now += SECONDS
    log.say("a", "a frame was dropped")
    log.say("a", "a frame was dropped")
    assert log.lines[BURST + 2 :] == ["pod a: a frame was dropped (19980 more of these)"]


def test_lines_about_many_clients_have_a_limit_too() -> None:
    log = Log()
    most = KINDS_AT_ONCE * BURST
    for number in range(600):
        log.say(f"ipv4:127.0.0.{number % 200}", "no preface")
    assert len(log.lines) == most
    log.say("a", "another place", line=2)
    log.now += SECONDS
    for number in range(600):
        log.say(f"ipv4:127.0.1.{number}", "no preface")
    assert log.lines[most + 1] == f"pod ipv4:127.0.1.0: no preface ({600 - most} more of these)"
    assert len(log.lines) == most + 1 + KINDS_AT_ONCE


def test_a_line_has_a_length() -> None:
    log = Log()
    log.say("a", "begin" + 10_000_000 * "x" + "end")
    [line] = log.lines
    assert len(line) == MOST_CHARACTERS
    assert line.startswith("pod a: begin")
    assert line.endswith("end")


@pytest.mark.parametrize(
    ("name", "error", "is_written"),
    [
        ("grpc._cython.cygrpc", asyncio.CancelledError, False),
        ("grpc._cython.cygrpc", cygrpc.ExecuteBatchError, False),
        ("grpc._cython.cygrpc", ValueError, True),
        ("warmpath.router.calls.service", asyncio.CancelledError, True),
    ],
)
def test_a_caller_that_leaves_writes_no_traceback(
    name: str, error: type[BaseException], *, is_written: bool
) -> None:
    # As gRPC's server writes it where it cancels a handler that has not begun, or cannot answer.
    raised = error.__new__(error)
    record = logging.LogRecord(
        name, logging.ERROR, "x", 1, "not handled: %s", ("Watch",), (error, raised, None)
    )
    assert LogLimit(lambda: 0.0).filter(record) is is_written


def test_what_a_peer_says_begins_no_line_of_its_own() -> None:
    log = Log()
    log.say("a", "gone\n2026 CRITICAL router: all is lost\x1b[2J\u2028é")
    assert log.lines == ["pod a: gone\\n2026 CRITICAL router: all is lost\\x1b[2J\\u2028é"]


def test_what_is_remembered_has_a_bound() -> None:
    log = Log()
    for number in range(3 * MOST_KINDS):
        log.say(str(number), "gone")
    assert len(log.limit._kinds) == MOST_KINDS


def test_a_process_writes_its_log_within_the_limits(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("tests.log-limit")
    logger.propagate = False
    logger.addHandler(limited_handler(lambda: 0.0))
    for _ in range(BURST + 5):
        logger.warning("pod %s: again", "a")
    assert capsys.readouterr().err.splitlines() == ["pod a: again"] * BURST


def test_a_traceback_has_a_length(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("tests.traceback-limit")
    logger.propagate = False
    logger.addHandler(limited_handler(lambda: 0.0))
    try:
        {}[10_000_000 * "x" + "end"]
    except KeyError:
        logger.exception("pod %s", "a")
    written = capsys.readouterr().err
    assert len(written) < MOST_TRACEBACK + 100
    assert "Traceback" in written
    assert written.rstrip().endswith("end'")


@pytest.mark.parametrize("length", [0, 1, 399, 400, 401, 5000])
def test_a_text_is_shortened_in_its_middle(length: int) -> None:
    text = "".join(chr(97 + at % 26) for at in range(length))
    short = shortened(text, 400)
    assert len(short) <= 400
    assert (short == text) is (length <= 400)
    if length > 400:
        assert short[:100] == text[:100]
        assert short[-100:] == text[-100:]


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
