"""The demo judges times only where choosing a pod took less than they differ, at one speed at which choices come in time."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from warmpath.lab.demo import demo
from warmpath.lab.demo.setting import DemoSetting, demo_setting, new_parser
from warmpath.lab.demo.verdict import NAMES, SPEEDS, conclusions, gain, in_time, slower, warnings
from warmpath.lab.local.measure import RunFigures, Served, Times, TrafficRun

QUICK = Times(p50=0.5, p90=2.0, delay_p50=0.01, delay_p90=0.02)
LATE = replace(QUICK, delay_p50=0.5, delay_p90=3.0)
LONG = replace(QUICK, p50=1.0, p90=6.0)
FAST = RunFigures(
    requests=100, failed=0, fell_back=0, hit_ratio=0.84, saved_tokens=1_838_624,
    sessions=QUICK, agents_ttft=QUICK, chats_ttft=QUICK, imbalance=1.1,
    delay=0.02, choice_p50_ms=1.0, choice_p99_ms=5.0,
)  # fmt: skip
SLOW = replace(FAST, hit_ratio=0.18, sessions=LONG, agents_ttft=LONG)
BUSY = replace(FAST, sessions=LATE, agents_ttft=LATE, chats_ttft=LATE, delay=3.0)


def test_times_are_compared_where_choices_were_in_time() -> None:
    assert gain(QUICK, LONG) == "p50 2.0 x faster, p90 3.0 x faster"
    assert gain(LONG, QUICK).startswith("p50 2.0 x SLOWER")
    assert gain(QUICK, replace(LONG, p90=2.05)).endswith(", p90 alike")


def test_delays_of_both_count() -> None:
    late = replace(QUICK, delay_p50=0.3)
    assert "no verdict on p50" not in gain(late, LONG)
    assert "no verdict on p50 (differs by 0.50 s, choices took 0.60 s)" in gain(
        late, replace(LONG, delay_p50=0.3)
    )


@pytest.mark.parametrize("pair", [(LATE, LONG), (LONG, LATE)])
def test_there_is_no_verdict_where_a_choice_took_as_long_as_the_times_differ(
    pair: tuple[Times, Times],
) -> None:
    told = gain(*pair)
    assert told.startswith("p90 3.0 x ")
    assert "no verdict on p50 (differs by 0.50 s, choices took 0.51 s)" in told


def test_warmpath_is_compared_with_each_other_policy_however_well_it_did() -> None:
    told = conclusions({"round-robin": SLOW, "least-load": FAST, "warmpath": BUSY})
    assert told[0].startswith(
        "warmpath beside round-robin: sessions p90 3.0 x faster, no verdict on p50"
    )
    assert told[1].startswith(
        "warmpath beside least-load: sessions no verdict on p50 (differs by 0.00"
    )
    assert told[2].startswith("Choices took that long")
    assert "chats p50 alike" not in conclusions({"round-robin": SLOW, "warmpath": SLOW})[0]


def test_one_policy_is_compared_with_nothing() -> None:
    assert conclusions({"warmpath": FAST}) == conclusions({"round-robin": FAST})
    assert conclusions({"warmpath": FAST})[0].startswith("Nothing to compare")


def test_late_choices_fall_backs_and_failures_are_warned_of() -> None:
    assert warnings({"warmpath": FAST}, {"warmpath": ""}) == []
    bad = replace(BUSY, failed=2, fell_back=5)
    late, back, failed = warnings({"round-robin": FAST, "warmpath": bad}, {"warmpath": "it broke"})
    assert "warmpath 3.00 s" in late
    assert "round-robin" not in late
    assert back == "Requests that went to a fall-back: warmpath 5."
    assert failed == "warmpath: 2 requests failed, the last one: it broke"


@given(st.sampled_from(SPEEDS[:-1]), st.floats(0.26, 1000))
def test_a_lower_speed_is_the_highest_at_which_the_same_choices_come_in_time(
    speed: float, delay: float
) -> None:
    found = slower(speed, delay)
    assert found < speed
    assert in_time(delay / speed * found) or found == SPEEDS[-1]
    between = [one for one in SPEEDS if found < one < speed]
    assert not any(in_time(delay / speed * one) for one in between)


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
            return TrafficRun([Served("", 0, 0, 1, 0, taken * speed, 1, 2, taken)] * 10)

        monkeypatch.setattr(demo, "_run", run)
        args = new_parser(None).parse_args(
            [f"--out={tmp_path}", "--requests=3", "--agents=1", *options]
        )
        setting, results = asyncio.run(
            demo.run_all(demo_setting(args), NAMES, Console(file=StringIO()))
        )
        assert list(results) == ["round-robin", "least-load", "llmd-token", "warmpath"]
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
    assert speeds(runs(0.06)) == [8, 4, 4, 4, 4]


def test_late_choices_begin_all_anew_at_a_lower_speed(runs: Runs) -> None:
    assert speeds(runs(0.001, 0.001, 0.04, 0.04)) == [8, 8, 8, 4, 4, 4, 4]


def test_the_lowest_speed_is_kept_however_late_choices_come(runs: Runs) -> None:
    assert speeds(runs(9.0)) == [8, 2, 2, 2, 2]


def test_a_given_speed_is_kept(runs: Runs) -> None:
    assert speeds(runs(9.0, options=("--speed=7",))) == [7] * 4
