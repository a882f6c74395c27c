"""Parses and checks requests; an error names the field that is not valid.

Protobuf makes the objects of all lists in one call: for a few megabytes of them that takes a second. So
the entries are counted first, without making objects, and a list that is too long is refused.
"""

import asyncio
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from warmpath.process.loop import in_turns
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.load.engine_metrics import problem_of
from warmpath.router.peers import booking_id as booking_ids
from warmpath.router.prompt.limits import (
    MOST_ENTRIES,
    MOST_NAME_BYTES,
    MOST_SESSION_BYTES,
    MOST_TENANT_BYTES,
    BadRequestError,
    check_count,
    check_name,
)
from warmpath.scorer.policy import policy_names

TEXT_OR_MESSAGE = 2
"""The wire type of texts and messages."""
MORE = 0x80
"""The bit that is set in every byte of a varint except the last."""
NUMBER = 0
"""The wire type of a varint."""
UNKNOWN = 0
"""The tag under which all undefined fields are counted, since half a billion such tags exist."""
FIXED = {1: 8, 5: 4, 3: 0, 4: 0}
"""Bytes after the tag, by wire type with a fixed length. A group, which nobody writes, has none at its
beginning and end; the fields between them are counted as usual."""
AT_ONCE = 1024
"""Fields that are counted without a pause: about two milliseconds' work."""
LEAST_BYTES = 2
"""Least bytes of an entry: its tag and its length."""
NESTED = ("prompt",)
"""Fields in whose messages lists are counted too. The messages of loads and items have no lists."""


def check_entries(raw: bytes, kind: Any, most: int = MOST_ENTRIES) -> Iterator[None]:
    """Raise BadRequestError if any field occurs more than `most` times.

    `kind` is the message's descriptor. Bytes that are not a message are left for the parser to refuse.
    Yields whenever other tasks may run.
    """
    seen = 0
    """Number of fields so far, in all messages."""
    counts_of: dict[str, dict[int, int]] = {}
    """Number of fields by path and tag. Messages with one path are counted together, since the parser
    merges them into one."""

    def check(at: int, end: int, kind: Any, path: str) -> Iterator[None]:
        nonlocal seen
        counts = counts_of.setdefault(path, {})
        nested, numbers = _fields(kind)
        while at < end:
            seen += 1
            if not seen % AT_ONCE:
                yield
            tag = raw[at]
            at += 1
            if tag >= MORE:
                tag, at = varint_at(raw, at - 1, end)
            counted = tag if tag >> 3 in numbers else UNKNOWN
            counts[counted] = count = counts.get(counted, 0) + 1
            if count > most:
                field = kind.fields_by_number.get(tag >> 3)
                check_count(f"{path}{field.name}" if field else "request", count, most)
            wire_type = tag & 7
            if wire_type == TEXT_OR_MESSAGE:
                size, at = varint_at(raw, at, end)
                if tag in nested and at + size <= end:
                    field = nested[tag]
                    yield from check(at, at + size, field.message_type, f"{path}{field.name}.")
                at += size
            elif wire_type == NUMBER:
                _, at = varint_at(raw, at, end)
            elif wire_type in FIXED:
                at += FIXED[wire_type]
            else:
                return

    if len(raw) > LEAST_BYTES * most:
        yield from check(0, len(raw), kind, "")


@cache
def _fields(kind: Any) -> tuple[dict[int, Any], frozenset[int]]:
    """Return a message's fields within which lists are counted too, by tag, and all fields' numbers."""
    nested = {
        field.number << 3 | TEXT_OR_MESSAGE: field
        for field in map(kind.fields_by_name.get, NESTED)
        if field is not None and field.message_type is not None
    }
    return nested, frozenset(kind.fields_by_number)


