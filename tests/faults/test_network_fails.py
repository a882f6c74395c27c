"""Connections are cut, slow and narrow: what is called exact is true throughout, and all heals."""

import pytest

from tests.faults import network

pytestmark = pytest.mark.deep

HOLD = 0.0


async def test_what_is_cut_in_mid_batch_is_there_once_and_whole(prefix: str) -> None:
    await network.cut(prefix, HOLD)


async def test_far_away_look_ups_say_that_they_are_late_and_copies_follow(prefix: str) -> None:
    outcome = await network.slow(prefix, HOLD)
    assert any("did not answer" in reason for reason in outcome.reasons["shared"])


@pytest.mark.parametrize("latency", [0.2, 0.6])
async def test_publishers_far_away_are_exact_only_as_far_as_they_keep_up(
    latency: float, prefix: str
) -> None:
    await network.far(prefix, HOLD, latency=latency)


async def test_publishers_on_a_thin_line_are_exact_only_as_far_as_they_keep_up(prefix: str) -> None:
    await network.far(prefix, HOLD, rate=network.THIN)


async def test_publishers_of_which_nothing_arrives_are_not_exact_for_long(prefix: str) -> None:
    await network.silent(prefix, HOLD)


async def test_over_a_narrow_line_publishers_go_on_writing(prefix: str) -> None:
    await network.narrow(prefix, HOLD)


async def test_readers_that_reach_nothing_say_so_and_catch_up(prefix: str) -> None:
    outcome = await network.readers_cut_off(prefix, HOLD)
    assert not outcome.rebuilds


async def test_publishers_that_reach_nothing_lose_their_pods_with_the_lease(prefix: str) -> None:
    outcome = await network.writers_cut_off(prefix, HOLD)
    assert sum(outcome.rebuilds.values()) >= 2
