"""The contract of an array library that holds the bytes of a KV cache.

A layer's cache is one array of shape `(2, blocks, block_size, num_kv_heads, head_size)`, of keys and of
values. Whole blocks are copied, whatever their content; simulations write and read elements from 0 to
255, which every type here holds exactly.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from warmpath.lab.simworker.v0.device import Device

ArrayT = TypeVar("ArrayT")

DTYPES = ("float32", "float16", "bfloat16", "fp8")
"""The types of an element. As in 0.9.2, `fp8` is kept as unsigned bytes."""


class ArrayBackend(Protocol[ArrayT]):
    """Makes arrays on both devices, and copies blocks within and between them."""

    def zeros(self, shape: tuple[int, ...], dtype: str, device: Device) -> ArrayT:
        """Return an array of zeros; `dtype` is one of `DTYPES`."""

    def copy_blocks(
        self, source: ArrayT, destination: ArrayT, pairs: Iterable[tuple[int, int]]
    ) -> None:
        """Copy whole blocks, each `(from, to)`, one after another. Both arrays may be the same."""

    def write(
        self, array: ArrayT, block_ids: Sequence[int], slots: Sequence[int], content: bytes
    ) -> None:
        """Write slots, each `slots[i]` of `block_ids[i]`: their elements, slot after slot.

        A slot's elements are in the order of entries, heads and the head's numbers.
        """

    def read(self, array: ArrayT, block_ids: Sequence[int]) -> bytes:
        """Return the elements of blocks, slot after slot, as `write` takes them."""
