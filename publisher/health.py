"""Serves gRPC's standard health service beside CacheWatch, with gRPC's library."""

from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2

from warmpath.process.health import HealthService, UnknownServiceError, WatchersFullError

SERVICE = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name

Context = grpc.aio.ServicerContext[Any, Any]


def health_handler(health: HealthService) -> grpc.GenericRpcHandler:
    """Return the gRPC handler, which takes and gives bytes."""

    async def check(raw: bytes, context: Context) -> bytes:
        try:
            return health.check(raw)
        except UnknownServiceError:
            return await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        except ValueError as error:
            return await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

    async def watch(raw: bytes, context: Context) -> None:
        try:
            async with aclosing(health.watch(raw)) as statuses:
                async for status in statuses:
                    await context.write(status)
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except WatchersFullError as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))

    handlers: dict[str, Any] = {
        "Check": grpc.unary_unary_rpc_method_handler(check),
        "Watch": grpc.unary_stream_rpc_method_handler(watch),
    }
    return grpc.method_handlers_generic_handler(SERVICE, handlers)
