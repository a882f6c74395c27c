"""The router's gRPC health: `Health` as the standard service tells it."""

import asyncio
from collections.abc import Sequence
from typing import Any

from grpc_health.v1 import health_pb2
from grpc_health.v1._async import HealthServicer

from router.health import Health

LOOK_SECONDS = 0.1
"""Between two looks for those who watch; who asks gets what is so now."""


class HealthService(HealthServicer):
    """Says of every service in `names` whether the router is ready."""

    def __init__(self, health: Health, names: Sequence[str]) -> None:
        super().__init__()
        self._health = health
        self._names = names

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Any) -> Any:  # noqa: N802
        """Answer one question."""
        await self.tell()
        return await super().Check(request, context)

    async def tell(self) -> None:
        """Take over what is so now."""
        status = health_pb2.HealthCheckResponse
        now = status.SERVING if self._health.ready() else status.NOT_SERVING
        for name in self._names:
            await self.set(name, now)

    async def keep_telling(self) -> None:
        """Tell those who watch, until cancelled."""
        while True:
            await self.tell()
            await asyncio.sleep(LOOK_SECONDS)
