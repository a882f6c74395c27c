"""Servers, networks and publishers fail in every way: no Score fails, what is exact is true, all heals."""

import pytest

from tests.faults import publishers
from tests.faults.faults import FAULTS
from tests.servers.wrong_clock import WrongClock

QUICK = "commands refused: ACL -@write (redis)"
"""Tried in `make test` too: reads work, and nothing tells readers that publishers cannot write."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == QUICK else pytest.mark.deep)
        for name, fault in FAULTS.items()
        if fault.is_tested
    ],
)
async def test_what_is_exact_is_true_throughout_and_all_heals_after(name: str, prefix: str) -> None:
    fault = FAULTS[name]
    if fault.run is publishers.dead_when_time_goes_back and not WrongClock.can_be():
        pytest.skip("a server's clock is wrong by C code: no compiler")
    outcome = await fault.run(prefix, 0.0)
    assert fault.so(outcome), outcome
