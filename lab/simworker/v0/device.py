"""The two kinds of memory that blocks lie in, and the block manager's answers to the scheduler.

Source: `vllm/core/interfaces.py` of 0.9.2.
"""

import enum


class Device(enum.Enum):
    """The device that holds a block: the GPU, which computes, or the CPU, which takes swapped blocks."""

    GPU = enum.auto()
    CPU = enum.auto()


BlockPairs = list[tuple[int, int]]
"""Blocks to copy, each `(source, destination)`."""


class AllocStatus(enum.Enum):
    """Whether a group's blocks can be allocated."""

    OK = enum.auto()
    LATER = enum.auto()
    """Not now: other groups hold blocks that it needs."""
    NEVER = enum.auto()
    """Not even if every block were free."""
