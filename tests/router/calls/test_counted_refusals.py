"""Refused calls are counted by the reason that their callers get."""

from contextlib import suppress

import pytest
from prometheus_client import generate_latest

from warmpath.h2grpc.method import RefusedError
from warmpath.proto.errors import Reason
from warmpath.router.admission.admission import BusyError
from warmpath.router.calls.failures import FAILURES, Answering, Failure, failure_of
from warmpath.router.ending import Drain
from warmpath.router.endpoint_picker.outcomes import failure_of as picker_failure_of
from warmpath.router.metrics.calls import Metrics


class Counted:
    """Metrics, and the refusals in them."""

    def __init__(self) -> None:
        self.metrics = Metrics()

    def refusals(self) -> list[str]:
        """Return the samples of refusals as a scrape shows them."""
        return self.samples("warmpath_refusals_total")

    def samples(self, name: str) -> list[str]:
        """Return the samples of one name as a scrape shows them."""
        text = generate_latest(self.metrics).decode()
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
    counted = Counted()
    with pytest.raises(RefusedError), Answering("Pick", Drain(lambda: 0.0), counted.metrics):
        raise made(kind)
    reason = Reason.Name(failure.reason)
    assert counted.refusals() == [f'warmpath_refusals_total{{method="Pick",reason="{reason}"}} 1.0']


def test_no_error_adds_a_reason_of_its_own() -> None:
    counted = Counted()
    for text in ("one", "another"):
        with pytest.raises(RefusedError), Answering("Pick", Drain(lambda: 0.0), counted.metrics):
            raise RuntimeError(text)
    [line] = counted.refusals()
    assert line.endswith('reason="INTERNAL_ERROR"} 2.0')
    assert failure_of(RuntimeError()).reason == Reason.INTERNAL_ERROR


def test_answers_and_calls_whose_caller_has_gone_are_no_refusals() -> None:
    counted = Counted()
    with Answering("Score", Drain(lambda: 0.0), counted.metrics):
        pass
    with pytest.raises(GeneratorExit), Answering("Score", Drain(lambda: 0.0), counted.metrics):
        raise GeneratorExit
    assert not counted.refusals()


def test_a_gateways_reasons_are_those_of_calls_and_two_more() -> None:
    found = {picker_failure_of(made(kind), 1.0).reason for kind in FAILURES}
    found |= {picker_failure_of(TimeoutError(), 1.0).reason}
    assert found - {"PICK_LATE", "SUBSET_UNMATCHED"} <= set(Reason.keys())


def test_calls_that_are_refused_at_their_headers_are_counted_but_not_timed() -> None:
    counted = Counted()
    counted.metrics.refused("Pick", "RESOURCE_EXHAUSTED", 2)
    assert counted.samples("warmpath_requests_total") == [
        'warmpath_requests_total{code="RESOURCE_EXHAUSTED",method="Pick"} 2.0'
    ]
    assert counted.refusals() == ['warmpath_refusals_total{method="Pick",reason="OVERLOADED"} 2.0']
    assert counted.samples("warmpath_request_seconds_count") == []
