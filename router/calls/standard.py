"""Serves gRPC's standard services, health and reflection, within limits on their messages' memory.

gRPC's own implementation has no such limit: any client could make the router keep any number of the
largest messages. Requests to these services are small, since they only hold a name.
"""

from collections.abc import Collection
from contextlib import aclosing

import grpc
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from warmpath.h2grpc.method import Method, Refusal, RefusedError
from warmpath.process.health import HealthService, UnknownServiceError, WatchersFullError
from warmpath.router.calls import reflection
from warmpath.router.calls.intake import Intake
from warmpath.router.transport.call import Call

HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
MOST_BYTES = 4096
"""Longest request to the reflection service."""


def standard_methods(
    health: HealthService,
    services: Collection[str],
    files: Collection[FileDescriptor],
    intake: Intake,
) -> dict[str, Method]:
    """Return the methods of health and of reflection, which lists `services` and its own.

    Reflection looks for contracts in `files` and in protobuf's default pool.
    """

    async def check(raw: bytes, call: Call) -> None:
        try:
            call.put(health.check(raw))
        except UnknownServiceError as error:
            raise RefusedError(Refusal(grpc.StatusCode.NOT_FOUND, "no such service")) from error
        except ValueError as error:
            raise RefusedError(Refusal(grpc.StatusCode.INVALID_ARGUMENT, str(error))) from error

    async def watch(call: Call) -> None:
        async with aclosing(intake.messages(call)) as messages:
            async for raw, done in messages:
                done()
                try:
                    async with aclosing(health.watch(raw)) as statuses:
                        async for status in statuses:
                            await call.write(status)
                except ValueError as error:
                    raise RefusedError(
                        Refusal(grpc.StatusCode.INVALID_ARGUMENT, str(error))
                    ) from error
                except WatchersFullError as error:
                    raise RefusedError(
                        Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
                    ) from error

    answers = reflection.servicer((*services, HEALTH), files).ServerReflectionInfo

    async def reflect(call: Call) -> None:
        async with aclosing(intake.messages(call)) as messages:
            async for raw, done in messages:
                question = _question(raw)
                done()
                for answer in answers((question,), None):
                    await call.write(answer.SerializeToString())

    return {
        f"/{HEALTH}/Check": intake.method("Check", check),
        f"/{HEALTH}/Watch": Method(watch),
        **{f"/{name}/ServerReflectionInfo": Method(reflect) for name in reflection.NAMES},
    }


def _question(raw: bytes) -> reflection_pb2.ServerReflectionRequest:
    problem = f"a reflection request has {len(raw)} bytes, more than {MOST_BYTES}"
    if len(raw) <= MOST_BYTES:
        try:
            return reflection_pb2.ServerReflectionRequest.FromString(raw)
        except DecodeError:
            problem = "a reflection request is not a ServerReflectionRequest"
    raise RefusedError(Refusal(grpc.StatusCode.INVALID_ARGUMENT, problem))
