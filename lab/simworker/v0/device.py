"""The two kinds of memory that blocks lie in."""

import enum


class Device(enum.Enum):
    """The device that holds a block: the GPU, which computes, or the CPU, which takes swapped blocks."""

    GPU = enum.auto()
    CPU = enum.auto()
