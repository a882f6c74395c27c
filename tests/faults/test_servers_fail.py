"""A lone server fails, is emptied or is full: what is called exact is true throughout, and all heals."""

from typing import Literal

import pytest

from tests.faults import server
from warmpath.indexer.shared.writer.lease import Cause

pytestmark = pytest.mark.deep

HOLD = 0.0


@pytest.mark.parametrize("binary", ["redis", "valkey"])
async def test_a_server_that_comes_back_empty_is_filled_again(
    binary: Literal["redis", "valkey"], prefix: str
) -> None:
    outcome = await server.killed(prefix, HOLD, binary=binary)
    assert outcome.rebuilds


async def test_a_server_that_kept_everything_is_believed_again(prefix: str) -> None:
    await server.killed(prefix, HOLD, appendfsync="always")


async def test_a_server_that_lost_the_end_of_its_file_is_filled_again(prefix: str) -> None:
    outcome = await server.killed(prefix, HOLD, appendfsync="everysec", tail=server.TAIL)
    assert outcome.rebuilds


async def test_a_server_that_stands_still_costs_no_more_than_that(prefix: str) -> None:
    await server.stands_still(prefix, HOLD)


async def test_a_server_emptied_by_hand_is_filled_again(prefix: str) -> None:
    outcome = await server.emptied(prefix, HOLD)
    assert sum(outcome.rebuilds.values()) >= 2


async def test_a_record_deleted_by_hand_is_written_anew(prefix: str) -> None:
    outcome = await server.record_deleted(prefix, HOLD)
    assert outcome.rebuilds[Cause.RECORD]


async def test_buckets_deleted_by_hand_are_written_anew(prefix: str) -> None:
    outcome = await server.buckets_deleted(prefix, HOLD)
    assert outcome.rebuilds[Cause.LOST] >= 2


async def test_old_data_that_a_server_loads_are_not_believed(prefix: str) -> None:
    await server.reloaded(prefix, HOLD)


async def test_at_the_memory_limit_pods_are_doubted_and_nothing_is_written_anew_after_it(
    prefix: str,
) -> None:
    outcome = await server.full(prefix, HOLD)
    assert not outcome.rebuilds
    for reasons in outcome.reasons.values():
        assert any("OOM" in reason for reason in reasons)


async def test_what_is_evicted_is_written_anew(prefix: str) -> None:
    outcome = await server.evicting(prefix, HOLD)
    assert outcome.rebuilds


async def test_what_the_server_says_the_time_is_decides_nothing_that_is_read(prefix: str) -> None:
    outcome = await server.forgotten(prefix, HOLD)
    assert not outcome.rebuilds
