"""Masters fail over and slots move, under load: what is called exact is true throughout, and all heals."""

import pytest

from tests.faults import cluster
from tests.servers.redis_cluster import RedisCluster

pytestmark = pytest.mark.deep

HOLD = 0.0


async def test_what_a_replica_lacked_when_it_took_over_is_written_anew(
    redis_cluster: RedisCluster, prefix: str
) -> None:
    outcome = await cluster.master_killed(prefix, HOLD, redis_cluster)
    assert outcome.rebuilds


async def test_a_fail_over_in_order_loses_nothing(redis_cluster: RedisCluster, prefix: str) -> None:
    await cluster.failed_over(prefix, HOLD, redis_cluster)


async def test_slots_that_move_under_load_are_followed(
    redis_cluster: RedisCluster, prefix: str
) -> None:
    await cluster.slots_moved(prefix, HOLD, redis_cluster)


async def test_a_master_that_sentinels_replace_is_found_anew(prefix: str) -> None:
    await cluster.sentinel_failed_over(prefix, HOLD)
