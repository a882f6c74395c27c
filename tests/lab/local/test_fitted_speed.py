"""The demo runs all policies at one speed, at which choices come in time on this machine."""

import asyncio
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from warmpath.lab.demo import demo
from warmpath.lab.demo.setting import DemoSetting, demo_setting, new_parser
from warmpath.lab.demo.verdict import SPEEDS
from warmpath.lab.local.measure import TrafficRun
from warmpath.lab.local.rules import NAMES

Runs = Callable[..., list[tuple[str, float]]]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runs:
    """Run the demo where choosing takes these seconds of the clock, the last from then on."""

    def run_all(*seconds: float, options: tuple[str, ...] = ()) -> list[tuple[str, float]]:
        made: list[tuple[str, float]] = []

        async def run(setting: DemoSetting, name: str, show: object) -> TrafficRun:
            del show
            speed = setting.workers.speed
            taken = seconds[min(len(made), len(seconds) - 1)]
            made.append((name, speed))
            return TrafficRun(delays=[taken * speed] * 10)

        monkeypatch.setattr(demo, "_run", run)
        args = new_parser(None).parse_args([f"--out={tmp_path}", "--requests=3", *options])
        setting, results = asyncio.run(
            demo.run_all(demo_setting(args), NAMES, Console(file=StringIO()))
        )
        assert list(results) == ["round-robin", "least-load", "warmpath", "warmpath, queued"]
        assert setting.workers.speed == made[-1][1]
        assert sorted(name for name, _ in made[-len(NAMES) :]) == sorted(NAMES)
        assert len({speed for _, speed in made[-len(NAMES) :]}) == 1
        return made

    return run_all


def speeds(made: list[tuple[str, float]]) -> list[float]:
    return [speed for _, speed in made]


def test_a_fast_machine_runs_at_the_highest_speed(runs: Runs) -> None:
    assert speeds(runs(0.001)) == [SPEEDS[0]] * 5


def test_a_trial_finds_that_a_machine_is_slow(runs: Runs) -> None:
    assert speeds(runs(0.06)) == [12, 3, 3, 3, 3]


def test_late_choices_begin_all_anew_at_a_lower_speed(runs: Runs) -> None:
    assert speeds(runs(0.001, 0.001, 0.03, 0.03)) == [12, 12, 12, 6, 6, 6, 6]


def test_the_lowest_speed_is_kept_however_late_choices_come(runs: Runs) -> None:
    assert speeds(runs(9.0)) == [12, 2, 2, 2, 2]


def test_a_given_speed_is_kept(runs: Runs) -> None:
    assert speeds(runs(9.0, options=("--speed=7",))) == [7] * 4
