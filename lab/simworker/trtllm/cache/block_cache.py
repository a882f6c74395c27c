"""The content of one window's blocks: looked up, taken, moved, stored, forgotten.

Source: the part of TensorRT-LLM's `WindowBlockManager` (`batch_manager/kvCacheManager.cpp`, 1.2, commit
b35ac1b6) that knows no sequences: a block is free or held. When a cached primary block is evicted and
the secondary pool has room, its content moves there; it comes back when a request needs it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.trtllm.blocks.block import KVCacheBlock
from warmpath.lab.simworker.trtllm.blocks.block_key import BlockKey
from warmpath.lab.simworker.trtllm.blocks.eviction_policy import LRUEvictionPolicy
from warmpath.lab.simworker.trtllm.blocks.pools import PRIMARY_LEVEL, SECONDARY_LEVEL, BlockPools
from warmpath.lab.simworker.trtllm.blocks.retention import DEFAULT_PRIORITY, BlockRetention
from warmpath.lab.simworker.trtllm.blocks.reuse_tree import ReuseTree
from warmpath.lab.simworker.trtllm.events.event_manager import KVCacheEventManager


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """Options with TensorRT-LLM's names and defaults; `announces_detached` and below are our own."""

    tokens_per_block: int
    onboard_blocks: bool = True
    """Whether evicted content moves to the secondary pool, and back when a request needs it."""
    enable_partial_reuse: bool = True
    """Whether a request may use a block that shares only its first tokens."""
    copy_on_partial_reuse: bool = True
    """Whether a partly shared block is copied if it is in use or has children; else it is not used."""
    secondary_offload_min_priority: int | None = None
    """A block of a lower priority is not moved to the secondary pool; None for the policy's default."""
    announces_detached: bool = False
    """A request may take a cached leaf over and go on writing in it, because it shares some of its
    tokens or because the leaf is a tail with room. If set, the leaf is then announced as removed.
    TensorRT-LLM up to now announces nothing (its pull request 16335 would), so that a reader of its
    events counts on blocks that are gone."""
    event_manager: KVCacheEventManager | None = None
    clock: Callable[[], float] = lambda: 0.0
    """Returns seconds; priorities end by it."""


