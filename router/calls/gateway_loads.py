"""Checks and records the loads of ranks that gateways report in their requests."""

import asyncio
from collections.abc import Callable, Sequence

from warmpath.indexer.ranks import Ingest
from warmpath.process.turns import in_turns
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.load.engine_metrics import Observed, problem_of
from warmpath.router.load.table import LoadTable
from warmpath.router.prompt.bad_request import BadRequestError
from warmpath.router.prompt.limits import check_name

AT_ONCE = 64
"""Loads recorded before other tasks get a turn: about two milliseconds' work."""
CHECKED_AT_ONCE = 1024
"""Loads checked before other tasks get a turn: about a millisecond's work."""


async def check_loads(loads: Sequence[pb.PodLoad]) -> None:
    """Raise BadRequestError for an impossible load; yield to other tasks if there are many loads."""
    if not loads:
        return
    position = -1
    async for one in in_turns(loads, CHECKED_AT_ONCE):
        position += 1
        check_name(f"loads[{position}].pod", one.pod)
        found = problem_of(
            running=one.running, waiting=one.waiting, kv_usage=one.kv_usage, age=one.age
        )
        if found is not None:
            field, problem = found
            raise BadRequestError(f"loads[{position}].{field}".rstrip("."), problem)


class GatewayLoads:
    """Records checked loads in the load table; it ignores loads of unknown ranks."""

    def __init__(self, ingest: Ingest, loads: LoadTable, clock: Callable[[], float]) -> None:
        self._ingest = ingest
        self._loads = loads
        self._clock = clock

    async def observe(self, loads: Sequence[pb.PodLoad]) -> None:
        """Record loads; yield to other tasks within and after a long list."""
        if not loads:
            return
        now = self._clock()
        async for one in in_turns(loads, AT_ONCE):
            if self._observe(one, now):
                # The table caches the result, so the next pick need not compute it for all ranks.
                self._loads.load(one.pod, one.rank, self._clock())
        if len(loads) > AT_ONCE:
            await asyncio.sleep(0)

    def _observe(self, one: pb.PodLoad, now: float) -> bool:
        """Record one load; return False if the rank is unknown."""
        if self._ingest.rank(one.pod, one.rank) is None:
            return False
        seen = Observed(one.running, one.waiting, one.kv_usage, now - one.age)
        self._loads.observe(one.pod, one.rank, seen, "gateway")
        return True
