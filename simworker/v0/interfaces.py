"""What a block manager answers the scheduler.

Source: `vllm/core/interfaces.py` of 0.9.2.
"""

import enum

BlockPairs = list[tuple[int, int]]
"""Blocks to copy, each `(source, destination)`."""


class AllocStatus(enum.Enum):
    """Whether a group's blocks can be had."""

    OK = enum.auto()
    LATER = enum.auto()
    """Not now, for others hold what it needs."""
    NEVER = enum.auto()
    """Not even if everything were free."""
