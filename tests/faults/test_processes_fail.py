"""Publishers get little processor time, a writing router is killed: what is called exact is true throughout."""

import pytest

from tests.faults import processes

pytestmark = pytest.mark.deep

HOLD = 0.0


async def test_publishers_that_are_stopped_most_of_the_time_are_not_exact_meanwhile(
    prefix: str,
) -> None:
    await processes.stopped_in_turn(prefix, HOLD)


async def test_publishers_with_a_tenth_of_a_core_are_exact_only_as_far_as_they_keep_up(
    prefix: str,
) -> None:
    await processes.starved(prefix, HOLD, share=0.1)
