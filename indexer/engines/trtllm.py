"""TensorRT-LLM's KV-cache events, 1.x: dictionaries that a reader fetches.

Source: `tensorrt_llm/_utils.py` (KVCacheEventSerializer), as set down in `shared/engine-events.md`,
section 6.2. There is no socket that publishes: `POST /kv_cache_events` answers with all events since
the last call, once. `split` takes such an answer apart, so that each event goes through a rank's
stream under its `event_id`; a codec then decodes one event.

What these events do not say, nothing here can know: adapter and cache salt. A block of a salted
request looks unsalted, so do not use salts for isolation with this engine's events.
"""

import msgspec

from indexer.engines.event import (
    Batch,
    Cleared,
    EngineHash,
    Event,
    MalformedEventError,
    Moved,
    Removed,
    Stored,
    Tier,
)
from indexer.engines.wire import name_of
from indexer.extra import pack_extra
from indexer.group import TRTLLM_WINDOW
from indexer.token import pack_tokens

LEVELS = (Tier.GPU, Tier.CPU)
"""Primary and secondary cache level."""


class Created(msgspec.Struct, frozen=True, tag_field="type", tag="created"):
    """The start of a window's life."""

    num_blocks_per_cache_level: list[int]


class Token(msgspec.Struct, frozen=True):
    """A token, and what stands beside it where it is a placeholder."""

    token_id: int
    token_extra_id: int = 0


class MultimodalKey(msgspec.Struct, frozen=True):
    """One multimodal item that a block depends on."""

    hash: str
    start_offset: int = 0


class StoredBlock(msgspec.Struct, frozen=True):
    """One block of a store."""

    block_hash: int
    tokens: list[Token]
    cache_level: int = 0
    mm_keys: list[MultimodalKey] | None = None


class StoredData(msgspec.Struct, frozen=True, tag_field="type", tag="stored"):
    """Blocks became cached, each the child of the one before it."""

    parent_hash: int | None
    blocks: list[StoredBlock]


class RemovedData(msgspec.Struct, frozen=True, tag_field="type", tag="removed"):
    """Blocks are gone."""

    block_hashes: list[int]


class Diff(msgspec.Struct, frozen=True):
    """A change of level."""

    old_value: int
    new_value: int


class Updated(msgspec.Struct, frozen=True, tag_field="type", tag="updated"):
    """A block moved, or its priority changed."""

    block_hash: int
    cache_level: Diff | None = None


class Envelope(msgspec.Struct, frozen=True):
    """What stands around every event; `data` is decoded when it is applied."""

    event_id: int
    data: msgspec.Raw
    window_size: int = 0
    attention_dp_rank: int | None = None


class Kind(msgspec.Struct, frozen=True):
    """Only the type of an event's data."""

    type: str


KNOWN: frozenset[str] = frozenset({"created", "stored", "removed", "updated"})
Data = Created | StoredData | RemovedData | Updated

_envelope = msgspec.json.Decoder(Envelope)
_kind = msgspec.json.Decoder(Kind)
_data = msgspec.json.Decoder(Data)


def split(answer: bytes) -> list[tuple[int, int, bytes]]:
    """Take an answer of `/kv_cache_events` apart into (rank, event_id, one event's JSON).

    Raises MalformedEventError where it is no array of events.
    """
    try:
        raws = msgspec.json.decode(answer, type=list[msgspec.Raw])
        found = []
        for raw in raws:
            envelope = _envelope.decode(raw)
            if envelope.event_id < 0 or (envelope.attention_dp_rank or 0) < 0:
                raise MalformedEventError("event_id and attention_dp_rank are 0 or more")
            found.append((envelope.attention_dp_rank or 0, envelope.event_id, bytes(raw)))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise MalformedEventError(str(error)) from error
    return found


class Codec:
    """Decodes one engine's events; `block_size` is its `tokens_per_block`."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size

    def __call__(self, payload: bytes) -> Batch:
        """Decode one event. Raises MalformedEventError."""
        try:
            envelope = _envelope.decode(payload)
            if _kind.decode(envelope.data).type not in KNOWN:
                return Batch(0.0, (), envelope.attention_dp_rank, skipped=1)
            data: Data = _data.decode(envelope.data)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise MalformedEventError(str(error)) from error
        rank, group = envelope.attention_dp_rank, envelope.window_size
        if isinstance(data, Created):
            capacity = data.num_blocks_per_cache_level
            # The first of its life: whatever was known before is of another one.
            return Batch(0.0, (Cleared(),), rank, capacity=capacity[0] if capacity else 0)
        if isinstance(data, StoredData):
            return Batch(0.0, self._stored(data, group), rank)
        if isinstance(data, RemovedData):
            names = tuple(name_of(value) for value in data.block_hashes)
            return Batch(0.0, (Removed(names, None, group),), rank)
        if data.cache_level is None or data.cache_level.old_value == data.cache_level.new_value:
            return Batch(0.0, (), rank)
        source, target = _tier(data.cache_level.old_value), _tier(data.cache_level.new_value)
        return Batch(0.0, (Moved(name_of(data.block_hash), source, target, group),), rank)

    def _stored(self, data: StoredData, group: int) -> tuple[Event, ...]:
        """Return the full blocks of a store, those of one level together.

        The last one may hold fewer tokens: the tail of a sequence, on which nothing is chained.
        """
        size = self._block_size
        events: list[Event] = []
        parent = None if data.parent_hash is None else name_of(data.parent_hash)
        for position, block in enumerate(data.blocks):
            count = len(block.tokens)
            if count < size and position == len(data.blocks) - 1:
                break
            if count != size:
                raise MalformedEventError(
                    f"a block has {count} tokens; the configured tokens_per_block is {size}"
                )
            name = name_of(block.block_hash)
            events.append(_one_block(block, name, parent, group))
            parent = name
        return tuple(events)


def _one_block(
    block: StoredBlock, name: EngineHash, parent: EngineHash | None, group: int
) -> Stored:
    try:
        tokens = pack_tokens(token.token_id for token in block.tokens)
    except ValueError as error:
        raise MalformedEventError(str(error)) from error
    extra = pack_extra([(key.hash, None) for key in block.mm_keys or ()])
    if not extra and any(token.token_extra_id for token in block.tokens):
        # Placeholders of an item that is not named: kept apart from every request.
        extra = pack_extra([("\x00unnamed", None)])
    return Stored(
        hashes=(name,),
        parent=parent,
        tokens=tokens,
        block_size=len(block.tokens),
        tier=_tier(block.cache_level),
        extras=(extra,) if extra else None,
        group=group,
        kind=TRTLLM_WINDOW,
        window=group,
    )


def _tier(level: int) -> Tier:
    if not 0 <= level < len(LEVELS):
        raise MalformedEventError(f"cache_level is {level}; it is 0 or 1")
    return LEVELS[level]
