"""TensorRT-LLM's KV-cache events, 1.x: JSON objects that a reader fetches.

Source: `tensorrt_llm/_utils.py` (KVCacheEventSerializer). No socket publishes them: `POST
/kv_cache_events` answers with all events since the last call, and never with the same event again.
`split` divides such an answer into its events; each goes through its rank's stream under its `event_id`
(`address`), and a codec decodes it.

The second generation of TensorRT-LLM's cache manager (`kv_cache_manager_v2/_event_manager.py`) writes
the same shapes with two differences. Under the hash algorithm `v2_sha256` a block's name is a SHA-256
digest in hexadecimal. And where a multimodal item replaces a token, its `token_id` is the item's digest.

These events lack the adapter; they also lack the cache salt before `cache_salt` was added (pull request
13051, in 1.3) and with the second manager. Such blocks look like those of plain requests.
"""

import msgspec

from warmpath.indexer.engines.cache_groups import MOST_NUMBER, TRTLLM_WINDOW
from warmpath.indexer.engines.event import (
    Batch,
    Cleared,
    EngineHash,
    Event,
    MalformedEventError,
    Moved,
    Removed,
    Stored,
    Tier,
    UnreadableEvent,
    name_of,
)
from warmpath.indexer.engines.kind import NEVER, EngineKind, MetricNames
from warmpath.indexer.engines.wire import LONGEST_KIND, one_error, within
from warmpath.indexer.keys.key import pack_extra, pack_tokens
from warmpath.indexer.stream.replay import MOST_SEQUENCE

MOST_HASH_BYTES = 64
"""The most bytes of a block hash that TensorRT-LLM writes as hexadecimal digits."""
MOST_TOKEN_DIGITS = 10
"""The most digits of a token id, a number below 2^32; an item's digest has more."""

LEVELS = (Tier.GPU, Tier.CPU)
"""The tiers of cache level 0 (primary) and 1 (secondary)."""


class Created(msgspec.Struct, frozen=True, tag_field="type", tag="created"):
    """An attention window begins its life; its cache is empty."""

    num_blocks_per_cache_level: list[int]


class Token(msgspec.Struct, frozen=True):
    """A token; a placeholder of a multimodal item also has an extra id."""

    token_id: int | str
    """A number, perhaps as a string of digits; or a multimodal item's digest in hexadecimal."""
    token_extra_id: int = 0


class MultimodalKey(msgspec.Struct, frozen=True):
    """One multimodal item that a block depends on."""

    hash: str
    start_offset: int = 0


class StoredBlock(msgspec.Struct, frozen=True):
    """One of the blocks that became cached."""

    block_hash: int | str
    tokens: list[Token]
    cache_level: int = 0
    mm_keys: list[MultimodalKey] | None = None
    cache_salt: str | None = None


class StoredData(msgspec.Struct, frozen=True, tag_field="type", tag="stored"):
    """Blocks became cached, each the child of the one before it."""

    parent_hash: int | str | None
    blocks: list[StoredBlock]


class RemovedData(msgspec.Struct, frozen=True, tag_field="type", tag="removed"):
    """The cache no longer holds these blocks."""

    block_hashes: list[int | str]


class Diff(msgspec.Struct, frozen=True):
    """A change of level."""

    old_value: int
    new_value: int


class Updated(msgspec.Struct, frozen=True, tag_field="type", tag="updated"):
    """A block moved, or its priority changed."""

    block_hash: int | str
    cache_level: Diff | None = None


class EventAddress(msgspec.Struct, frozen=True):
    """The fields that say to which rank's stream an event belongs, and its number there."""

    event_id: int
    attention_dp_rank: int | None = None


class Envelope(msgspec.Struct, frozen=True):
    """The fields around every event's data."""

    data: msgspec.Raw
    window_size: int = 0
    attention_dp_rank: int | None = None


class EventType(msgspec.Struct, frozen=True):
    """Only the type of an event's data."""

    type: str


KNOWN: frozenset[str] = frozenset({"created", "stored", "removed", "updated"})
Data = Created | StoredData | RemovedData | Updated

_address = msgspec.json.Decoder(EventAddress)
_envelope = msgspec.json.Decoder(Envelope)
_kind = msgspec.json.Decoder(EventType)
_data = msgspec.json.Decoder(Data)


@one_error()
def split(answer: bytes) -> list[bytes]:
    """Divide an answer of `/kv_cache_events` into its events, each as JSON.

    Raises MalformedEventError where it is not an array.
    """
    return [bytes(raw) for raw in msgspec.json.decode(answer, type=list[msgspec.Raw])]


@one_error()
def address(event: bytes) -> tuple[int, int]:
    """Return an event's rank and its `event_id`. Raises MalformedEventError where one is not valid."""
    found = _address.decode(event)
    rank = found.attention_dp_rank or 0
    within("attention_dp_rank", rank, 0, MOST_NUMBER)
    return rank, within("event_id", found.event_id, 0, MOST_SEQUENCE)


