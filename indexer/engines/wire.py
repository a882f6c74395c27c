"""Decodes the msgpack batches that vLLM and SGLang publish, field by field, without interpreting them.

A batch is an array `[timestamp, events, rank?]`. An event is an array `[tag, field, …]` whose trailing
fields may be missing, or a map with a `type` key; engines changed from one form to the other, so
each event's form is checked. If an event cannot be read, the batch's other events still count, as long
as the end of that event can be found.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from struct import Struct
from typing import Any

import msgspec

from warmpath.indexer.engines.cache_groups import MOST_GROUP
from warmpath.indexer.engines.event import (
    Batch,
    Cleared,
    Event,
    MalformedEventError,
    Tier,
    UnreadableEvent,
)
from warmpath.process.bytes import UNREADABLE

LONGEST_KIND = 40
"""The most characters of an unknown event's type in a message."""

Readers = Mapping[type[msgspec.Struct], Callable[[Any], Event]]
"""The function that reads an event, by the event's type on the wire; it may raise ValueError."""


@contextmanager
def one_error() -> Iterator[None]:
    """Raise MalformedEventError in place of what decoders raise, and of each ValueError."""
    try:
        yield
    except (*UNREADABLE, ValueError) as error:
        raise MalformedEventError(str(error)) from error


class AllBlocksCleared(msgspec.Struct, frozen=True):
    """The event that the whole cache was emptied, in this format of every engine; it has no fields."""


def cleared(_: AllBlocksCleared) -> Cleared:
    """Return the neutral event of a clear."""
    return Cleared()


class WireBatch(msgspec.Struct, frozen=True):
    """A batch as it is on the wire."""

    ts: float
    events: list[msgspec.Struct | UnreadableEvent]
    data_parallel_rank: int | None


_TIMESTAMP = Struct(">d")


def timestamp_of(payload: bytes) -> float:
    """Return a batch's timestamp without reading the rest; 0 where it is not a 64-bit float."""
    if len(payload) > 10 and 0x91 <= payload[0] <= 0x9F and payload[1] == 0xCB:
        seconds: float = _TIMESTAMP.unpack_from(payload, 2)[0]
        return seconds
    return 0.0


def decode_batch(payload: bytes, readers: Readers) -> WireBatch:
    """Decode a payload field by field; the tag of an event is the name of its type.

    Unknown map keys, and elements after a type's last field, are ignored. Raises MalformedEventError
    for anything that is not a batch.
    """
    with one_error():
        parts = msgspec.msgpack.decode(payload, type=list[msgspec.Raw])
        if len(parts) < 2:
            raise MalformedEventError(
                "it is not an array that begins with a timestamp and a list of events"
            )
        timestamp = msgspec.msgpack.decode(parts[0], type=float)
        raws = msgspec.msgpack.decode(parts[1], type=list[msgspec.Raw])
        rank = msgspec.msgpack.decode(parts[2], type=int | None) if len(parts) > 2 else None
    types = {one.__name__: one for one in readers}
    return WireBatch(timestamp, [_event(raw, types) for raw in raws], rank)


def _event(
    raw: msgspec.Raw, types: Mapping[str, type[msgspec.Struct]]
) -> msgspec.Struct | UnreadableEvent:
    tag: Any = ""
    try:
        item = msgspec.msgpack.decode(raw)
        if isinstance(item, dict):
            tag = item.get("type")
        elif isinstance(item, list) and item:
            tag = item[0]
        else:
            return UnreadableEvent("", "it is neither a map nor an array that begins with its tag")
        if not isinstance(tag, str):
            return UnreadableEvent("", "its tag is not a string")
        wire_type = types.get(tag)
        if wire_type is None:
            return UnreadableEvent(tag[:LONGEST_KIND], "its type is not known")
        if isinstance(item, list):
            item = dict(zip(wire_type.__struct_fields__, item[1:], strict=False))
        return msgspec.convert(item, wire_type)
    except (*UNREADABLE, TypeError) as error:
        # A TypeError is a map whose key cannot be hashed.
        return UnreadableEvent(tag, str(error))


def read_batch(payload: bytes, readers: Readers) -> Batch:
    """Decode a payload into neutral events. Raises MalformedEventError where it is not a batch."""
    wire = decode_batch(payload, readers)
    events: list[Event] = []
    unread: list[UnreadableEvent] = []
    for one in wire.events:
        if isinstance(one, UnreadableEvent):
            unread.append(one)
            continue
        try:
            event = readers[type(one)](one)
        except ValueError as error:
            unread.append(UnreadableEvent(type(one).__name__, str(error)))
            continue
        if isinstance(event, Cleared):
            unread.clear()
        events.append(event)
    return Batch(wire.ts, tuple(events), wire.data_parallel_rank, tuple(unread))


def group_of(number: int | None) -> int:
    """Return a cache group's number, 0 for None; raise MalformedEventError above `MOST_GROUP`."""
    return within("group_idx", number or 0, 0, MOST_GROUP)


def within(field: str, value: int, least: int, most: int) -> int:
    """Return `value` if it is from `least` to `most` (inclusive), else raise MalformedEventError."""
    if not least <= value <= most:
        bound = f"{least} or more" if value < least else f"{most} or less"
        raise MalformedEventError(f"{field} is {value}; it must be {bound}")
    return value


def lora_of(name: str | None, number: int | None) -> str:
    """Return an adapter's name, or else a text with the engine's number for it; empty without both.

    A number is valid for one engine only, so the text differs from every name.
    """
    if name or number is None:
        return name or ""
    return f"\x00lora-id:{number}"


TIERS = {
    "gpu": Tier.GPU,
    "cuda": Tier.GPU,
    "cpu": Tier.CPU,
    "cpu_pinned": Tier.CPU,
    "disk": Tier.DISK,
    "fs": Tier.DISK,
    "storage": Tier.DISK,
    "obj": Tier.REMOTE,
    "external": Tier.REMOTE,
    "remote": Tier.REMOTE,
}
"""Medium, lower case and without a device number, to tier."""


def tier_of(medium: str | None) -> Tier:
    """Return a medium's tier; GPU for None, REMOTE for an unknown medium."""
    if medium is None:
        return Tier.GPU
    # An unknown medium counts as slower than the GPU, so that its blocks are never overrated.
    return TIERS.get(medium.lower().partition(":")[0], Tier.REMOTE)
