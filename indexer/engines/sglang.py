"""SGLang's KV-cache events, 0.5.7 to 0.5.23.

Source: `sglang/srt/disaggregation/kv_events.py` of those versions. Transport, batch and replay are
vLLM's; events are arrays up to 0.5.19 and maps from 0.5.20. Names are signed 64-bit integers. SGLang
calls a block a page.

Versions before 0.5.7 are not supported. Up to 0.5.5 a page's name did not depend on its parent, and the
first page of every tree node had no parent: such streams look well-formed and cannot be chained. 0.5.6
announces pages as removed where it only splits the tree node that holds them.
"""

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from warmpath.indexer.engines.cache_groups import MOST_BLOCK_SIZE
from warmpath.indexer.engines.event import (
    Batch,
    MalformedEventError,
    Removed,
    Stored,
    name_of,
    names_of,
)
from warmpath.indexer.engines.kind import NEVER, EngineKind, MetricNames, Told
from warmpath.indexer.engines.wire import (
    AllBlocksCleared,
    Readers,
    cleared,
    lora_of,
    read_batch,
    tier_of,
    within,
)
from warmpath.indexer.keys.key import next_token, pack_tokens


class Metadata(msgspec.Struct, frozen=True):
    """The form in which 0.5.18 and 0.5.19 write a page's salt, in the place of `cache_salt`."""

    cache_salt: str


class BlockStored(msgspec.Struct, frozen=True):
    """A store as it is on the wire; the array layout has the fields in this order."""

    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int | tuple[int, int]]
    """Token ids; in EAGLE's bigram mode, pairs of a token and the next one."""
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    cache_salt: str | Metadata | None = None
    session_id: Any = None
    """The component that stored the block; warmpath ignores it."""
    lora_name: str | None = None


class BlockRemoved(msgspec.Struct, frozen=True):
    """A removal as it is on the wire."""

    block_hashes: list[int | bytes]
    medium: str | None = None


def _removed(event: BlockRemoved) -> Removed:
    return Removed(hashes=names_of(event.block_hashes), tier=tier_of(event.medium))


def _stored(event: BlockStored) -> Stored:
    within("block_size", event.block_size, 1, MOST_BLOCK_SIZE)
    hashes = names_of(event.block_hashes)
    if len(event.token_ids) != len(hashes) * event.block_size:
        raise MalformedEventError(
            f"token_ids has {len(event.token_ids)} entries for {len(hashes)} pages of "
            f"{event.block_size}"
        )
    salt = event.cache_salt
    tokens, extras = _tokens(event)
    return Stored(
        hashes=hashes,
        parent=None if event.parent_block_hash is None else name_of(event.parent_block_hash),
        tokens=tokens,
        block_size=event.block_size,
        tier=tier_of(event.medium),
        lora=lora_of(event.lora_name, event.lora_id),
        cache_salt=(salt.cache_salt if isinstance(salt, Metadata) else salt) or "",
        extras=extras,
        lookahead=int(extras is not None),
        once=True,
    )


def _tokens(event: BlockStored) -> tuple[bytes, tuple[bytes, ...] | None]:
    """Return a store's packed tokens, and in bigram mode each page's extra.

    A pair is a token and the next one, so a page of pairs names one token more than it holds: the second
    token of its last pair, with which the next page begins.
    """
    ids = event.token_ids
    pairs = [token for token in ids if isinstance(token, tuple)]
    if not pairs:
        return pack_tokens(token for token in ids if isinstance(token, int)), None
    if len(pairs) != len(ids):
        raise MalformedEventError("token_ids has pairs and single tokens")
    last = pairs[event.block_size - 1 :: event.block_size]
    return pack_tokens(pair[0] for pair in pairs), tuple(next_token(pair[1]) for pair in last)


MOST_RANKS = 1024

READERS: Readers = {BlockStored: _stored, BlockRemoved: _removed, AllBlocksCleared: cleared}


def decode(payload: bytes) -> Batch:
    """Decode a payload into neutral events. Raises MalformedEventError where it is not a batch."""
    return read_batch(payload, READERS)


def told(_: bytes, info: Mapping[str, Any]) -> Told:
    """Return what `/server_info` says, which has the server's arguments."""
    ranks = info.get("dp_size")
    return Told(
        block_size=_count(info.get("page_size")),
        ranks=tuple(range(min(_count(ranks), MOST_RANKS))),
        caches=info["disable_radix_cache"] is not True if "disable_radix_cache" in info else None,
        events=_events(info["kv_events_config"]) if "kv_events_config" in info else None,
    )


def _count(value: Any) -> int:
    return value if isinstance(value, int) and 0 < value <= MOST_BLOCK_SIZE else 0


def _events(said: Any) -> Mapping[str, Any]:
    """Return the argument --kv-events-config, which is JSON as a text."""
    try:
        config = json.loads(said) if isinstance(said, str) else said
    except ValueError:
        config = None
    return config if isinstance(config, dict) else {}


SGLANG = EngineKind(
    name="sglang",
    codec=lambda _: decode,
    metrics=MetricNames(
        prefix=b"sglang:",
        paths=("/metrics",),
        running=b"sglang:num_running_reqs",
        waiting=b"sglang:num_queue_reqs",
        kv_usage=(b"sglang:token_usage",),
        rank_label=b"dp_rank",
    ),
    version_path="/server_info",
    dialect="sglang",
    title="SGLang",
    owner="sglang",
    told=told,
    events_option='--kv-events-config \'{"publisher": "zmq", "endpoint": "tcp://*:5557", '
    '"replay_endpoint": "tcp://*:5558"}\'',
    caching_option="no --disable-radix-cache",
    metrics_option="with --enable-metrics",
    tokenizes=True,
    told_from={"extra_key": NEVER, "lora": (0, 5, 23), "cache_salt": (0, 5, 18)},
    faulty_before=(0, 5, 7),
    fault="SGLang {} announces the removal of blocks that stay",
)
"""SGLang. Source of the metrics: `sglang/srt/observability/metrics_collector.py`."""
