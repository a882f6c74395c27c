"""The demo judges times only where choosing a pod took less than the times differ."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpath.lab.demo.verdict import SPEEDS, conclusions, gain, in_time, slower, warnings
from warmpath.lab.local.measure import RunFigures

FAST = RunFigures(
    requests=100, failed=0, fell_back=0, hit_ratio=0.34, saved_tokens=1_838_624,
    ttft_p50=0.5, ttft_p90=2.0, ttft_p99=16.0, imbalance=1.1,
    delay_p50=0.01, delay_p90=0.02, delay_p99=0.1, choice_p50_ms=1.0, choice_p99_ms=5.0,
)  # fmt: skip
SLOW = replace(
    FAST, hit_ratio=0.18, saved_tokens=986_976, ttft_p50=1.0, ttft_p90=6.0, ttft_p99=17.0
)
BUSY = replace(FAST, delay_p50=0.5, delay_p90=3.0, delay_p99=9.0)


def test_times_are_compared_where_choices_were_in_time() -> None:
    assert gain(FAST, SLOW) == "p50 2.0 x faster, p90 3.0 x faster, p99 1.1 x faster"
    assert gain(SLOW, FAST).startswith("p50 2.0 x SLOWER")
    assert gain(FAST, replace(SLOW, ttft_p99=16.5)).endswith(", p99 alike")


def test_delays_of_both_count() -> None:
    late = replace(FAST, delay_p50=0.3)
    assert "no verdict on p50" not in gain(late, SLOW)
    assert "no verdict on p50 (differs by 0.50 s, choices took 0.60 s)" in gain(
        late, replace(SLOW, delay_p50=0.3)
    )


@pytest.mark.parametrize("pair", [(BUSY, SLOW), (SLOW, BUSY)])
def test_there_is_no_verdict_where_a_choice_took_as_long_as_the_times_differ(
    pair: tuple[RunFigures, RunFigures],
) -> None:
    told = gain(*pair)
    assert told.startswith("p90 3.0 x ")
    assert "no verdict on p50 (differs by 0.50 s, choices took 0.51 s), p99 (" in told


def test_hit_ratios_and_saved_tokens_are_compared_however_busy_the_machine_was() -> None:
    worse = replace(BUSY, ttft_p50=9.0, ttft_p90=3.0, delay_p50=50.0, delay_p90=50.0)
    told = " ".join(conclusions({"round-robin": SLOW, "warmpath": worse}))
    assert (
        "34% of all prompt tokens cached, round-robin 18%; that saved pods 1,838,624 and 986,976 tokens"
        in told
    )
    assert "SLOWER" not in told


def test_one_policy_is_compared_with_nothing() -> None:
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
