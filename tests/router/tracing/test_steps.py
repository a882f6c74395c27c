"""The steps of a call are timed, and told to the trace of the call where there is one."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from warmpath.router.tracing.steps import NO_STEPS, Step, Steps
from warmpath.router.tracing.tracer import Tracer


class Meter:
    def __init__(self) -> None:
        self.told: list[tuple[str, float]] = []

    def stepped(self, step: str, seconds: float) -> None:
        self.told.append((step, seconds))


class Listening(Tracer):
    is_on = True

    def __init__(self) -> None:
        self.heard: list[tuple[str, float] | str] = []

    def past(self, name: str, seconds: float) -> None:
        self.heard.append((name, seconds))

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        self.heard.append(name)
        yield


@pytest.fixture
def meter() -> Meter:
    return Meter()


def test_each_step_is_timed_by_the_clock(meter: Meter) -> None:
    steps = Steps(meter.stepped, clock=iter([1.0, 3.0, 3.0, 6.0]).__next__)
    steps.took(Step.READ, steps.begin())
    steps.took(Step.MATCH, steps.begin())
    assert meter.told == [("read", 2.0), ("match", 3.0)]


def test_a_step_that_fails_is_timed(meter: Meter) -> None:
    steps = Steps(meter.stepped, clock=iter([1.0, 3.0]).__next__)
    with pytest.raises(TimeoutError), steps.step(Step.QUEUE):
        raise TimeoutError
    assert meter.told == [("queue", 2.0)]


def test_a_trace_has_every_step_as_a_span(meter: Meter) -> None:
    tracer = Listening()
    steps = Steps(meter.stepped, tracer, iter([0.0, 1.0, 2.0, 3.0]).__next__)
    steps.took(Step.READ, steps.begin())
    with steps.step(Step.TOKENISE):
        pass
    assert tracer.heard == [("read", 1.0), "tokenise"]
    assert meter.told == [("read", 1.0), ("tokenise", 1.0)]


def test_a_part_outside_a_router_times_nothing() -> None:
    NO_STEPS.took(Step.READ, NO_STEPS.begin())
    with NO_STEPS.step(Step.QUEUE):
        pass
