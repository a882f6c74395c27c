"""Publishers die, start again, contend, stand still, and have wrong clocks: exact stays true, all heals."""

import pytest

from tests.faults import claims
from tests.servers.wrong_clock import WrongClock

pytestmark = pytest.mark.deep

HOLD = 0.0


async def test_of_two_publishers_the_later_has_the_pod_until_it_dies(prefix: str) -> None:
    await claims.contended(prefix, HOLD)


async def test_a_zombies_late_writes_change_nothing_that_is_seen(prefix: str) -> None:
    await claims.zombie(prefix, HOLD)


async def test_a_publisher_that_starts_again_writes_anew_and_its_leftovers_are_swept(
    prefix: str,
) -> None:
    await claims.restarted(prefix, HOLD)


async def test_a_pod_without_publisher_is_gone_with_its_lease(prefix: str) -> None:
    await claims.gone_for_good(prefix, HOLD)


@pytest.mark.skipif(
    not WrongClock.can_be(), reason="a server's clock is wrong by C code: no compiler"
)
async def test_a_dead_publishers_pod_is_not_exact_though_the_servers_clock_goes_back(
    prefix: str,
) -> None:
    await claims.dead_when_time_goes_back(prefix, HOLD)


async def test_no_two_clocks_need_agree(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await claims.clocks_lie(prefix, HOLD, monkeypatch)
