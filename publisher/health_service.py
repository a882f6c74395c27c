"""The publisher's gRPC health: whether it follows every rank of its engine now."""

import asyncio
from typing import Any

from grpc_health.v1 import health_pb2
from grpc_health.v1._async import HealthServicer

from indexer.watch.pod_cache import PodCache

LOOK_SECONDS = 0.1
"""Between two looks for those who watch; who asks gets what is so now."""


class HealthService(HealthServicer):
    """Says SERVING while the event stream of each rank is connected, of one pod's cache."""

    def __init__(self, cache: PodCache) -> None:
        super().__init__()
        self._cache = cache

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Any) -> Any:  # noqa: N802
        """Answer one question."""
        await self.tell()
        return await super().Check(request, context)

    async def tell(self) -> None:
        """Take over what is so now."""
        status = health_pb2.HealthCheckResponse
        fit = all(rank.is_connected for rank in self._cache.ranks)
        await self.set("", status.SERVING if fit else status.NOT_SERVING)

    async def keep_telling(self) -> None:
        """Tell those who watch, until cancelled."""
        while True:
            await self.tell()
            await asyncio.sleep(LOOK_SECONDS)
