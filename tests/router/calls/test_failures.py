"""The errors of calls have a status and a reason each, in details that gRPC's own readers understand, and are counted by it."""

import re
from contextlib import suppress
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest

from tests.docs.test_pages import ROOT
from warmpath.h2grpc.metadata import trailers_of
from warmpath.h2grpc.method import RefusedError
from warmpath.proto.errors import Reason, details
from warmpath.proto.pb.warmpath.wire.v1 import status_details_pb2 as wire
from warmpath.router.access import entrance
from warmpath.router.admission.admission import BusyError
from warmpath.router.calls import failures
from warmpath.router.calls.failures import (
    FAILURES,
    Answering,
    Failure,
    failure_of,
    refusal_of,
    text_of,
)
from warmpath.router.ending import Drain, EndingError
from warmpath.router.endpoint_picker.events import failure_of as picker_failure_of
from warmpath.router.metrics.calls import Metrics
from warmpath.router.prompt.limits import BadRequestError, NoTokenizerError

GOOGLES = bytes.fromhex(
    "08081211746f6f206d616e7920e2809320776169741a600a28747970652e676f6f676c65617069732e636f6d2f"
    "676f6f676c652e7270632e4572726f72496e666f12340a0a4f5645524c4f4144454412087761726d706174681a"
    "1c0a056c696d697412136c696d6974732e776169742d7365636f6e64731a350a28747970652e676f6f676c6561"
    "7069732e636f6d2f676f6f676c652e7270632e5265747279496e666f12090a0708021080e59a77"
)
"""A status with an ErrorInfo and a RetryInfo, written by googleapis-common-protos 1.76.0."""

LIMIT_OF_CLIENTS = 8192
"""Bytes of trailing metadata that clients of gRPC accept by default, as HTTP/2 counts them."""


def bytes_of(refusal: failures.Refusal) -> int:
    """Return the size of a refusal's trailers as HTTP/2 counts it, without compression."""
    trailers = trailers_of(refusal.code, refusal.text, refusal.metadata)
    return sum(32 + len(name) + len(value) for name, value in trailers)


def test_details_are_what_googles_own_messages_write() -> None:
    written = details(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "too many – wait",  # noqa: RUF001  not ASCII
        Reason.OVERLOADED,
        retry_seconds=2.25,
        limit="limits.wait-seconds",
    )
    assert written == (("grpc-status-details-bin", GOOGLES), ("grpc-retry-pushback-ms", "2250"))


def test_every_reason_is_given_somewhere_and_no_call_fails_without_one() -> None:
    sources = [
        path.read_text()
        for folder in ("h2grpc", "router")
        for path in (ROOT / folder).rglob("*.py")
    ]
    given = {name for text in sources for name in re.findall(r"\bReason\.([A-Z_]+)\b", text)}
    # h2grpc knows the names alone.
    quoted = {name for text in sources for name in re.findall(r'"([A-Z_]+)"', text)}
    names = set(Reason.keys()) - {"REASON_UNSPECIFIED"}
    assert given <= names <= given | quoted
    assert all(failure.reason for failure in FAILURES.values())


def test_the_page_on_failures_has_each_reason_with_the_statuses_that_come_with_it() -> None:
    page = (ROOT / "docs" / "reference" / "failures.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([A-Z_]+)` \| ([A-Z_`, ]+?) \|", page, re.MULTILINE)
    told = {name: set(re.findall(r"[A-Z_]+", statuses)) for name, statuses in rows}
    assert set(told) == set(Reason.keys()) - {"REASON_UNSPECIFIED"}
    ours = [*FAILURES.values(), failures.FAULT]
    given_by = [(one.code, one.reason) for one in ours] + list(entrance.CODES.values())
    for code, reason in given_by:
        assert code.name in told[Reason.Name(reason)]


def test_the_contract_says_which_status_comes_with_each_reason() -> None:
    contract = (ROOT / "proto/warmpath/v1/router.proto").read_text(encoding="utf-8")
    listed = re.findall(
        r"^    // ([A-Z_ or]+)\. [^=]*?\n    ([A-Z_]+) = \d+;", contract, re.MULTILINE
    )
    told = {name: set(statuses.split(" or ")) for statuses, name in listed}
    for failure in (*FAILURES.values(), failures.FAULT):
        assert failure.code.name in told[Reason.Name(failure.reason)]


@pytest.mark.parametrize("kind", [BadRequestError, NoTokenizerError])
def test_a_faulty_field_is_named(kind: type[BadRequestError]) -> None:
    refusal = refusal_of(kind("prompt.text", "is empty"))
    status = wire.Status.FromString(dict(refusal.metadata)["grpc-status-details-bin"])
    info = wire.ErrorInfo.FromString(status.details[0].value)
    assert dict(info.metadata) == {"field": "prompt.text"}
    assert status.message == refusal.text == "prompt.text: is empty"


def test_an_ending_router_is_to_be_left_at_once_and_no_client_waits_to_ask_it_again() -> None:
    refusal = refusal_of(EndingError())
    [(key, raw)] = refusal.metadata
    assert key == "grpc-status-details-bin"
    retry = wire.Status.FromString(raw).details[1]
    assert retry.type_url == "type.googleapis.com/google.rpc.RetryInfo"
    assert wire.RetryInfo.FromString(retry.value) == wire.RetryInfo(retry_delay=wire.Duration())