class BlockCache:
    """The pools, the tree and the free queues of one window."""

    def __init__(
        self,
        window_size: int,
        num_primary_blocks: int,
        num_secondary_blocks: int,
        options: CacheOptions,
    ) -> None:
        self.pools = BlockPools(num_primary_blocks, num_secondary_blocks)
        self.tree = ReuseTree(options.tokens_per_block)
        self.eviction_policy = LRUEvictionPolicy(
            self.pools.blocks, options.clock, options.secondary_offload_min_priority
        )
        self._window_size = window_size
        self._options = options
        self._events = options.event_manager
        self._slid_out: dict[int, set[int]] = {}
        """Block id -> requests that list the block and no longer hold it."""
        self._unstorable: set[int] = set()
        """Requests that list a block that another request has got since."""
        if self._events is not None:
            self._events.enqueue_created_event(
                (num_primary_blocks, num_secondary_blocks), window_size
            )

    @property
    def num_free_blocks(self) -> int:
        """Primary blocks that no request holds, cached ones included."""
        return self.eviction_policy.get_num_free_blocks(PRIMARY_LEVEL)

    def num_blocks_to_take(self, keys: list[BlockKey], num_context_blocks: int) -> int:
        """Return the most free primary blocks that `load_or_allocate` may use up.

        Each block of the context costs one, whether it is found, copied, brought back or new; only a
        block that is in use already costs nothing.
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
        """Follow the keys down the tree as far as they match, then take free blocks.

        Yields, for each of `retentions`, a block and the number of its tokens that were found; the
        caller holds it before it asks for the next. There may be fewer keys than blocks.
        """
        parent: KVCacheBlock | None = self.tree.root
        for position, retention in enumerate(retentions):
            key = keys[position] if position < len(keys) else None
            partial, matched, found = False, 0, None
            if parent is not None and key is not None:
                partial, matched, found = parent.find_matching_block(
                    key,
                    enable_partial_reuse=self._options.enable_partial_reuse,
                    copy_on_partial_reuse=self._options.copy_on_partial_reuse,
                )
            if key is None or found is None:
                priority = DEFAULT_PRIORITY if retention.priority is None else retention.priority
                block = self.take(priority, retention.duration_ms)
                if key is not None:
                    block.set_key(key, self._options.tokens_per_block)
                parent = None
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
            yield block, matched

    def _reuse_part(
        self, found: KVCacheBlock, key: BlockKey, matched: int, retention: BlockRetention
    ) -> KVCacheBlock:
        """Return a block for one request that begins with the `matched` tokens of `found`.

        It is a copy if `found` is in use or has children, else the block itself, which leaves the tree
        because the request overwrites its other tokens.
        """
        if found.ref_count or not found.is_leaf:
            block = self._take_beside(found)
            self.pools.copy_part(found, block, matched)
            block.set_key(key, self._options.tokens_per_block)
            return block
        if self._events and self._options.announces_detached:
            self._events.enqueue_removed_event(found, self._window_size)
        self.tree.detach_leaf(found)
        self.eviction_policy.claim_block(found, retention.priority, retention.duration_ms)
        self._given_away(found)
        return found

    def _take_beside(self, found: KVCacheBlock) -> KVCacheBlock:
        """Take a block without losing the content of `found`.

        TensorRT-LLM may lose it: if `found` is the next to be evicted from the secondary pool, the block
        that is offloaded to make room overwrites it before it is copied.
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
        """Claim the next free primary block, and evict its content.

        The content moves to the secondary pool if its priority is high enough and there is a free block;
        that block's own content is dropped, and the two trade slots.
        """
        block, worth_offloading = self.eviction_policy.get_free_block(PRIMARY_LEVEL)
        if (
            block.key.tokens
            and worth_offloading
            and self._options.onboard_blocks
            and self.eviction_policy.get_num_free_blocks(SECONDARY_LEVEL)
        ):
            block = self._offload(block)
        self.tree.detach_subtree(block, self._removed)
        self.eviction_policy.claim_block(block, priority, duration_ms)
        self._given_away(block)
        return block

    def _offload(self, block: KVCacheBlock) -> KVCacheBlock:
        """Move a free block's content to the secondary pool; return the block that now has its slot."""
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
        # The source announces this also for a leaf that it has just taken out of the tree unannounced.
        if self._events and (block.in_tree or not self._options.announces_detached):
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
        """Add a reference to a block from `take` or `load_or_allocate`."""
        block.ref_count += 1

    def drop(self, block: KVCacheBlock) -> None:
        """Give a reference back; a block without any is free."""
        block.ref_count -= 1
        if not block.ref_count:
            self.eviction_policy.release_block(block)

    def slide_out(self, block: KVCacheBlock, request_id: int) -> None:
        """Give a reference back for a request whose table still lists the block."""
        self._slid_out.setdefault(block.block_id, set()).add(request_id)
        self.drop(block)

    def is_storable(self, request_id: int) -> bool:
        """Whether every block that a request lists still has the request's content."""
        return request_id not in self._unstorable

    def forget(self, request_id: int) -> None:
        """Forget a request that no longer lists any block."""
        self._unstorable.discard(request_id)
        for block_id, listing in list(self._slid_out.items()):
            listing.discard(request_id)
            if not listing:
                del self._slid_out[block_id]

    def store_blocks(self, keys: list[BlockKey], block_ids: list[int]) -> None:
        """Put blocks into the tree; one that the tree has already stays.

        Raises ValueError if there are fewer blocks than keys.
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
                        break  # The cached block holds the tail's tokens, and more.
                    self._removed(found)
                    self.tree.detach_leaf(found)
                self.tree.insert(parent, key, found)
                stored.append(found)
            parent = found
        if self._events:
            self._events.enqueue_stored_event(stored, self._window_size)

    def clear(self) -> None:
        """Take every block out of the tree, and announce it as removed."""
        for child in list(self.tree.root.next_blocks.values()):
            self.tree.detach_subtree(child, self._removed)

    def check(self, held: dict[int, int]) -> None:
        """Raise BrokenInvariantError if blocks, queues, tree or pools contradict each other.

        `held`: block id -> number of references that sequences hold, if any.
        """
        self.pools.check()
        self.tree.check(self.pools.blocks)
        self.eviction_policy.check()
        for block in self.pools.blocks:
            block_id, count = block.block_id, held.get(block.block_id, 0)
            if block.ref_count != count:
                raise BrokenInvariantError(
                    f"block {block_id}: {block.ref_count} references, {count} in tables"
                )
            if self.eviction_policy.is_free(block) != (block.ref_count == 0):
                raise BrokenInvariantError(f"block {block_id} is lost, or free and in use")
            if count and not block.is_primary:
                raise BrokenInvariantError(f"block {block_id} is in use in the secondary pool")
