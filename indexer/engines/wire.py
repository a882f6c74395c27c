"""The msgpack batches that vLLM and SGLang publish, field by field, nothing interpreted.

A batch is an array `[timestamp, events, rank?]`. An event is an array `[tag, field, …]` whose
trailing fields may be cut off, or a map with a `type` key; engines changed from one to the other, so
it is decided event by event (`shared/engine-events.md`, 2.1, 2.2 and 6.1).
"""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec

from indexer.engines.event import EngineHash, MalformedEventError

UINT64 = (1 << 64) - 1

WireEvent = TypeVar("WireEvent", bound=msgspec.Struct)


class AllBlocksCleared(msgspec.Struct, frozen=True):
    """A clear, as every engine of this format writes it; it has no fields."""


class WireBatch(msgspec.Struct, Generic[WireEvent], frozen=True):
    """A batch as it is on the wire; `skipped` counts events of unknown type."""

    ts: float
    events: list[WireEvent]
    data_parallel_rank: int | None
    skipped: int


def decode_batch(payload: bytes, types: Mapping[str, type[WireEvent]]) -> WireBatch[WireEvent]:
    """Decode a payload whose events are of `types`, by tag.

    Unknown tags, unknown map keys and elements past a type's last field are passed over. Raises
    MalformedEventError for anything that is not a batch.
    """
    try:
        raw = msgspec.msgpack.decode(payload)
        if not isinstance(raw, list) or len(raw) < 2 or not isinstance(raw[1], list):
            raise MalformedEventError("a batch is an array of a timestamp and a list of events")
        timestamp = msgspec.convert(raw[0], float)
        rank = msgspec.convert(raw[2], int | None) if len(raw) > 2 else None
        events = [_event(item, types) for item in raw[1]]
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, TypeError) as error:
        # A TypeError is a map whose key cannot be hashed.
        raise MalformedEventError(str(error)) from error
    known = [event for event in events if event is not None]
    return WireBatch(timestamp, known, rank, len(events) - len(known))


def _event(item: Any, types: Mapping[str, type[WireEvent]]) -> WireEvent | None:
    """Return one event, or None for a type that is not known."""
    if isinstance(item, dict):
        tag = item.get("type")
    elif isinstance(item, list) and item:
        tag = item[0]
    else:
        raise MalformedEventError("an event is a map, or an array that begins with its tag")
    if not isinstance(tag, str):
        raise MalformedEventError("an event's tag is a string")
    wire_type = types.get(tag)
    if wire_type is None:
        return None
    if isinstance(item, list):
        item = dict(zip(wire_type.__struct_fields__, item[1:], strict=False))
    return msgspec.convert(item, wire_type)


def lora_of(name: str | None, number: int | None) -> str:
    """Return what stands for an adapter: its name, or the engine's own number of it.

    A number means something to one engine only; it is kept apart from every name.
    """
    if name or number is None:
        return name or ""
    return f"\x00lora-id:{number}"


def name_of(value: int | bytes) -> EngineHash:
    """Return a block's name; signed integers are brought to unsigned ones."""
    return value & UINT64 if isinstance(value, int) else value


def names_of(values: list[int | bytes]) -> tuple[EngineHash, ...]:
    """Return the names of blocks."""
    return tuple([value & UINT64 if isinstance(value, int) else value for value in values])
