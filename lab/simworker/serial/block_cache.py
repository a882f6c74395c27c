"""The study's cache: blocks that no request uses are evicted, the least recently used first.

A block is named by a hash that covers everything before it too. A running request pins its prompt's
blocks, and nameless blocks for its answer, which no other request can find. Blocks that no request pins
stay until their room is needed. Of one prompt the last block is evicted first, since no request can use
it without those before it.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from warmpath.lab.simworker.engine import BrokenInvariantError


class BlockCache:
    """A cache of `capacity` blocks. Raises ValueError if that is less than 1."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity is {capacity} blocks; it must be at least 1")
        self.capacity = capacity
        self._pinned: dict[bytes, int] = {}
        """How many requests use each block."""
        self._idle: OrderedDict[bytes, None] = OrderedDict()
        """Blocks that no request uses; the front is evicted first."""
        self._answers = 0

    @property
    def used(self) -> int:
        """Number of blocks that requests hold."""
        return len(self._pinned) + self._answers

    def matched(self, blocks: Sequence[bytes]) -> int:
        """Return how many leading blocks of a prompt are here."""
        pinned, idle = self._pinned, self._idle
        for number, block in enumerate(blocks):
            if block not in pinned and block not in idle:
                return number
        return len(blocks)

    def fits(self, blocks: Sequence[bytes], answer: int) -> bool:
        """Return whether a prompt's blocks and `answer` blocks for its answer fit beside pinned ones."""
        pinned = self._pinned
        return self.used + answer + sum(block not in pinned for block in blocks) <= self.capacity

    def pin(self, blocks: Sequence[bytes], answer: int) -> list[bytes]:
        """Let a request that `fits` hold its prompt's blocks and its answer's.

        Returns the blocks that were evicted for it.
        """
        pinned, idle = self._pinned, self._idle
        for block in blocks:
            idle.pop(block, None)
            pinned[block] = pinned.get(block, 0) + 1
        self._answers += answer
        gone = []
        while self.used + len(idle) > self.capacity:
            gone.append(idle.popitem(last=False)[0])
        return gone

    def unpin(self, blocks: Sequence[bytes], answer: int, *, computed: bool = True) -> None:
        """Undo a `pin`; blocks that were not `computed` and that no other request holds are dropped."""
        pinned, idle = self._pinned, self._idle
        for block in reversed(blocks):
            users = pinned[block]
            if users > 1:
                pinned[block] = users - 1
                continue
            del pinned[block]
            if computed:
                idle[block] = None
        self._answers -= answer

    def clear(self) -> bool:
        """Forget all blocks; False, and nothing done, while requests hold any."""
        if self.used:
            return False
        self._idle.clear()
        return True

    def holds(self, users: Mapping[bytes, int], answers: int) -> bool:
        """Return whether each block has `users` pins or more, and answers hold `answers` or more."""
        pinned = self._pinned
        return answers <= self._answers and all(
            pinned.get(block, 0) >= count for block, count in users.items()
        )

    def check(self) -> None:
        if any(users < 1 for users in self._pinned.values()):
            raise BrokenInvariantError("a block that nobody uses is pinned")
        if self._pinned.keys() & self._idle.keys():
            raise BrokenInvariantError("a block is pinned and idle")
        if self._answers < 0:
            raise BrokenInvariantError("more blocks of answers were let go than were held")
        if self.used + len(self._idle) > self.capacity:
            raise BrokenInvariantError("more blocks are kept than `capacity`")
