"""vLLM's KV-cache events, every layout from 0.9.0 to 0.33.

Source: `vllm/distributed/kv_events.py` of those versions. Events are arrays up to 0.23 and maps from
0.24 (`indexer.engines.wire`).
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from warmpath.indexer.engines.cache_groups import MOST_BLOCK_SIZE, MOST_NUMBER
from warmpath.indexer.engines.event import (
    Batch,
    MalformedEventError,
    Removed,
    Stored,
    name_of,
    names_of,
)
from warmpath.indexer.engines.kind import EngineKind, MetricNames, Told
from warmpath.indexer.engines.wire import (
    AllBlocksCleared,
    Readers,
    cleared,
    group_of,
    lora_of,
    read_batch,
    tier_of,
    within,
)
from warmpath.indexer.keys.key import next_token, pack_extra, pack_tokens


class BlockStored(msgspec.Struct, frozen=True):
    """A store as it is on the wire; the array layout has the fields in this order."""

    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    lookahead_token_ids: list[list[int]] | None = None
    """Of each block the tokens behind it that its hash covers, too: with EAGLE, at least one."""


class BlockRemoved(msgspec.Struct, frozen=True):
    """A removal as it is on the wire."""

    block_hashes: list[int | bytes]
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


def _removed(event: BlockRemoved) -> Removed:
    return Removed(
        hashes=names_of(event.block_hashes),
        tier=tier_of(event.medium),
        group=group_of(event.group_idx),
    )


def _stored(event: BlockStored) -> Stored:
    within("block_size", event.block_size, 0, MOST_BLOCK_SIZE)
    hashes = names_of(event.block_hashes)
    # Placeholders of offload tiers have no tokens. Groups that skip blocks have more tokens than their
    # hashes cover (section 2.8, 7), so nothing shows which tokens belong to which hash.
    whole = event.block_size > 0 and len(event.token_ids) == len(hashes) * event.block_size
    tokens = pack_tokens(event.token_ids) if whole else None
    salt, extras = "", None
    if whole and event.extra_keys and any(event.extra_keys):
        if len(event.extra_keys) != len(hashes):
            raise MalformedEventError(
                f"extra_keys has {len(event.extra_keys)} entries for {len(hashes)} blocks"
            )
        salt, extras = _extras(event)
    if whole and event.lookahead_token_ids is not None:
        extras = _with_next_tokens(event.lookahead_token_ids, extras, len(hashes))
    window = max(0, event.kv_cache_spec_sliding_window or 0)
    return Stored(
        hashes=hashes,
        parent=None if event.parent_block_hash is None else name_of(event.parent_block_hash),
        tokens=tokens,
        block_size=event.block_size,
        tier=tier_of(event.medium),
        lora=lora_of(event.lora_name, event.lora_id),
        cache_salt=salt,
        extras=extras,
        group=group_of(event.group_idx),
        kind=event.kv_cache_spec_kind or "",
        window=within("kv_cache_spec_sliding_window", window, 0, MOST_NUMBER),
        lookahead=max(map(len, event.lookahead_token_ids or ()), default=0),
    )


def _with_next_tokens(
    lookahead: list[list[int]], extras: tuple[bytes | None, ...] | None, blocks: int
) -> tuple[bytes, ...]:
    """Return each block's extra with the first token behind the block.

    A drafter of several modules makes hashes of several tokens: of those the first one counts here.
    """
    if len(lookahead) != blocks or not all(lookahead):
        raise MalformedEventError(
            f"lookahead_token_ids has {len(lookahead)} lists for {blocks} blocks, or empty ones"
        )
    tokens = [next_token(first) for first, *_ in lookahead]
    return tuple(
        (extra or b"") + one for extra, one in zip(extras or [None] * blocks, tokens, strict=True)
    )


def _extras(event: BlockStored) -> tuple[str, tuple[bytes | None, ...] | None]:
    """Split the untyped extra keys into the salt and each block's extra (`indexer.keys.key.pack_extra`).

    A block's list is: LoRA, multimodal items in order, salt (first block only), embeddings. A bare
    string that is not the adapter is the salt where it comes last in a first block; elsewhere it is an
    item of a version before 0.19, which does not give its offset. If an item is read as a salt, or a
    salt as an item, a match may be missed but none is invented: no request with that item or salt has
    the keys that result.
    """
    salt = ""
    extras = []
    for index, entry in enumerate(event.extra_keys or ()):
        values = list(entry or ())
        if values and (
            (event.lora_name is not None and values[0] == event.lora_name)
            or (event.lora_id is not None and values[0] == event.lora_id)
        ):
            del values[0]
        embeds = [value for value in values if isinstance(value, bytes)]
        rest = [value for value in values if not isinstance(value, bytes)]
        if index == 0 and event.parent_block_hash is None and rest and isinstance(rest[-1], str):
            salt = rest.pop()
        extras.append(pack_extra([_item(value) for value in rest], embeds) or None)
    return salt, tuple(extras) if any(extras) else None


def _item(value: Any) -> tuple[str, int | None]:
    if isinstance(value, str):
        return value, None
    if (
        isinstance(value, list)
        and len(value) == 2
        and isinstance(value[0], str)
        and isinstance(value[1], int)
        and abs(value[1]) < 1 << 63
    ):
        return value[0], value[1]
    raise MalformedEventError("an extra key is not a string, bytes, or a pair of string and offset")


READERS: Readers = {BlockStored: _stored, BlockRemoved: _removed, AllBlocksCleared: cleared}


def decode(payload: bytes) -> Batch:
    """Decode a payload into neutral events. Raises MalformedEventError where it is not a batch."""
    return read_batch(payload, READERS)


CACHE_CONFIG = re.compile(rb"^vllm:cache_config_info\{([^}\n]{0,16384})\}", re.MULTILINE)
LABEL = re.compile(rb'(\w{1,64})="([^"\n]{0,256})"')
MOST_DIGITS = 9


def told(page: bytes, _: Mapping[str, Any]) -> Told:
    """Return what `vllm:cache_config_info` says: of its lines, one a rank, the first counts."""
    configs = [dict(LABEL.findall(labels)) for labels in CACHE_CONFIG.findall(page)]
    if not configs:
        return Told()
    first = configs[0]
    return Told(
        block_size=_number(first.get(b"block_size")),
        # One of vLLM's blocks is the null block, which is never cached.
        blocks=max(0, _number(first.get(b"num_gpu_blocks")) - 1),
        ranks=tuple(sorted({_number(one[b"engine"]) for one in configs if b"engine" in one})),
        caches=first.get(b"enable_prefix_caching") != b"False",
        hashes=first.get(b"prefix_caching_hash_algo", b"").decode(errors="replace"),
    )


def _number(digits: bytes | None) -> int:
    is_one = digits is not None and digits.isdigit() and len(digits) <= MOST_DIGITS
    return int(digits or 0) if is_one else 0


VLLM = EngineKind(
    name="vllm",
    codec=lambda _: decode,
    metrics=MetricNames(
        prefix=b"vllm:",
        paths=("/metrics",),
        running=b"vllm:num_requests_running",
        waiting=b"vllm:num_requests_waiting",
        # vLLM used the second name until 0.10.
        kv_usage=(b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc"),
        rank_label=b"engine",
    ),
    version_path="/version",
    dialect="vllm",
    title="vLLM",
    owner="vllm",
    told=told,
    events_option='--kv-events-config \'{"enable_kv_cache_events": true, "publisher": "zmq", '
    '"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"}\'',
    caching_option="--enable-prefix-caching",
    metrics_option="without --disable-log-stats",
    can_sleep=True,
    tokenizes=True,
    omits_drafted=True,
    finds_adapters=True,
    # Before 0.14 it sends an adapter's number in place of its name, which also keeps its blocks apart.
    told_from={"cache_salt": (0, 17)},
    is_presumed_recent=True,
)
"""vLLM. Source of the metrics: `vllm/v1/metrics/loggers.py`."""
