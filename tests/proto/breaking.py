"""Finds what makes callers of one version of the contracts fail against another: a check like buf's."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)

FIELD = ("name", "type", "type_name", "label", "proto3_optional", "json_name")
METHOD = ("input_type", "output_type", "client_streaming", "server_streaming")


def breaks(released: FileDescriptorSet, now: FileDescriptorSet) -> list[str]:
    """Return each change by which a caller, a server or a stored message of the release is misread.

    New files, messages, fields, values, services and methods are no break. A field or a value may go if its
    number and its name are reserved.
    """
    return [*_pairs("file", "", released.file, now.file, _file)]


def _pairs(
    kind: str,
    where: str,
    before: Iterable[Any],
    after: Iterable[Any],
    compare: Callable[[str, Any, Any], Iterator[str]],
) -> Iterator[str]:
    """Compare all of a kind by name; each has to be there still."""
    there = {one.name: one for one in after}
    for old in before:
        name = f"{where}.{old.name}".lstrip(".")
        if old.name not in there:
            yield f"{kind} {name} is gone"
        else:
            yield from compare(name, old, there[old.name])


def _file(name: str, old: FileDescriptorProto, new: FileDescriptorProto) -> Iterator[str]:
    if (old.package, old.syntax) != (new.package, new.syntax):
        yield f"file {name} has another package or syntax"
    package = old.package
    yield from _pairs("message", package, old.message_type, new.message_type, _message)
    yield from _pairs("enum", package, old.enum_type, new.enum_type, _enum)
    yield from _pairs("service", package, old.service, new.service, _service)


def _message(name: str, old: DescriptorProto, new: DescriptorProto) -> Iterator[str]:
    now = {field.number: field for field in new.field}
    for field in old.field:
        at = f"field {name}.{field.name} = {field.number}"
        if field.number not in now:
            if not _is_reserved(field.number, field.name, new, past=1):
                yield f"{at} is gone, and its number and name are not reserved"
            continue
        other = now[field.number]
        for part in FIELD:
            if getattr(field, part) != getattr(other, part):
                yield f"{at} has another {part}: {getattr(other, part)!r}"
        if _oneof(field, old) != _oneof(other, new):
            yield f"{at} is in another oneof"
    numbers = {field.name: field.number for field in old.field}
    for field in new.field:
        if numbers.get(field.name, field.number) != field.number:
            yield f"field {name}.{field.name} has another number: {field.number}"
    yield from _reserved(name, old, new, now, {field.name for field in new.field}, past=1)
    yield from _pairs("message", name, old.nested_type, new.nested_type, _message)
    yield from _pairs("enum", name, old.enum_type, new.enum_type, _enum)


def _enum(name: str, old: EnumDescriptorProto, new: EnumDescriptorProto) -> Iterator[str]:
    now = {value.number: value.name for value in new.value}
    for value in old.value:
        at = f"value {name}.{value.name} = {value.number}"
        if value.number not in now:
            if not _is_reserved(value.number, value.name, new, past=0):
                yield f"{at} is gone, and its number and name are not reserved"
        elif now[value.number] != value.name:
            yield f"{at} has another name: {now[value.number]!r}"
    yield from _reserved(name, old, new, now, {*now.values()}, past=0)


def _service(name: str, old: ServiceDescriptorProto, new: ServiceDescriptorProto) -> Iterator[str]:
    def method(at: str, before: Any, after: Any) -> Iterator[str]:
        for part in METHOD:
            if getattr(before, part) != getattr(after, part):
                yield f"method {at} has another {part}: {getattr(after, part)!r}"

    yield from _pairs("method", name, old.method, new.method, method)


def _oneof(field: FieldDescriptorProto, message: DescriptorProto) -> str:
    if not field.HasField("oneof_index"):
        return ""
    return message.oneof_decl[field.oneof_index].name


def _numbers(message: DescriptorProto | EnumDescriptorProto, past: int) -> set[int]:
    """Return the reserved numbers; `past` is 1 where ranges end before their last number."""
    ranges: Any = message.reserved_range
    return {
        number for one in ranges for number in range(one.start, min(one.end, 1 << 16) + 1 - past)
    }


def _is_reserved(
    number: int, name: str, message: DescriptorProto | EnumDescriptorProto, past: int
) -> bool:
    return number in _numbers(message, past) and name in message.reserved_name


def _reserved(
    name: str,
    old: DescriptorProto | EnumDescriptorProto,
    new: DescriptorProto | EnumDescriptorProto,
    numbers: Iterable[int],
    names: set[str],
    past: int,
) -> Iterator[str]:
    """Yield the numbers and names that were reserved, and are used or free now."""
    kept = _numbers(new, past)
    for number in sorted(_numbers(old, past)):
        if number in numbers or number not in kept:
            yield f"{name}: the number {number} is not reserved any more"
    for word in old.reserved_name:
        if word in names or word not in new.reserved_name:
            yield f"{name}: the name {word!r} is not reserved any more"
