"""Serves gRPC's standard services, health and reflection, within limits on their messages' memory.

gRPC's own implementation has no such limit: any client could make the router keep any number of the
largest messages. Requests to these services are small, since they only hold a name.
"""

from collections.abc import Collection, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

import grpc
from google.protobuf import descriptor_pool, text_format
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection import SERVICE_NAME, ReflectionServicer

from warmpath.h2grpc.method import Method, Refusal, RefusedError
from warmpath.process.health import HealthService, UnknownServiceError, WatchersFullError
from warmpath.router.calls.intake import Intake
from warmpath.router.transport.call import Call

HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
OLDER, NEWER = "grpc.reflection.v1alpha", "grpc.reflection.v1"
REFLECTIONS = (SERVICE_NAME.replace(OLDER, NEWER), SERVICE_NAME)
"""The full names of the services of reflection, v1's first."""
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
        with _refusing():
            call.put(health.check(raw))

    async def watch(call: Call) -> None:
        async with aclosing(intake.messages(call)) as messages:
            async for raw, done in messages:
                done()
                with _refusing():
                    async with aclosing(health.watch(raw)) as statuses:
                        async for status in statuses:
                            await call.write(status)

    answers = _reflection((*services, HEALTH), files).ServerReflectionInfo

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
        **{f"/{name}/ServerReflectionInfo": Method(reflect) for name in REFLECTIONS},
    }


@contextmanager
def _refusing() -> Iterator[None]:
    """Make statuses of the errors of the health service."""
    try:
        yield
    except UnknownServiceError as error:
        raise RefusedError(Refusal(grpc.StatusCode.NOT_FOUND, "no such service")) from error
    except (ValueError, WatchersFullError) as error:
        is_full = isinstance(error, WatchersFullError)
        codes = grpc.StatusCode
        code = codes.RESOURCE_EXHAUSTED if is_full else codes.INVALID_ARGUMENT
        raise RefusedError(Refusal(code, str(error))) from error


def _question(raw: bytes) -> reflection_pb2.ServerReflectionRequest:
    problem = f"a reflection request has {len(raw)} bytes, more than {MOST_BYTES}"
    if len(raw) <= MOST_BYTES:
        try:
            return reflection_pb2.ServerReflectionRequest.FromString(raw)
        except DecodeError:
            problem = "a reflection request is not a ServerReflectionRequest"
    raise RefusedError(Refusal(grpc.StatusCode.INVALID_ARGUMENT, problem))


def _reflection(services: Collection[str], files: Collection[FileDescriptor]) -> Any:
    """Return the servicer that answers both versions: it lists `services` and the two of reflection.

    Each of `files` has a pool of its own, and the contracts of other services are in the default pool;
    gRPC's answers come from one pool.
    """
    pool = descriptor_pool.DescriptorPool()
    added: set[str] = set()

    def add(file: FileDescriptor) -> None:
        if file.name not in added:
            added.add(file.name)
            for needed in file.dependencies:
                add(needed)
            pool.AddSerializedFile(file.serialized_pb)

    for file in files:
        add(file)
    ours = {one.full_name for file in files for one in file.services_by_name.values()}
    default: Any = descriptor_pool.Default()
    for name in {*services, SERVICE_NAME} - ours:
        add(default.FindFileContainingSymbol(name))
    # The two versions' messages have equal fields and numbers; only the package's name differs
    # (https://github.com/grpc/grpc-proto/blob/master/grpc/reflection/v1/reflection.proto). gRPC's
    # package for Python has v1alpha's alone, so v1's file is made of it.
    newer = FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(newer)
    newer.name = "grpc/reflection/v1/reflection.proto"
    text = text_format.MessageToString(newer).replace(OLDER, NEWER)
    pool.AddSerializedFile(text_format.Parse(text, FileDescriptorProto()).SerializeToString())
    return ReflectionServicer(service_names=(*services, *REFLECTIONS), pool=pool)
