"""Serves gRPC's standard services, health and reflection, within limits on their messages' memory.

gRPC's own implementation has no such limit: any client could make the router keep any number of the
largest messages. Requests to these services are small, since they only hold a name.
"""

from collections.abc import Collection
from contextlib import aclosing

import grpc
import grpc.aio
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from warmpath.process.health import HealthService, UnknownServiceError, WatchersFullError
from warmpath.router.calls import reflection
from warmpath.router.calls.intake import Context, Intake, RefusedError
from warmpath.router.transport.call import Refusal

HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
MOST_BYTES = 4096
"""Longest request to the reflection service."""


def standard_handlers(
    health: HealthService,
    services: Collection[str],
    files: Collection[FileDescriptor],
    intake: Intake,
) -> tuple[grpc.GenericRpcHandler, ...]:
    """Return the handlers of health and of reflection, which lists `services` and its own.

    Reflection looks for contracts in `files` and in protobuf's default pool.
    """

    async def check(raw: bytes, _: Context) -> bytes:
        try:
            return health.check(raw)
        except UnknownServiceError as error:
            raise RefusedError(Refusal(grpc.StatusCode.NOT_FOUND, "no such service")) from error
        except ValueError as error:
            raise RefusedError(Refusal(grpc.StatusCode.INVALID_ARGUMENT, str(error))) from error

    async def watch(context: Context) -> None:
        async with aclosing(intake.messages(context)) as messages:
            async for raw, done in messages:
                done()
                try:
                    async with aclosing(health.watch(raw)) as statuses:
                        async for status in statuses:
                            await context.write(status)
                except ValueError as error:
                    raise RefusedError(
                        Refusal(grpc.StatusCode.INVALID_ARGUMENT, str(error))
                    ) from error
                except WatchersFullError as error:
                    raise RefusedError(
                        Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
                    ) from error

    servicer = reflection.servicer((*services, HEALTH), files)

    async def reflect(context: Context) -> None:
        async with aclosing(intake.messages(context)) as messages:
            async for raw, done in messages:
                question = _question(raw)
                done()
                for answer in servicer.ServerReflectionInfo((question,), context):
                    await context.write(answer.SerializeToString())

    return (
        grpc.method_handlers_generic_handler(
            HEALTH, {"Check": intake.unary("Check", check), "Watch": intake.streams(watch)}
        ),
        *(
            grpc.method_handlers_generic_handler(
                name, {"ServerReflectionInfo": intake.streams(reflect)}
            )
            for name in reflection.NAMES
        ),
    )


def _question(raw: bytes) -> reflection_pb2.ServerReflectionRequest:
    problem = f"a reflection request has {len(raw)} bytes, more than {MOST_BYTES}"
    if len(raw) <= MOST_BYTES:
        try:
            return reflection_pb2.ServerReflectionRequest.FromString(raw)
        except DecodeError:
            problem = "a reflection request is not a ServerReflectionRequest"
    raise RefusedError(Refusal(grpc.StatusCode.INVALID_ARGUMENT, problem))
