"""Parses requests from bytes; an error names the field that is not valid."""

import asyncio
from functools import cache
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from warmpath.router.calls.entries import check_entries
from warmpath.router.peers.booking_id import MOST_BYTES as MOST_BOOKING_BYTES
from warmpath.router.prompt.bad_request import BadRequestError
from warmpath.router.prompt.limits import (
    MOST_NAME_BYTES,
    MOST_SESSION_BYTES,
    MOST_TENANT_BYTES,
    check_name,
)

Parsed = TypeVar("Parsed", bound=Message)

LIMITS = {
    "booking_id": MOST_BOOKING_BYTES,
    "session_id": MOST_SESSION_BYTES,
    "tenant": MOST_TENANT_BYTES,
}
"""The most bytes of names that may not have MOST_NAME_BYTES."""
BYTES = 2
"""The wire type of strings and messages."""
LARGE_BYTES = 256 << 10
"""Beyond this length other tasks get a turn between parsing a request and answering it."""


async def parse(kind: type[Parsed], raw: bytes) -> Parsed:
    """Parse a request; yield to other tasks if it is large.

    Raises BadRequestError if it is not a valid message, or a list or a name in it is too long.
    """
    for _ in check_entries(raw, kind.DESCRIPTOR):
        await asyncio.sleep(0)
    parsed = _parsed(kind, raw)
    for name, most in _names(kind.DESCRIPTOR):
        check_name(name, getattr(parsed, name), most)
    if len(raw) > LARGE_BYTES:
        await asyncio.sleep(0)
    return parsed


def _parsed(kind: type[Parsed], raw: bytes) -> Parsed:
    try:
        return kind.FromString(raw)
    except DecodeError as error:
        field = _bad_text(raw, kind.DESCRIPTOR)
        problem = "is not UTF-8" if field else f"is not a {kind.DESCRIPTOR.name}"
        raise BadRequestError(field or "request", problem) from error


@cache
def _names(kind: Any) -> list[tuple[str, int]]:
    """Return the fields of a request of our own that are one text, and the most bytes of each.

    All of them are names.
    """
    if not kind.full_name.startswith("warmpath."):
        return []
    return [
        (field.name, LIMITS.get(field.name, MOST_NAME_BYTES))
        for field in kind.fields
        if field.type == FieldDescriptor.TYPE_STRING and not field.is_repeated
    ]


def _bad_text(raw: bytes, kind: Any) -> str:
    """Return the path of the first string field that is not UTF-8; empty if all are."""
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
