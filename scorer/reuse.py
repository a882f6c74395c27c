"""Computes how much of a prompt a hybrid model, with several caches (groups), can reuse.

A full-attention cache needs every block from the first on. A sliding window needs only the last blocks
before the point of reuse, a state-space cache only its state there; all must agree on one point.

Source: vLLM's `KVCacheCoordinator.find_longest_cache_hit` and the `find_longest_cache_hit` of its
single-type managers.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Window:
    """A cache that needs only the last blocks before the point of reuse.

    `runs` are the held ones of the prompt's blocks, as (first, past the last), in order and not
    adjacent; `step` is the number of the prompt's blocks per block of this cache; `needed` is how many
    blocks of this cache must be held.
    """

    runs: Sequence[tuple[int, int]]
    step: int
    needed: int

    def reach(self, most: int) -> int:
        """Return the furthest point of reuse up to `most` blocks that this cache allows."""
        best = 0
        begun = end = -1
        for number in self._own_blocks(most):
            if number != end:
                begun = number
            end = number + 1
            # A run from the prompt's beginning suffices at any length.
            if begun == 0 or end - begun >= self.needed:
                best = end * self.step
        return best

    def _own_blocks(self, most: int) -> Sequence[int]:
        """Return the numbers of this cache's held blocks that end by `most`, in order.

        A block that spans several of the prompt's blocks has the key of the last of them.
        """
        step = self.step
        return [
            position // step
            for start, stop in self.runs
            for position in range(start, min(stop, most))
            if position % step == step - 1
        ]


def reusable(prefix: int, windows: Sequence[Window], align: int) -> int:
    """Return how many leading blocks every cache can reuse.

    `prefix` blocks are held by all full-attention caches; reuse ends at a multiple of `align` blocks.
    """
    most = prefix // align * align
    while most:
        agreed = min((window.reach(most) for window in windows), default=most)
        agreed = agreed // align * align
        if agreed == most:
            break
        most = agreed
    return most
