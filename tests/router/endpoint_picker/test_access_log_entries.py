"""Entries of Envoy's access log become reports: as Envoy 1.40 sent them, and cut, changed and doubled."""

import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from envoy.service.accesslog.v3 import als_pb2
from hypothesis import given
from hypothesis import strategies as st

from warmpath.h2grpc.method import Method
from warmpath.router.calls.report import ReportAnswerer
from warmpath.router.ending import Drain
from warmpath.router.endpoint_picker.access_log import (
    ANSWER_SPACE,
    FULL_NAME,
    PICK_SPACE,
    USAGE,
    AnswerLog,
    EntryError,
    entries_of,
    is_read_whole,
    report_of,
)
from warmpath.router.endpoint_picker.protocol import BOOKING
from warmpath.router.pick.report import Report

RECORDED = {
    name: base64.b64decode(raw)
    for name, raw in json.loads(
        (Path(__file__).parent / "envoy_entries.json").read_text(encoding="utf-8")
    ).items()
}
"""Messages with one entry each, without the first one's identifier, by how the request ended."""


def reported(raw: bytes) -> Report:
    [entry] = entries_of(raw)
    report = report_of(entry)
    assert report is not None
    return report


@pytest.mark.parametrize(
    ("name", "event", "is_refusal"),
    [
        ("unstreamed", "finished", False),
        ("streamed", "finished", False),
        ("retried", "finished", False),
        ("client left", "failed", False),
        ("client left before the answer", "failed", False),
        ("engine died", "failed", False),
        ("no answer", "failed", False),
        ("engine failed", "failed", True),
        ("engine timed out", "failed", False),
    ],
)
def test_an_entry_tells_how_its_request_ended(name: str, event: str, is_refusal: bool) -> None:
    report = reported(RECORDED[name])
    assert (report.event, report.is_refusal) == (event, is_refusal)
    assert report.served.startswith("127.0.0.1:")


def test_usage_comes_with_the_entry() -> None:
    unstreamed, watched = reported(RECORDED["unstreamed"]), reported(RECORDED["watched"])
    assert (unstreamed.prompt_tokens, unstreamed.cached_tokens, unstreamed.output_tokens) == (
        40,
        16,
        3,
    )
    assert (watched.prompt_tokens, watched.cached_tokens, watched.output_tokens) == (5, 2, 3)
    assert reported(RECORDED["streamed"]).cached_tokens is None


def changed(name: str, change: Callable[[als_pb2.StreamAccessLogsMessage], None]) -> bytes:
    message = als_pb2.StreamAccessLogsMessage.FromString(RECORDED[name])
    change(message)
    raw: bytes = message.SerializeToString()
    return raw


def with_usage(text: str) -> bytes:
    def change(message: als_pb2.StreamAccessLogsMessage) -> None:
        spaces = message.http_logs.log_entry[0].common_properties.metadata.filter_metadata
        spaces[ANSWER_SPACE].fields[USAGE].string_value = text

    return changed("streamed", change)


@pytest.mark.parametrize(
    ("usage", "cached", "output"),
    [
        ('{"input_tokens":3,"cache_read_input_tokens":7,"output_tokens":2}', 7, 2),
        ('{"prompt_tokens":3,"cached_tokens":7,"completion_tokens":2}', None, 2),
        ('{"prompt_tokens":3', None, None),
        ("[]", None, None),
        (" " * 2000 + '{"cached_tokens":1}', None, None),
    ],
    ids=["anthropic", "more cached than there is", "cut off", "no object", "too long"],
)
def test_a_usage_counts_as_far_as_it_is_possible(
    usage: str, cached: int | None, output: int | None
) -> None:
    report = reported(with_usage(usage))
    assert (report.event, report.cached_tokens, report.output_tokens) == (
        "finished",
        cached,
        output,
    )


def with_booking(name: str) -> bytes:
    def change(message: als_pb2.StreamAccessLogsMessage) -> None:
        spaces = message.http_logs.log_entry[0].common_properties.metadata.filter_metadata
        spaces[PICK_SPACE].fields[BOOKING].string_value = name

    return changed("streamed", change)


class Reports(ReportAnswerer):
    """Keeps the reports that it takes; a booking is known until its end."""

    def __init__(self, *known: str) -> None:
        self.known = {*known}
        self.taken: list[Report] = []

    def take(self, report: Report) -> bool:
        self.taken.append(report)
        is_known = report.booking_id in self.known
        self.known.discard(report.booking_id)
        return is_known


def answer_log(*known: str) -> tuple[AnswerLog, Reports]:
    reports = Reports(*known)
    return AnswerLog(reports, Drain(lambda: 0.0)), reports


def test_each_entry_counts_by_what_it_was_good_for() -> None:
    answers, reports = answer_log("a")

    def began(message: als_pb2.StreamAccessLogsMessage) -> None:
        message.http_logs.log_entry[0].common_properties.access_log_type = 5  # DownstreamPeriodic

    for raw in (
        *(with_booking("a"), with_booking("a"), with_booking("b"), RECORDED["unknown model"]),
        *(with_booking(""), with_booking("a b"), with_booking("x" * 200), b"\xff", b""),
        changed("streamed", began),
    ):
        answers.take(raw)
    assert answers.counts == {"reported": 1, "unknown": 2, "unpicked": 1, "malformed": 4}
    assert [one.booking_id for one in reports.taken] == ["a", "a", "b"]


@given(st.sampled_from([*RECORDED.values()]), st.data())
def test_no_message_breaks_the_stream(raw: bytes, data: st.DataObject) -> None:
    begun = data.draw(st.integers(0, len(raw)))
    text = (
        raw[:begun] + data.draw(st.binary(max_size=40)) + raw[data.draw(st.integers(0, len(raw))) :]
    )
    answers, _ = answer_log()
    answers.take(text)
    try:
        entries = [*entries_of(text)]
    except EntryError:
        assert answers.counts["malformed"] == 1
    else:
        assert sum(answers.counts.values()) == len(entries)


def test_a_share_of_bookings_is_read_whole_and_always_the_same() -> None:
    names = [f"{number:012x}-{number * 7919:016x}" for number in range(4000)]
    chosen = [name for name in names if is_read_whole(name, 0.05)]
    assert 120 < len(chosen) < 280
    assert not any(is_read_whole(name, 0.0) for name in names)
    assert all(is_read_whole(name, 1.0) for name in names)


def test_the_service_has_one_method() -> None:
    answers, _ = answer_log()
    [(name, method)] = answers.methods().items()
    assert name == f"/{FULL_NAME}"
    assert isinstance(method, Method)
