"""The two kinds of memory that blocks lie in."""

import enum


class Device(enum.Enum):
    """Where a block is: on the GPU, where it can be computed on, or swapped out to the CPU."""

    GPU = enum.auto()
    CPU = enum.auto()
