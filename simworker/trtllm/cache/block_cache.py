"""What the blocks of one window hold: found again, taken, moved, stored, forgotten.

The part of TensorRT-LLM's `WindowBlockManager` (`batch_manager/kvCacheManager.cpp`, 1.2, commit
b35ac1b6) that knows no sequences: a block is free, or somebody's. When a cached primary block is given
up and the secondary pool has room, its content moves there; when it is wanted again, it comes back.
"""

from collections.abc import Callable, Iterator

from simworker.engine import BrokenInvariantError
from simworker.trtllm.blocks.block import KVCacheBlock
from simworker.trtllm.blocks.block_key import BlockKey
from simworker.trtllm.blocks.eviction_policy import LRUEvictionPolicy
from simworker.trtllm.blocks.pools import PRIMARY_LEVEL, SECONDARY_LEVEL, BlockPools
from simworker.trtllm.blocks.retention import DEFAULT_PRIORITY, BlockRetention
from simworker.trtllm.blocks.reuse_tree import ReuseTree
from simworker.trtllm.events.event_manager import KVCacheEventManager


class BlockCache:
    """The pools, the tree and the free queues of one window. `clock` gives seconds.

    `announces_detached`: whether a cached leaf is announced as removed when a request takes it over to
    write on in it, because it shares some of its tokens or is a tail with room. TensorRT-LLM to date
    says nothing there (pull request 16335 is to mend it), so that whoever follows its events believes
    in blocks that are gone.
    """

    def __init__(
        self,
        window_size: int,
        num_primary_blocks: int,
        num_secondary_blocks: int,
        *,
        tokens_per_block: int,
        onboard_blocks: bool,
        enable_partial_reuse: bool,
        copy_on_partial_reuse: bool,
        secondary_offload_min_priority: int | None,
        announces_detached: bool,
        event_manager: KVCacheEventManager | None,
        clock: Callable[[], float],
    ) -> None:
        self.tokens_per_block = tokens_per_block
        self.pools = BlockPools(num_primary_blocks, num_secondary_blocks)
        self.tree = ReuseTree(tokens_per_block)
        self.eviction_policy = LRUEvictionPolicy(
            self.pools.blocks, clock, secondary_offload_min_priority
        )
        self._window_size = window_size
        self._onboard_blocks = onboard_blocks
        self._enable_partial_reuse = enable_partial_reuse
        self._copy_on_partial_reuse = copy_on_partial_reuse
        self._announces_detached = announces_detached
        self._events = event_manager
        self._slid_out: dict[int, set[int]] = {}
        """Block id -> requests that list the block and hold it no more."""
        self._unstorable: set[int] = set()
        """Requests that list a block which was given to others."""
        self._pins: dict[int, int] = {}
        self.alloc_total_blocks = 0
        self.alloc_new_blocks = 0
        self.reused_blocks = 0
        self.missed_blocks = 0
        if event_manager is not None:
            event_manager.enqueue_created_event(
                (num_primary_blocks, num_secondary_blocks), window_size
            )

    @property
    def num_free_blocks(self) -> int:
        """Primary blocks that nobody holds, cached ones among them."""
        return self.eviction_policy.get_num_free_blocks(PRIMARY_LEVEL)

    def num_blocks_to_take(self, keys: list[BlockKey], num_context_blocks: int) -> int:
        """Return how many free primary blocks `load_or_allocate` may use up at most.

        Each block of the context costs one, be it found, copied, brought back or new; only those
        that are in use from the start on cost nothing.
        """
        shared = 0
        parent = self.tree.root
        for key in keys:
            child = parent.next_blocks.get(key)
            if child is None or not child.is_full or not child.ref_count or not child.is_primary:
                break
            shared += 1
            parent = child
        return num_context_blocks - shared

    def load_or_allocate(
        self, keys: list[BlockKey], retentions: list[BlockRetention]
    ) -> Iterator[tuple[KVCacheBlock, int]]:
        """Walk down the tree as far as it goes, and take free blocks from there on.

        Yields, for each of `retentions`, a block and how many of its tokens were found; the caller
        takes hold of it before it asks for the next. There may be fewer keys than blocks.
        """
        parent: KVCacheBlock | None = self.tree.root
        for position, retention in enumerate(retentions):
            key = keys[position] if position < len(keys) else None
            partial, matched, found = False, 0, None
            if parent is not None and key is not None:
                partial, matched, found = parent.find_matching_block(
                    key,
                    enable_partial_reuse=self._enable_partial_reuse,
                    copy_on_partial_reuse=self._copy_on_partial_reuse,
                )
            if key is None or found is None:
                priority = DEFAULT_PRIORITY if retention.priority is None else retention.priority
                block = self.take(priority, retention.duration_ms)
                if key is not None:
                    block.set_key(key, self.tokens_per_block)
                parent = None
                self.missed_blocks += 1
            else:
                if self._events and retention.priority not in (None, found.priority):
                    self._events.enqueue_priority_event(
                        found, retention.priority, self._window_size
                    )
                block = self._reuse_part(found, key, matched, retention) if partial else found
                if not partial:
                    self.eviction_policy.claim_block(
                        block, retention.priority, retention.duration_ms
                    )
                parent = None if partial else block
                self._onboard(block)
                self.reused_blocks += 1
            yield block, matched

    def _reuse_part(
        self, found: KVCacheBlock, key: BlockKey, matched: int, retention: BlockRetention
    ) -> KVCacheBlock:
        """Return a block of one's own that begins with the `matched` tokens shared with `found`.

        That is a copy where `found` is in use or has children, and else the block itself, which
        leaves the tree: it will be written over.
        """
        if found.ref_count or not found.is_leaf:
            block = self._take_beside(found)
            self.pools.copy_part(found, block, matched)
            block.set_key(key, self.tokens_per_block)
            return block
        if self._events and self._announces_detached:
            self._events.enqueue_removed_event(found, self._window_size)
        self.tree.detach_leaf(found)
        self.eviction_policy.claim_block(found, retention.priority, retention.duration_ms)
        self._given_away(found)
        return found

    def _take_beside(self, found: KVCacheBlock) -> KVCacheBlock:
        """Take a block without losing what `found` holds.

        The source does not look out for it: where `found` is the next to go on the host, the block
        that is offloaded to make room overwrites what is about to be copied.
        """
        is_next = (
            not found.is_primary
            and not found.ref_count
            and (self.eviction_policy.get_free_block(SECONDARY_LEVEL)[0] is found)
        )
        if is_next:
            self.eviction_policy.claim_block(found, None, found.duration_ms)
        block = self.take(found.priority, found.duration_ms)
        if is_next:
            self.eviction_policy.release_block(found)
        return block

    def take(self, priority: int, duration_ms: int | None) -> KVCacheBlock:
        """Claim the next free primary block, whatever it held.

        Its content moves to the secondary pool if it is worth it and there is a free block; that
        block then trades its slot, and itself gives up what it held.
        """
        block, worth_offloading = self.eviction_policy.get_free_block(PRIMARY_LEVEL)
        if not block.key.tokens:
            self.alloc_new_blocks += 1
        self.alloc_total_blocks += 1
        if (
            block.key.tokens
            and worth_offloading
            and self._onboard_blocks
            and self.eviction_policy.get_num_free_blocks(SECONDARY_LEVEL)
        ):
            block = self._offload(block)
        self.tree.detach_subtree(block, self._removed)
        self.eviction_policy.claim_block(block, priority, duration_ms)
        self._given_away(block)
        return block

    def _offload(self, block: KVCacheBlock) -> KVCacheBlock:
        """Move a free block's content to the secondary pool; return the block that has its slot."""
        target, _ = self.eviction_policy.get_free_block(SECONDARY_LEVEL)
        self.eviction_policy.claim_block(target)
        self.eviction_policy.claim_block(block)
        self.pools.offload(block, target)
        if self._events and block.in_tree:
            self._events.enqueue_level_event(
                block, PRIMARY_LEVEL, SECONDARY_LEVEL, self._window_size
            )
        self.eviction_policy.release_block(block)
        return target

    def _onboard(self, block: KVCacheBlock) -> None:
        """Bring a claimed block's content back to the primary pool, if it is not there."""
        if block.is_primary:
            return
        target = self.take(DEFAULT_PRIORITY, None)
        self.pools.onboard(block, target)
        # The source tells this also of a leaf that it has just taken out of the tree in silence.
        if self._events and (block.in_tree or not self._announces_detached):
            self._events.enqueue_level_event(
                block, SECONDARY_LEVEL, PRIMARY_LEVEL, self._window_size
            )
        self.eviction_policy.release_block(target)

    def _removed(self, block: KVCacheBlock) -> None:
        if self._events:
            self._events.enqueue_removed_event(block, self._window_size)

    def _given_away(self, block: KVCacheBlock) -> None:
        self._unstorable |= self._slid_out.pop(block.block_id, set())

    def hold(self, block: KVCacheBlock) -> None:
        """Count a reference to a block that `take` or `load_or_allocate` gave."""
        block.ref_count += 1

    def drop(self, block: KVCacheBlock, *, to_front: bool = False) -> None:
        """Give a reference back; without any, the block is free, at the front if it is to go next."""
        block.ref_count -= 1
        if not block.ref_count:
            self.eviction_policy.release_block(block, to_front=to_front)

    def slide_out(self, block: KVCacheBlock, request_id: int) -> None:
        """Give a reference back for a request whose table goes on to list the block."""
        self._slid_out.setdefault(block.block_id, set()).add(request_id)
        self.drop(block)

    def is_storable(self, request_id: int) -> bool:
        """Whether no block that a request lists was given to others."""
        return request_id not in self._unstorable

    def forget(self, request_id: int) -> None:
        """Note that a request lists nothing any more."""
        self._unstorable.discard(request_id)
        for block_id, listing in list(self._slid_out.items()):
            listing.discard(request_id)
            if not listing:
                del self._slid_out[block_id]

    def store_blocks(
        self, keys: list[BlockKey], block_ids: list[int], *, pin_blocks: bool = False
    ) -> tuple[int, int | None]:
        """Make blocks findable; return how many were not before, and the last one's id in the tree.

        Where the tree holds the same already, that stays and the walk goes on below it. Raises
        ValueError where there are fewer blocks than keys.
        """
        if len(keys) > len(block_ids):
            raise ValueError(f"{len(keys)} keys, but {len(block_ids)} blocks")
        parent = self.tree.root
        stored: list[KVCacheBlock] = []
        for key, block_id in zip(keys, block_ids, strict=False):
            found = parent.next_blocks.get(key)
            if found is None:
                found = self.pools.blocks[block_id]
                if found.in_tree:
                    if len(found.key.tokens) > len(key.tokens):
                        break  # A rewound tail: what is cached already holds it, and more.
                    self._removed(found)
                    self.tree.detach_leaf(found)
                self.tree.insert(parent, key, found)
                stored.append(found)
            parent = found
            if pin_blocks:
                self._pin(found)
        if self._events:
            self._events.enqueue_stored_event(stored, self._window_size)
        return len(stored), None if parent is self.tree.root else parent.block_id

    def _pin(self, block: KVCacheBlock) -> None:
        self.eviction_policy.claim_block(block, None, block.duration_ms)
        block.ref_count += 1
        self._pins[block.block_id] = self._pins.get(block.block_id, 0) + 1

    def unpin_blocks_by_id(self, block_id: int) -> None:
        """Undo the pins of a stored chain, from its last block up. Raises ValueError without one."""
        block: KVCacheBlock | None = self.pools.blocks[block_id]
        while block is not None and block is not self.tree.root:
            if not self._pins.get(block.block_id):
                raise ValueError(f"block_id {block.block_id} is not pinned")
            self._pins[block.block_id] -= 1
            self.drop(block)
            block = block.prev_block

    def clear(self) -> None:
        """Take everything out of the tree; announced as removed."""
        for child in list(self.tree.root.next_blocks.values()):
            self.tree.detach_subtree(child, self._removed)

    def check(self, held: dict[int, int]) -> None:
        """Raise BrokenInvariantError where blocks, queues, tree or pools contradict each other.

        `held`: block id -> references that sequences hold, where there are any.
        """
        self.pools.check()
        self.tree.check(self.pools.blocks)
        self.eviction_policy.check()
        for block in self.pools.blocks:
            block_id, count = block.block_id, held.get(block.block_id, 0)
            if block.ref_count != count + self._pins.get(block_id, 0):
                raise BrokenInvariantError(
                    f"block {block_id}: {block.ref_count} references, {count} in tables"
                )
            if self.eviction_policy.is_free(block) != (block.ref_count == 0):
                raise BrokenInvariantError(f"block {block_id} is lost, or free and in use")
            if count and not block.is_primary:
                raise BrokenInvariantError(f"block {block_id} is in use on the host")
