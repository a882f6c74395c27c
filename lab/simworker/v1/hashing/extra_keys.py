"""The extra keys of a block's hash, which keep equal tokens with different content apart.

    ("lora", name, path)          every block of a request with an adapter
    ("mm", identifier, offset)    every block that overlaps a multimodal item: where the item's first
                                  token lies, counted from the block's first, below 0 if before it
    ("cache_salt", salt)          the first block; the others differ through the chain
    ("prompt_embeds", digest)     every block of a prompt given as embeddings: SHA-256 of its rows

in this order, as a tuple; None if there are none. Only hashes have the tags: events carry bare values.

Source: `vllm/v1/core/kv_cache_utils.py` of 0.32 (tagged since 0.31).
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class PlaceholderRange:
    """The placeholder tokens of one item in a prompt."""

    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class MultiModalFeatureSpec:
    """One multimodal item. Only its identifier and its position matter to the cache."""

    data: Any
    """The item's data, which the cache never reads."""
    modality: str
    identifier: str
    """The hash of its content, from the engine's front end or from the user."""
    mm_position: PlaceholderRange


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """An adapter. Name and path go into block hashes, the number into events."""

    lora_name: str
    lora_int_id: int
    """The adapter's number, from 1 on; two engines may number an adapter differently."""
    lora_path: str

    def __post_init__(self) -> None:
        if self.lora_int_id < 1:
            raise ValueError(f"lora_int_id: {self.lora_int_id}, at least 1")

    @property
    def name(self) -> str:
        return self.lora_name

    @property
    def adapter_id(self) -> int:
        return self.lora_int_id


ExtraKeys = tuple[tuple[Any, ...], ...]


class Keyed(Protocol):
    """The part of a request from which its extra keys come."""

    lora_request: LoRARequest | None
    cache_salt: str | None
    mm_features: Sequence[MultiModalFeatureSpec]
    prompt_embeds: Sequence[Any] | None


def generate_block_hash_extra_keys(
    request: Keyed, start_token_idx: int, end_token_idx: int, start_mm_idx: int
) -> tuple[ExtraKeys | None, int]:
    """Return the tagged keys of a block's tokens, and the index of the next multimodal item.

    `start_mm_idx` is the index that the call for the block before returned: earlier items have ended.
    0 is always right, and slower.
    """
    keys: list[tuple[Any, ...]] = []
    if request.lora_request is not None:
        keys.append(("lora", request.lora_request.lora_name, request.lora_request.lora_path))
    next_mm_idx = start_mm_idx
    if request.mm_features:
        items, next_mm_idx = _mm_keys(
            request.mm_features, start_token_idx, end_token_idx, start_mm_idx
        )
        keys += items
    if start_token_idx == 0 and request.cache_salt:
        keys.append(("cache_salt", request.cache_salt))
    if request.prompt_embeds is not None:
        digest = hashlib.sha256()
        for row in request.prompt_embeds[start_token_idx:end_token_idx]:
            # A tensor shows its bytes as an array.
            digest.update(row.numpy() if hasattr(row, "numpy") else row)
        keys.append(("prompt_embeds", digest.digest()))
    return (tuple(keys) if keys else None), next_mm_idx


def _mm_keys(
    features: Sequence[MultiModalFeatureSpec], start: int, end: int, index: int
) -> tuple[list[tuple[str, str, int]], int]:
    """Return the keys of the items between two tokens, and the index of the next block's first item.

    `features` are in order of offsets.
    """
    keys: list[tuple[str, str, int]] = []
    while index < len(features):
        item = features[index]
        offset = item.mm_position.offset
        item_end = offset + item.mm_position.length
        if offset >= end:
            break
        if item_end > start:
            keys.append(("mm", item.identifier, offset - start))
            if item_end > end:
                break
        index += 1
    return keys, index


def to_event_extra_keys(
    extra_keys: Iterable[ExtraKeys | None] | None,
) -> list[tuple[Any, ...] | None] | None:
    """Return the keys without tags, for events, an entry for each block; None without blocks.

    An entry has an adapter's name, a salt, a digest, and (identifier, offset) for a multimodal item.
    """
    bare = [
        None if keys is None else tuple(key[1:] if key[0] == "mm" else key[1] for key in keys)
        for keys in extra_keys or ()
    ]
    return bare or None
