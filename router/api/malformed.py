"""What is wrong with bytes that are no message: the field, where it can be told."""

from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

BYTES = 2
"""The wire type of texts and messages."""


def malformed(raw: bytes, kind: Any) -> tuple[str, str]:
    """Return the field and what is wrong with it, of bytes that could not be parsed.

    `kind` is the message's descriptor, of whichever of protobuf's implementations.
    """
    field = _bad_text(raw, kind)
    if field:
        return field, "is not UTF-8"
    return "request", f"is no {kind.name}"


def _bad_text(raw: bytes, kind: Any) -> str:
    """Return the path of the first text that is not UTF-8; empty for none."""
    try:
        found = UnknownFieldSet(Empty.FromString(raw))
    except DecodeError:
        return ""
    for at in range(len(found)):
        one = found[at]
        field = kind.fields_by_number.get(one.field_number)
        if field is None or one.wire_type != BYTES:
            continue
        if field.type == FieldDescriptor.TYPE_STRING and not _is_text(one.data):
            return str(field.name)
        if field.message_type and (inner := _bad_text(one.data, field.message_type)):
            return f"{field.name}.{inner}"
    return ""


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
