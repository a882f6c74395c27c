"""How many pods a model's work needs, by loads that a test sets."""

import pytest

from tests.router.pick.picker_parts import KeyedPrompt, Parts
from warmpath.router.load.engine_metrics import Observed
from warmpath.router.queue.demand import (
    BACKLOG_SECONDS,
    MEMORY_SHARE,
    PREFILL_SHARE,
    Demand,
    Demanded,
)

KIND = ("m", "both")


class Fleet:
    """Pods of one model, whose demand is looked at each second."""

    def __init__(self, pods: int = 4) -> None:
        self.parts = Parts(pods)
        self.held: dict[str, int] = {}
        self.demand = Demand([KIND], self.parts.pods, self.parts.loads, lambda: self.held)

    def see(self, *pods: int, waiting: int = 0, kv_usage: float = 0.0) -> None:
        """Observe a load on some pods."""
        for one in pods:
            pod = self.parts.pods[one]
            seen = Observed(waiting, waiting, kv_usage, self.parts.now)
            self.parts.loads.observe(pod.id, 0, seen)

    def after(self, seconds: int, *pods: int, **load: float) -> Demanded:
        """Return the demand after so many seconds in which pods have a load."""
        for _ in range(seconds):
            self.parts.now += 1
            self.see(*range(len(self.parts.pods)))
            self.see(*pods, **load)  # type: ignore[arg-type]
            self.demand.look(self.parts.now)
        return self.demand.rows[KIND]


def test_an_idle_fleet_needs_no_pod() -> None:
    assert Fleet().after(10) == Demanded(0.0, 0.0, 0.0)


def test_pods_that_compute_prompts_all_the_time_need_more_pods() -> None:
    demanded = Fleet().after(120, 0, 1, 2, 3, waiting=1)
    assert demanded.saturation == pytest.approx(1, abs=0.01)
    assert demanded.pods >= 4 / PREFILL_SHARE - 0.1


def test_held_memory_needs_pods_where_little_is_computed() -> None:
    demanded = Fleet().after(120, 0, 1, 2, 3, kv_usage=0.9)
    assert demanded.saturation == pytest.approx(0.9, abs=0.01)
    assert demanded.pods == pytest.approx(4 * 0.9 / MEMORY_SHARE, abs=0.05)


def test_demand_rises_within_seconds_and_falls_over_minutes() -> None:
    fleet = Fleet()
    after_30 = fleet.after(30, 0, 1, 2, 3, kv_usage=0.8).pods
    assert after_30 > 3
    assert fleet.after(30).pods > 0.7 * after_30
    assert fleet.after(1800).pods == 0


def test_booked_prefills_that_nobody_computes_need_pods_at_once() -> None:
    fleet = Fleet()
    fleet.after(1)
    for first in range(40):
        fleet.parts.choose(prompt=KeyedPrompt(range(first * 10_000, first * 10_000 + 5000)))
    fleet.demand.look(fleet.parts.now)
    demanded = fleet.demand.rows[KIND]
    assert demanded.wait_seconds > 60
    assert demanded.pods >= demanded.wait_seconds / BACKLOG_SECONDS


def test_a_pod_that_takes_no_requests_does_not_count() -> None:
    fleet = Fleet()
    fleet.parts.pods[0].withheld = "not ready"
    demanded = fleet.after(120, 0, 1, waiting=1)
    assert demanded.saturation == pytest.approx(1 / 3, abs=0.01)


def test_a_model_whose_requests_wait_needs_a_pod_and_is_full() -> None:
    fleet = Fleet(0)
    fleet.held["m"] = 3
    assert fleet.after(1) == Demanded(1.0, 0.0, 1.0)
    fleet.held.clear()
    assert 0.9 < fleet.after(10).pods < 1, "what came may come again"
