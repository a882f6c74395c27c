"""The extra keys of a block's hash, which keep equal tokens with different content apart.

    ("lora", name, path)          every block of a request with an adapter
    ("cache_salt", salt)          the first block; the others differ through the chain

in this order, as a tuple; None if there are none. Only hashes have the tags: events carry bare values.
Left out: multimodal items and prompts given as embeddings, which no simulated engine takes.

Source: `vllm/v1/core/kv_cache_utils.py` of 0.32 (tagged since 0.31).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol


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


def generate_block_hash_extra_keys(request: Keyed, start_token_idx: int) -> ExtraKeys | None:
    """Return the tagged keys of the block that begins at a token."""
    keys: list[tuple[Any, ...]] = []
    if request.lora_request is not None:
        keys.append(("lora", request.lora_request.lora_name, request.lora_request.lora_path))
    if start_token_idx == 0 and request.cache_salt:
        keys.append(("cache_salt", request.cache_salt))
    return tuple(keys) or None


def to_event_extra_keys(
    extra_keys: Iterable[ExtraKeys | None] | None,
) -> list[tuple[Any, ...] | None] | None:
    """Return the keys without tags, for events, an entry for each block; None without blocks.

    An entry has an adapter's name and a salt.
    """
    bare = [None if keys is None else tuple(key[1] for key in keys) for keys in extra_keys or ()]
    return bare or None
