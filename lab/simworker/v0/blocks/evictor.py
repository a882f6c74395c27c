"""The evictor: it chooses the next of the cached blocks that no sequence uses.

Source: `vllm/core/evictor.py` of 0.9.2.
"""

import heapq
from typing import NamedTuple

from warmpath.lab.simworker.engine import BrokenInvariantError


class BlockMetaData(NamedTuple):
    """The evictor's record of a cached block that no sequence uses."""

    content_hash: int
    num_hashed_tokens: int
    """Tokens up to the end of the block: larger towards a sequence's tail."""
    last_accessed: float
    """When the block was last read, in seconds; -1 if never set."""


class LinearEvictor:
    """Blocks that may be evicted, least recently used first: the reference, which looks through all.

    Of blocks last used at the same time, the one with the most hashed tokens is evicted first, so that a
    sequence loses its tail before its head. Among equals the lowest id is evicted first, a tie that
    0.9.2 leaves open.
    """

    def __init__(self) -> None:
        self.free_table: dict[int, BlockMetaData] = {}

    @property
    def num_blocks(self) -> int:
        """Blocks that may be evicted."""
        return len(self.free_table)

    def __contains__(self, block_id: int) -> bool:
        return block_id in self.free_table

    def add(
        self, block_id: int, content_hash: int, num_hashed_tokens: int, last_accessed: float
    ) -> None:
        """Let a block be evicted."""
        self.free_table[block_id] = BlockMetaData(content_hash, num_hashed_tokens, last_accessed)

    def update(self, block_id: int, last_accessed: float) -> None:
        """Set when a block was last read, in seconds. Raises KeyError for a block that is not here."""
        self.free_table[block_id] = self.free_table[block_id]._replace(last_accessed=last_accessed)

    def remove(self, block_id: int) -> None:
        """Take a block back into use. Raises KeyError for one that is not here."""
        del self.free_table[block_id]

    def evict(self) -> tuple[int, int]:
        """Return the id and content hash of the block to evict. Raises ValueError without any."""
        block_id = min(self.free_table, key=self._order)
        return block_id, self.free_table.pop(block_id).content_hash

    def _order(self, block_id: int) -> tuple[float, int, int]:
        metadata = self.free_table[block_id]
        return metadata.last_accessed, -metadata.num_hashed_tokens, block_id

    def check(self) -> None:
        """Do nothing: a single table cannot contradict itself."""


class LRUEvictor(LinearEvictor):
    """Keeps a heap; stale entries are skipped when they reach its top.

    A block that is accessed, taken back or evicted leaves a stale entry behind: one that differs from
    the table. (0.9.2 compares the access time only, so it can evict a block that came back with other
    content at the same time under its old hash; and an update there leaves the block without a valid
    entry. Neither happens here.)
    """

    CLEANUP_THRESHOLD = 50
    """The heap is built again when it has more entries per block than this."""

    def __init__(self) -> None:
        super().__init__()
        self.priority_queue: list[tuple[float, int, int, int]] = []

    def add(
        self, block_id: int, content_hash: int, num_hashed_tokens: int, last_accessed: float
    ) -> None:
        super().add(block_id, content_hash, num_hashed_tokens, last_accessed)
        self._push(block_id)

    def update(self, block_id: int, last_accessed: float) -> None:
        super().update(block_id, last_accessed)
        self._push(block_id)

    def _push(self, block_id: int) -> None:
        heapq.heappush(self.priority_queue, self._entry(block_id))
        if len(self.priority_queue) > self.CLEANUP_THRESHOLD * len(self.free_table):
            self.priority_queue = [self._entry(block_id) for block_id in self.free_table]
            heapq.heapify(self.priority_queue)

    def _entry(self, block_id: int) -> tuple[float, int, int, int]:
        return *self._order(block_id), self.free_table[block_id].content_hash

    def evict(self) -> tuple[int, int]:
        while self.priority_queue:
            entry = heapq.heappop(self.priority_queue)
            block_id = entry[2]
            if block_id in self.free_table and entry == self._entry(block_id):
                return block_id, self.free_table.pop(block_id).content_hash
        raise ValueError("no block may be evicted")

    def check(self) -> None:
        """Raise BrokenInvariantError if a block has no valid entry."""
        entries = set(self.priority_queue)
        for block_id in self.free_table:
            if self._entry(block_id) not in entries:
                raise BrokenInvariantError(f"block {block_id} would never be evicted")
