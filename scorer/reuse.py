"""How far a prompt can be reused where a model keeps several caches.

Full-attention caches need every block from the first on. A sliding window needs only the last blocks
before the point of reuse, a state-space cache only its state there; and all must agree on one point.

Source: vLLM's `KVCacheCoordinator.find_longest_cache_hit` and the `find_longest_cache_hit` of its
single-type managers, as set down in `shared/engine-events.md`, 4.3.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Window:
    """A cache that needs only what lies before the point of reuse.

    `runs` are the held blocks, (first, past the last), in order and apart; `step` is how many of the
    prompt's blocks make one of this cache's; `needed` how many of its own blocks must be held.
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
            # A run that begins with the prompt counts however short it is.
            if begun == 0 or end - begun >= self.needed:
                best = end * self.step
        return best

    def _own_blocks(self, most: int) -> Sequence[int]:
        """Return the numbers of this cache's held blocks that end by `most`, in order.

        A block of several of the prompt's has the name of the last of them.
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