def test_an_unforeseen_error_is_a_fault_of_which_its_caller_is_told_nothing() -> None:
    error = RuntimeError("a secret")
    assert failure_of(error) == (grpc.StatusCode.INTERNAL, Reason.INTERNAL_ERROR, None)
    refusal = refusal_of(error)
    assert "secret" not in repr(refusal)
    assert refusal.text == text_of(error)


WORST = ("\U0001f4a5", "\ud800", "\0", "%", '"', "é", "a")


@pytest.mark.parametrize("character", WORST)
@pytest.mark.parametrize("kind", [BadRequestError, EndingError, RuntimeError])
def test_a_status_is_small_enough_for_every_client(kind: Any, character: str) -> None:
    error = kind() if kind is EndingError else RuntimeError(character * 9999)
    if kind is BadRequestError:
        error = BadRequestError(character * 9999, character * 9999)
    refusal = refusal_of(error, retry_seconds=86400.5, limit="limits.max-in-flight-bytes")
    assert bytes_of(refusal) + 64 < LIMIT_OF_CLIENTS


@given(field=st.text(), problem=st.text(), seconds=st.none() | st.floats(0, 86400))
def test_any_text_can_be_sent_and_reads_alike_in_both_places(
    field: str, problem: str, seconds: float | None
) -> None:
    refusal = refusal_of(BadRequestError(field, problem), retry_seconds=seconds)
    assert bytes_of(refusal) < LIMIT_OF_CLIENTS
    status = wire.Status.FromString(dict(refusal.metadata)["grpc-status-details-bin"])
    assert status.message == refusal.text
    assert status.code == refusal.code.value[0]
    info = wire.ErrorInfo.FromString(status.details[0].value)
    assert (info.reason, info.domain) == ("BAD_REQUEST", "warmpath")
    if seconds is None:
        assert len(status.details) == 1
    else:
        delay = wire.RetryInfo.FromString(status.details[1].value).retry_delay
        assert delay.seconds + delay.nanos / 1e9 == pytest.approx(seconds, abs=1e-9)
        assert 0 <= delay.nanos < 10**9


def samples(metrics: Metrics, name: str = "warmpath_refusals_total") -> list[str]:
    text = generate_latest(metrics).decode()
    return [line for line in text.splitlines() if line.startswith(name)]


def made(kind: type[Exception]) -> Exception:
    """Return an error of a kind, with plain values for what its kind has to know."""
    if kind is BusyError:
        return BusyError(1.0, 1.0)
    for values in ((), ("x",), ("x", "y"), (1.0,), ("x", "y", 1.0), (1.0, "x")):
        with suppress(TypeError):
            return kind(*values)
    raise AssertionError(kind)


@pytest.mark.parametrize(("kind", "failure"), FAILURES.items())
def test_each_error_of_a_call_is_counted_by_its_reason(
    kind: type[Exception], failure: Failure
) -> None:
    metrics = Metrics()
    with pytest.raises(RefusedError), Answering("Pick", Drain(lambda: 0.0), metrics):
        raise made(kind)
    reason = Reason.Name(failure.reason)
    assert samples(metrics) == [f'warmpath_refusals_total{{method="Pick",reason="{reason}"}} 1.0']


def test_no_error_adds_a_reason_of_its_own() -> None:
    metrics = Metrics()
    for text in ("one", "another"):
        with pytest.raises(RefusedError), Answering("Pick", Drain(lambda: 0.0), metrics):
            raise RuntimeError(text)
    [line] = samples(metrics)
    assert line.endswith('reason="INTERNAL_ERROR"} 2.0')
    assert failure_of(RuntimeError()).reason == Reason.INTERNAL_ERROR


def test_answers_and_calls_whose_caller_has_gone_are_no_refusals() -> None:
    metrics = Metrics()
    with Answering("Score", Drain(lambda: 0.0), metrics):
        pass
    with pytest.raises(GeneratorExit), Answering("Score", Drain(lambda: 0.0), metrics):
        raise GeneratorExit
    assert not samples(metrics)


def test_a_gateways_reasons_are_those_of_calls_and_two_more() -> None:
    found = {picker_failure_of(made(kind), 1.0).reason for kind in FAILURES}
    found |= {picker_failure_of(TimeoutError(), 1.0).reason}
    assert found - {"PICK_LATE", "SUBSET_UNMATCHED"} <= set(Reason.keys())


def test_calls_that_are_refused_at_their_headers_are_counted_but_not_timed() -> None:
    metrics = Metrics()
    metrics.refused("Pick", "RESOURCE_EXHAUSTED", 2)
    assert samples(metrics, "warmpath_requests_total") == [
        'warmpath_requests_total{code="RESOURCE_EXHAUSTED",method="Pick"} 2.0'
    ]
    assert samples(metrics) == ['warmpath_refusals_total{method="Pick",reason="OVERLOADED"} 2.0']
    assert samples(metrics, "warmpath_request_seconds_count") == []
