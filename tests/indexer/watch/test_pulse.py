"""Up to when a process has taken what its sockets had for it."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from warmpath.indexer.watch.pulse import STEP, Pulse


def test_nothing_is_known_before_the_third_beat() -> None:
    pulse = Pulse()
    for now in (1.0, 1.1):
        pulse.beat(now)
        assert not pulse.is_known
        assert pulse.known_until == -math.inf
    pulse.beat(1.2)
    assert pulse.is_known
    assert pulse.known_until == 1.0


def test_after_a_standstill_what_came_meanwhile_is_not_known_to_be_read() -> None:
    pulse = Pulse()
    for now in (1.0, 1.1, 1.2, 9.0, 9.1):
        pulse.beat(now)
    assert pulse.known_until == 1.2
    pulse.beat(9.2)
    assert pulse.known_until == 9.0


def test_turns_in_quick_succession_give_zeromq_no_time() -> None:
    pulse = Pulse()
    for number in range(100):
        pulse.beat(1.0 + number * STEP / 100)
    assert not pulse.is_known


@given(st.lists(st.floats(0.0, 3.0), max_size=50))
@settings(max_examples=examples(300))
def test_two_steps_and_more_lie_between_what_is_known_and_the_last_beat(
    pauses: list[float],
) -> None:
    pulse, now = Pulse(), 0.0
    for pause in pauses:
        now += pause
        before = pulse.known_until
        pulse.beat(now)
        assert before <= pulse.known_until <= now - 2 * STEP + 1e-9
