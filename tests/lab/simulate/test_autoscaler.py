"""`warmpath simulate --scale`: pods that are started and ended while others serve."""

from dataclasses import replace
from random import Random

import pytest

from tests.lab.simulate.cells import outcome
from warmpath.lab.demo.traffic import CHATS
from warmpath.lab.simulate.autoscaler import STABLE, SYNC, Autoscaler
from warmpath.lab.simulate.cell import Cell
from warmpath.lab.simulate.run import run, waved
from warmpath.lab.simulate.traffic.requests import LoggedRequest

CELL = Cell(CHATS, "warmpath", pods=4, blocks_per_pod=400, load=0.2, requests=400, wave=0.9)


class Fleet:
    """Pods that an autoscaler starts and ends, as a metric says that a test sets."""

    def __init__(self, most: int = 4, cold_start: float = 30.0) -> None:
        self.metric = 1.0
        self.on = {0}
        self.busy: set[int] = set()
        self.now = 0.0
        self.scaler = Autoscaler(
            most,
            cold_start,
            metric=lambda: self.metric,
            is_idle=lambda number: number not in self.busy,
            start=self.on.add,
            end=self.on.remove,
        )
        self.look(0.0)

    def look(self, after: float = SYNC) -> set[int]:
        self.now += after
        self.scaler.look(self.now)
        return self.on


def test_a_pod_serves_after_its_cold_start() -> None:
    fleet = Fleet()
    fleet.metric = 2.1
    assert fleet.look() == {0}
    assert fleet.look() == {0}
    assert fleet.look() == {0, 1, 2}
    assert fleet.scaler.pod_seconds == SYNC + 2 * SYNC * 3


def test_pods_end_only_after_the_metric_was_low_for_a_while() -> None:
    fleet = Fleet(cold_start=0.0)
    fleet.metric = 3.0
    fleet.look()
    assert fleet.look() == {0, 1, 2}
    fleet.metric = 0.0
    assert fleet.look(STABLE - SYNC) == {0, 1, 2}
    assert fleet.look(2 * SYNC) == {0}, "one is left"


def test_a_pod_that_has_requests_to_finish_is_not_started() -> None:
    fleet = Fleet(most=2, cold_start=0.0)
    fleet.busy = {1}
    fleet.metric = 9.0
    fleet.look()
    assert fleet.look() == {0}
    fleet.busy = set()
    fleet.look()
    assert fleet.look() == {0, 1}


@pytest.mark.parametrize("scale", ["needed", "running:2"])
@pytest.mark.parametrize("engine", ["serial", "vllm"])
def test_scaled_pods_serve_all_requests_in_fewer_hours(scale: str, engine: str) -> None:
    cell = replace(CELL, scale=scale, cold_start=5.0, engine=engine)  # type: ignore[arg-type]
    whole, scaled = run(replace(cell, scale="")), run(cell)
    assert scaled.requests == whole.requests
    assert 0 < scaled.pod_hours < whole.pod_hours
    assert scaled.policy == f"warmpath, scaled by {scale}"
    assert outcome(cell) == outcome(cell)


def test_a_wave_moves_requests_to_the_middle_and_keeps_their_order_and_span() -> None:
    rng = Random(1)
    times = sorted(rng.uniform(0, 100) for _ in range(1000))
    requests = [LoggedRequest(at, 10, 1, (1,)) for at in (0.0, *times, 100.0)]
    moved = [one.at for one in waved(requests, 0.9)]
    assert moved == sorted(moved)
    assert (moved[0], moved[-1]) == pytest.approx((0, 100), abs=1e-6)
    thirds = [sum(33 * at <= one < 33 * (at + 1) for one in moved) for at in range(3)]
    assert thirds[1] > 2 * max(thirds[0], thirds[2])
    assert waved(requests, 0.0) == requests
