"""How long a request wants its blocks to be kept: priorities of token ranges, and for what time.

After TensorRT-LLM's `KvCacheRetentionConfig` (`executor/kvCacheRetentionConfig.cpp`, 1.2).
"""

from collections.abc import Sequence
from dataclasses import dataclass

MIN_PRIORITY = 0
MAX_PRIORITY = 100
DEFAULT_PRIORITY = 35


@dataclass(frozen=True, slots=True)
class BlockRetention:
    """What holds for one block; None: nothing was asked."""

    priority: int | None = None
    duration_ms: int | None = None


@dataclass(frozen=True, slots=True)
class TokenRangeRetentionConfig:
    """Tokens from `token_start` up to, not including, `token_end` (None: to the end)."""

    token_start: int
    token_end: int | None
    priority: int
    duration_ms: int | None = None


class KvCacheRetentionConfig:
    """Ranges of the prompt, and what holds for blocks that are filled by decoding.

    Raises ValueError where ranges overlap, are empty, or an open one is not the last, and where a
    priority is not 0 to 100 or a duration is negative.
    """

    def __init__(
        self,
        token_ranges: Sequence[TokenRangeRetentionConfig] = (),
        decode_priority: int = DEFAULT_PRIORITY,
        decode_duration_ms: int | None = None,
    ) -> None:
        self.token_ranges = sorted(token_ranges, key=lambda one: one.token_start)
        self.decode_priority = decode_priority
        self.decode_duration_ms = decode_duration_ms
        _check("decode_priority", decode_priority, decode_duration_ms)
        end: int | None = 0
        for one in self.token_ranges:
            if end is None:
                raise ValueError("token_end: only the last range may be open")
            if one.token_start < end:
                raise ValueError(f"token_start {one.token_start}: ranges must not overlap")
            if one.token_end is not None and one.token_end <= one.token_start:
                raise ValueError(
                    f"token_end {one.token_end}: more than token_start {one.token_start} is needed"
                )
            _check("priority", one.priority, one.duration_ms)
            end = one.token_end

    def get_per_block_retention(self, block_size: int, seq_len: int) -> list[BlockRetention]:
        """Return one entry for each block of `seq_len` tokens.

        The range that a block's first token lies in decides for the block.
        """
        found = []
        ranges = iter(self.token_ranges)
        current = next(ranges, None)
        for first in range(0, seq_len, block_size):
            while current is not None and current.token_end is not None:
                if first < current.token_end:
                    break
                current = next(ranges, None)
            if current is None or first < current.token_start:
                found.append(BlockRetention())
            else:
                found.append(BlockRetention(current.priority, current.duration_ms))
        return found


def _check(name: str, priority: int, duration_ms: int | None) -> None:
    if not MIN_PRIORITY <= priority <= MAX_PRIORITY:
        raise ValueError(f"{name} is {priority}; it is {MIN_PRIORITY} to {MAX_PRIORITY}")
    if duration_ms is not None and duration_ms < 0:
        raise ValueError(f"duration of {name} is {duration_ms} ms; it is 0 or more")