def varint_at(raw: bytes, at: int, end: int) -> tuple[int, int]:
    """Return the varint at `at` and the position after it, `end` if its last byte is missing."""
    if at < end and raw[at] < MORE:
        return raw[at], at + 1
    number = shift = 0
    while at < end:
        byte = raw[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < MORE or shift > 63:
            return number, at
        shift += 7
    return number, end


Parsed = TypeVar("Parsed", bound=Message)

LIMITS = {
    "booking_id": booking_ids.MOST_BYTES,
    "session_id": MOST_SESSION_BYTES,
    "parent_session_id": MOST_SESSION_BYTES,
    "tenant": MOST_TENANT_BYTES,
}
"""The most bytes of the names that have another limit than MOST_NAME_BYTES."""
PROMPT_NAMES = ("model", "lora", "cache_salt", "extra_key")
"""The names of a prompt."""
CHECKED_AT_ONCE = 1024
"""Loads checked before other tasks get a turn: about a millisecond's work."""
LARGE_BYTES = 256 << 10
"""Beyond this length other tasks get a turn between parsing a request and answering it."""


async def parse(kind: type[Parsed], raw: bytes) -> Parsed:
    """Parse a request; yield to other tasks if it is large.

    Raises BadRequestError if it is not a valid message, or a list or a name in it is too long.
    """
    for _ in check_entries(raw, kind.DESCRIPTOR):
        await asyncio.sleep(0)
    request = parsed(kind, raw)
    if len(raw) > LARGE_BYTES:
        await asyncio.sleep(0)
    return request


def parsed(kind: type[Parsed], raw: bytes) -> Parsed:
    """Parse a small request at once, without a turn for other tasks. Raises as `parse`."""
    try:
        request = kind.FromString(raw)
    except DecodeError as error:
        field = _bad_text(raw, kind.DESCRIPTOR)
        problem = "is not UTF-8" if field else f"is not a {kind.DESCRIPTOR.name}"
        raise BadRequestError(field or "request", problem) from error
    check_names(request)
    return request


def check_names(request: Message) -> None:
    """Raise BadRequestError for a name of a request of our own that is too long."""
    for name, most in _names(request.DESCRIPTOR):
        if given := getattr(request, name):
            check_name(name, given, most)


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
        if field is None or one.wire_type != TEXT_OR_MESSAGE:
            continue
        is_string = field.type == FieldDescriptor.TYPE_STRING
        if is_string and one.data.decode(errors="ignore").encode() != one.data:
            return str(field.name)
        if field.message_type and (inner := _bad_text(one.data, field.message_type)):
            return f"{field.name}.{inner}"
    return ""


def check_asked(request: pb.PickRequest | pb.ExplainRequest) -> None:
    """Raise BadRequestError for a request without any possible pick, whatever its prompt and loads."""
    if isinstance(request, pb.PickRequest) and request.booking_id:
        _check_booking_id(request.booking_id)
        if booking_ids.router_of(request.booking_id):
            raise BadRequestError("booking_id", "has the form of the router's own booking ids")
    for name in request.pods:
        check_name("pods", name)
    if request.policy and request.policy not in (known := policy_names()):
        problem = f"no policy {request.policy!r}; known: {', '.join(known)}"
        raise BadRequestError("policy", problem)


async def check_report(request: pb.ReportRequest) -> None:
    """Raise BadRequestError for names of a reported prompt that are too long, or an impossible load."""
    if request.HasField("prompt"):
        for name in PROMPT_NAMES:
            check_name(f"prompt.{name}", getattr(request.prompt, name))
    if request.loads:
        await check_loads(request.loads)


def check_reported(report: pb.ReportRequest | pb.Report) -> None:
    """Raise BadRequestError for a report without a valid booking id."""
    if not report.booking_id:
        raise BadRequestError("booking_id", "is missing")
    _check_booking_id(report.booking_id)


async def check_loads(loads: Sequence[pb.PodLoad]) -> None:
    """Raise BadRequestError for an impossible load; yield to other tasks if there are many loads."""
    position = -1
    async for one in in_turns(loads, CHECKED_AT_ONCE):
        position += 1
        check_name(f"loads[{position}].pod", one.pod)
        found = problem_of(
            running=one.running, waiting=one.waiting, kv_usage=one.kv_usage, age=one.age
        )
        if found is not None:
            field, problem = found
            raise BadRequestError(f"loads[{position}].{field}".rstrip("."), problem)


def _check_booking_id(name: str) -> None:
    if problem := booking_ids.problem_of(name):
        raise BadRequestError("booking_id", problem)