class Codec:
    """Decodes one engine's events; `block_size` is its `tokens_per_block`."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size

    @one_error()
    def __call__(self, payload: bytes) -> Batch:
        envelope = _envelope.decode(payload)
        rank, group = envelope.attention_dp_rank, envelope.window_size
        kind = _kind.decode(envelope.data).type
        if kind not in KNOWN:
            unread = UnreadableEvent(kind[:LONGEST_KIND], "its type is not known")
            return Batch(0.0, (), rank, unread=(unread,))
        data: Data = _data.decode(envelope.data)
        within("window_size", group, 0, MOST_NUMBER)
        if isinstance(data, Created):
            capacity = data.num_blocks_per_cache_level
            for blocks in capacity:
                within("num_blocks_per_cache_level", blocks, 0, MOST_NUMBER)
            # The first event of a life: what was known before belongs to an earlier one.
            return Batch(0.0, (Cleared(),), rank, capacity=capacity[0] if capacity else 0)
        if isinstance(data, StoredData):
            return Batch(0.0, self._stored(data, group), rank)
        if isinstance(data, RemovedData):
            names = tuple(_name(value) for value in data.block_hashes)
            return Batch(0.0, (Removed(names, None, group),), rank)
        if data.cache_level is None or data.cache_level.old_value == data.cache_level.new_value:
            return Batch(0.0, (), rank)
        source, target = _tier(data.cache_level.old_value), _tier(data.cache_level.new_value)
        return Batch(0.0, (Moved(_name(data.block_hash), source, target, group),), rank)

    def _stored(self, data: StoredData, group: int) -> tuple[Event, ...]:
        """Return a store's full blocks, as one event each.

        The last block may hold fewer tokens: it is the tail of a sequence, no other block is chained to
        it, and it is left out.
        """
        size = self._block_size
        events: list[Event] = []
        parent = None if data.parent_hash is None else _name(data.parent_hash)
        for position, block in enumerate(data.blocks):
            count = len(block.tokens)
            if count < size and position == len(data.blocks) - 1:
                break
            if count != size:
                raise MalformedEventError(
                    f"a block has {count} tokens; the configured tokens_per_block is {size}"
                )
            name = _name(block.block_hash)
            events.append(_one_block(block, name, parent, group))
            parent = name
        return tuple(events)


def _one_block(
    block: StoredBlock, name: EngineHash, parent: EngineHash | None, group: int
) -> Stored:
    read = [_token(token.token_id) for token in block.tokens]
    tokens = pack_tokens(number for number, _ in read)
    extra = pack_extra([(key.hash, None) for key in block.mm_keys or ()])
    digests = [digest for _, digest in read if digest]
    if digests or (not extra and any(token.token_extra_id for token in block.tokens)):
        # The block has placeholders of items without a name, or ids that no request sends. An extra that
        # no request has keeps such blocks apart.
        extra = pack_extra([("\x00unnamed", None)], digests)
    return Stored(
        hashes=(name,),
        parent=parent,
        tokens=tokens,
        block_size=len(block.tokens),
        tier=_tier(block.cache_level),
        cache_salt=block.cache_salt or "",
        extras=(extra,) if extra else None,
        group=group,
        kind=TRTLLM_WINDOW,
        window=group,
    )


def _name(value: int | str) -> EngineHash:
    if isinstance(value, int):
        return name_of(value)
    name = _unhexed(value)
    if not name or len(value) != 2 * len(name) or len(name) > MOST_HASH_BYTES:
        raise MalformedEventError("a block_hash is neither a number nor a digest in hexadecimal")
    return name_of(name)


def _unhexed(digits: str) -> bytes:
    try:
        return bytes.fromhex(digits)
    except ValueError:
        return b""


def _token(value: int | str) -> tuple[int, bytes]:
    """Return a token's id; or 0 and a digest, where a multimodal item replaces the token."""
    if isinstance(value, int):
        return value, b""
    if value.isascii() and value.isdigit() and len(value) <= MOST_TOKEN_DIGITS:
        return int(value), b""
    digest = _unhexed(value)
    if not digest:
        raise MalformedEventError("a token_id is neither a number nor a digest in hexadecimal")
    return 0, digest


def _tier(level: int) -> Tier:
    if not 0 <= level < len(LEVELS):
        raise MalformedEventError(f"cache_level is {level}; it must be 0 or 1")
    return LEVELS[level]


TRTLLM = EngineKind(
    name="trtllm",
    codec=Codec,
    metrics=MetricNames(
        prefix=b"trtllm_",
        paths=("/prometheus/metrics", "/metrics"),
        running=b"trtllm_num_requests_running",
        waiting=b"trtllm_num_requests_waiting",
        kv_usage=(b"trtllm_kv_cache_utilization",),
    ),
    version_path="/version",
    title="TensorRT-LLM",
    owner="tensorrt_llm",
    events_option="`kv_cache_config: {enable_block_reuse: true, event_buffer_max_size: 16384}` in the "
    "file of --extra_llm_api_options",
    is_polled=True,
    # Whether events have salts depends on its cache manager, which no event names.
    told_from={"lora": NEVER, "cache_salt": NEVER},
)
"""TensorRT-LLM. Source of the metrics: `tensorrt_llm/metrics/collector.py`."""
