"""The publisher's gRPC health: whether it follows every rank of its engine now."""

import asyncio
from typing import Any

from grpc_health.v1 import health_pb2
from grpc_health.v1._async import HealthServicer

from indexer.watch.pod_cache import PodCache

LOOK_SECONDS = 0.1
"""Pause between two looks for clients that watch. A client that asks once gets the present status."""


class HealthService(HealthServicer):
    """Says SERVING while the event stream of each of the pod's ranks is connected."""

    def __init__(self, cache: PodCache) -> None:
        super().__init__()
        self._cache = cache

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Any) -> Any:  # noqa: N802
        """Answer with the present status."""
        await self.tell()
        return await super().Check(request, context)

    async def tell(self) -> None:
        """Set the status to the present one; clients that watch are told of a change."""
        status = health_pb2.HealthCheckResponse
        fit = all(rank.is_connected for rank in self._cache.ranks)
        await self.set("", status.SERVING if fit else status.NOT_SERVING)

    async def keep_telling(self) -> None:
        """Do so again and again, until cancelled."""
        while True:
            await self.tell()
            await asyncio.sleep(LOOK_SECONDS)
