"""The key of a cached block: its tokens, and everything else that its content depends on.

Source: TensorRT-LLM's `BlockKey` (`batch_manager/blockKey.h`, 1.2). A key names a block among the
children of one parent; the path of keys from the root names it in the tree.
"""

from collections.abc import Sequence
from dataclasses import dataclass

MmKey = tuple[bytes, int]
"""A multimodal item that the block holds a part of: its 32-byte hash, and the part's first token."""


@dataclass(frozen=True, slots=True)
class BlockKey:
    """The key of one block; two keys are equal only if all fields are."""

    tokens: tuple[int, ...]
    """At most `tokens_per_block` ids; fewer only in the tail of a sequence."""
    extra_ids: tuple[int, ...] | None = None
    """One for each token if the request has them (prompt tables), else None."""
    lora_task_id: int | None = None
    extra_keys: tuple[MmKey, ...] = ()
    cache_salt_id: int | None = None

    def num_matching_tokens(self, other: "BlockKey") -> int:
        """Return how many leading tokens and their extra ids agree; 0 if another field differs."""
        if (
            self.lora_task_id != other.lora_task_id
            or self.extra_keys != other.extra_keys
            or self.cache_salt_id != other.cache_salt_id
            or (self.extra_ids is None) != (other.extra_ids is None)
        ):
            return 0
        same = _common(self.tokens, other.tokens)
        if self.extra_ids is not None and other.extra_ids is not None:
            same = min(same, _common(self.extra_ids, other.extra_ids))
        return same


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    for position, (one, two) in enumerate(zip(left, right, strict=False)):
        if one != two:
            return position
    return min(len(left), len(right))
