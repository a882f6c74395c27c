"""The content of blocks: hashes that, like keys and values, depend on all tokens so far.

A token's content in a layer is a hash of the token, the layer and the content of the token before it *as
it lies in the cache*, since attention reads the cache too. So a block that was lost, shared wrongly or
overwritten spoils everything computed from it, and reading the sequence back shows it.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Generic

from warmpath.lab.simworker.v0.device import Device
from warmpath.lab.simworker.v0.memory.array_backend import ArrayT
from warmpath.lab.simworker.v0.memory.cache_engine import CacheEngine


def first_content(layer: int, extra_hash: int | None) -> bytes:
    """Return the content before a sequence's first token; `extra_hash` covers adapter and salt."""
    return repr((layer, extra_hash)).encode()


@lru_cache(maxsize=1 << 16)
def next_content(before: bytes, token_id: int, size: int) -> bytes:
    """Return a token's content, `size` elements, after the content of the token before it."""
    return hashlib.shake_128(before + b"%d" % token_id).digest(size)


class BlockContent(Generic[ArrayT]):
    """Writes content into a cache, in place of a model's keys and values, and reads it back."""

    def __init__(self, cache_engine: CacheEngine[ArrayT]) -> None:
        self._engine = cache_engine
        self._block_size = cache_engine.shape.block_size
        self._size = cache_engine.shape.slot_elements

    def compute(
        self,
        block_ids: Sequence[int],
        token_ids: Sequence[int],
        computed: Iterable[int],
        extra_hash: int | None = None,
    ) -> None:
        """Compute the tokens at consecutive positions `computed` of one sequence, on the GPU.

        `block_ids` is the sequence's block table, from which the content of the token before is read.
        """
        positions = list(computed)
        if not positions:
            return
        if positions[-1] >= len(block_ids) * self._block_size:
            raise ValueError(
                f"block_ids: {len(block_ids)} have no slot for the token at {positions[-1]}"
            )
        blocks = [block_ids[at // self._block_size] for at in positions]
        slots = [at % self._block_size for at in positions]
        for layer, array in enumerate(self._engine.gpu_cache):
            before = self._before(layer, block_ids, positions[0], extra_hash)
            content = bytearray()
            for at in positions:
                before = next_content(before, token_ids[at], self._size)
                content += before
            self._engine.backend.write(array, blocks, slots, bytes(content))

    def _before(
        self, layer: int, block_ids: Sequence[int], position: int, extra_hash: int | None
    ) -> bytes:
        if not position:
            return first_content(layer, extra_hash)
        at, slot = divmod(position - 1, self._block_size)
        block = self._engine.backend.read(self._engine.gpu_cache[layer], [block_ids[at]])
        return block[slot * self._size : (slot + 1) * self._size]

    def find_wrong(
        self,
        device: Device,
        block_ids: Sequence[int | None],
        token_ids: Sequence[int],
        extra_hash: int | None = None,
    ) -> Iterator[tuple[int, int]]:
        """Yield the (layer, position) of each token with wrong content.

        `block_ids` are positions within the device of the blocks that hold `token_ids`; None is for
        blocks that a sliding window has dropped, whose content does not matter.
        """
        engine = self._engine
        caches = engine.gpu_cache if device is Device.GPU else engine.cpu_cache
        held = [block_id for block_id in block_ids if block_id is not None]
        begin = (len(block_ids) - len(held)) * self._block_size
        for layer, array in enumerate(caches):
            content = engine.backend.read(array, held)
            expected = first_content(layer, extra_hash)
            for at, token_id in enumerate(token_ids):
                expected = next_content(expected, token_id, self._size)
                offset = (at - begin) * self._size
                if at >= begin and content[offset : offset + self._size] != expected:
                    yield layer, at
