"""Tells callers the contracts by gRPC's server reflection, v1 and v1alpha.

The two versions' messages have equal fields and numbers; only the package's name differs
(https://github.com/grpc/grpc-proto/blob/master/grpc/reflection/v1/reflection.proto). gRPC's package
for Python has v1alpha's alone, so v1's file is made of it.
"""

from collections.abc import Collection, Iterator
from typing import Any

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection import SERVICE_NAME, ReflectionServicer

OLDER, NEWER = "grpc.reflection.v1alpha", "grpc.reflection.v1"
NAMES = (SERVICE_NAME.replace(OLDER, NEWER), SERVICE_NAME)
"""The services' full names, v1's first."""


class _Contracts:
    """Finds a contract in several pools, as one pool would: each of our files has a pool of its own."""

    def __init__(self, pools: Collection[Any]) -> None:
        self._pools = pools

    def FindFileByName(self, name: str) -> FileDescriptor:  # noqa: N802
        found: FileDescriptor = self._first("FindFileByName", name)
        return found

    def FindFileContainingSymbol(self, name: str) -> FileDescriptor:  # noqa: N802
        found: FileDescriptor = self._first("FindFileContainingSymbol", name)
        return found

    def FindMessageTypeByName(self, name: str) -> Descriptor:  # noqa: N802
        found: Descriptor = self._first("FindMessageTypeByName", name)
        return found

    def FindExtensionByNumber(self, message: Descriptor, number: int) -> FieldDescriptor:  # noqa: N802
        found: FieldDescriptor = message.file.pool.FindExtensionByNumber(message, number)
        return found

    def FindAllExtensions(self, message: Descriptor) -> list[FieldDescriptor]:  # noqa: N802
        found: list[FieldDescriptor] = message.file.pool.FindAllExtensions(message)
        return found

    def _first(self, method: str, name: str) -> Any:
        for pool in self._pools:
            try:
                return getattr(pool, method)(name)
            except KeyError:
                continue
        raise KeyError(name)


def servicer(services: Collection[str], files: Collection[FileDescriptor]) -> Any:
    """Return what answers questions of both versions: it lists `services` and the two of reflection.

    The contracts are in `files`, or in protobuf's default pool.
    """
    newer = descriptor_pool.DescriptorPool()
    newer.AddSerializedFile(_newer_file().SerializeToString())
    default: Any = descriptor_pool.Default()
    pool = _Contracts([*(file.pool for file in files), newer, default])
    return ReflectionServicer(service_names=(*services, *NAMES), pool=pool)


def _newer_file() -> FileDescriptorProto:
    file = FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(file)
    file.name = "grpc/reflection/v1/reflection.proto"
    file.package = NEWER
    for message in _messages(file.message_type):
        for field in (one for one in message.field if one.HasField("type_name")):
            field.type_name = field.type_name.replace(OLDER, NEWER)
    for service in file.service:
        for method in service.method:
            method.input_type = method.input_type.replace(OLDER, NEWER)
            method.output_type = method.output_type.replace(OLDER, NEWER)
    return file


def _messages(messages: Collection[DescriptorProto]) -> Iterator[DescriptorProto]:
    for message in messages:
        yield message
        yield from _messages(message.nested_type)
