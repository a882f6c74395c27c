"""A request's wish to keep its blocks: priorities of token ranges, and the times for which they hold.

Source: TensorRT-LLM's `KvCacheRetentionConfig` (`executor/kvCacheRetentionConfig.cpp`, 1.2).
"""

from collections.abc import Sequence
from dataclasses import dataclass

MIN_PRIORITY = 0
MAX_PRIORITY = 100
DEFAULT_PRIORITY = 35


@dataclass(frozen=True, slots=True)
class BlockRetention:
    """One block's priority (None: no wish) and the time for which it holds (None: for ever)."""

    priority: int | None = None
    duration_ms: int | None = None


@dataclass(frozen=True, slots=True)
class TokenRangeRetentionConfig:
    """Tokens from `token_start` to before `token_end` (None: to the end)."""

    token_start: int
    token_end: int | None
    priority: int
    duration_ms: int | None = None


class KvCacheRetentionConfig:
    """Ranges of the prompt, and the retention of blocks that decoding fills.

    Raises ValueError if ranges overlap or are empty, if an open range is not the last, if a priority is
    not 0 to 100, or if a duration is negative.
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

        A block has the retention of its first token's range.
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
        raise ValueError(f"{name} is {priority}; it must be {MIN_PRIORITY} to {MAX_PRIORITY}")
    if duration_ms is not None and duration_ms < 0:
        raise ValueError(f"duration of {name} is {duration_ms} ms; it must be 0 or more")
