"""The block pool: all blocks of one engine, free or held, cached or not.

A block that no request holds stays cached until it gets new content. Blocks freed *with* content go
to the end of the free queue, so that the least recently used content is evicted first; blocks
*without* content go to its front, so that they are used before any content is evicted (0.24 and later).

Block 0 is the *null block*: it takes the place of blocks that a request does not need, and is never
free, cached or evicted.

Source: `BlockPool` in `vllm/v1/core/block_pool.py` of 0.32; one file as there, to be read beside it.
"""

from collections.abc import Iterable, Sequence

from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.v1.cache.kv_cache_block import (
    BlockHashToBlockMap,
    FreeKVCacheBlockQueue,
    KVCacheBlock,
)
from warmpath.lab.simworker.v1.cache.kv_cache_event import (
    MEDIUM_GPU,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    CacheEvent,
)
from warmpath.lab.simworker.v1.hashing.block_hash import (
    BlockHash,
    BlockHashWithGroupId,
    get_block_hash,
    get_group_id,
    make_block_hash_with_group_id,
    maybe_convert_block_hash,
)
from warmpath.lab.simworker.v1.hashing.block_hash_view import resolve_block_hashes
from warmpath.lab.simworker.v1.hashing.extra_keys import (
    generate_block_hash_extra_keys,
    to_event_extra_keys,
)
from warmpath.lab.simworker.v1.requests.request import Request


class BlockPool:
    """Blocks, their free queue, and the map of what is cached.

    `num_gpu_blocks` counts the null block. `hash_block_size` is the number of tokens of one of a
    request's hashes; a block holds a multiple of it. Raises ValueError if either is below 1.
    """

    def __init__(
        self,
        num_gpu_blocks: int,
        enable_caching: bool,
        hash_block_size: int,
        enable_kv_cache_events: bool = False,
        *,
        medium: str = MEDIUM_GPU,
        use_int_block_hashes: bool = True,
    ) -> None:
        for name, value in (
            ("num_gpu_blocks", num_gpu_blocks),
            ("hash_block_size", hash_block_size),
        ):
            if value < 1:
                raise ValueError(f"{name}: {value}, at least 1")
        self.num_gpu_blocks = num_gpu_blocks
        self.enable_caching = enable_caching
        self.hash_block_size = hash_block_size
        self.enable_kv_cache_events = enable_kv_cache_events
        self.medium = medium
        self.blocks = [KVCacheBlock(block_id) for block_id in range(num_gpu_blocks)]
        self.free_block_queue = FreeKVCacheBlockQueue(self.blocks)
        self.cached_block_hash_to_block = BlockHashToBlockMap()
        self.cached_block_hashes_by_block: dict[int, list[BlockHashWithGroupId]] = {}
        """Block id -> further keys of a block that can be found under several."""
        self.null_block = self.free_block_queue.popleft()
        self.null_block.is_null = True
        self.kv_event_queue: list[CacheEvent] = []
        self._use_int_block_hashes = use_int_block_hashes

    def get_cached_block(
        self, block_hash: BlockHash, kv_cache_group_ids: Sequence[int]
    ) -> list[KVCacheBlock] | None:
        """Return the block of each group with this content; None if a group has none."""
        blocks = []
        for group_id in kv_cache_group_ids:
            key = make_block_hash_with_group_id(block_hash, group_id)
            block = self.cached_block_hash_to_block.get_one_block(key)
            if block is None:
                return None
            blocks.append(block)
        return blocks

    def cache_full_blocks(  # noqa: PLR0917  vLLM's signature
        self,
        request: Request,
        blocks: Sequence[KVCacheBlock],
        num_cached_blocks: int,
        num_full_blocks: int,
        block_size: int,
        kv_cache_group_id: int,
        block_mask: Sequence[bool] | None = None,
    ) -> None:
        """Cache a request's blocks from `num_cached_blocks` to before `num_full_blocks`.

        Null blocks are skipped, and so are blocks whose entry in `block_mask` is false; an event
        has the tokens of the whole range even so.
        """
        if num_cached_blocks >= num_full_blocks:
            return
        hashes = resolve_block_hashes(request.block_hashes, self.hash_block_size, block_size)
        suffix = kv_cache_group_id.to_bytes(4, "big")
        insert = self.cached_block_hash_to_block.insert
        stored = []
        for index in range(num_cached_blocks, num_full_blocks):
            block = blocks[index]
            if block.is_null or (block_mask and not block_mask[index - num_cached_blocks]):
                continue
            key = hashes[index] + suffix
            num_tokens = (index + 1) * block_size
            if block.block_hash is not None:
                # The block was cached when it was only partly filled; it is full now.
                if (block.block_hash_num_tokens or 0) >= num_tokens:
                    raise ValueError(f"block {block.block_id} is cached already")
                self._maybe_evict_cached_block(block)
            block.block_hash = key
            block.block_hash_num_tokens = num_tokens
            insert(key, block)
            stored.append(index)
        if self.enable_kv_cache_events:
            self._announce_stored(
                request,
                [hashes[index] for index in stored],
                [(index * block_size, (index + 1) * block_size) for index in stored],
                parent=hashes[num_cached_blocks - 1] if num_cached_blocks else None,
                tokens=(num_cached_blocks * block_size, num_full_blocks * block_size),
                group_id=kv_cache_group_id,
                block_size=block_size,
            )

    def emit_cached_block_events(
        self, request: Request, num_cached_blocks: int, block_size: int, kv_cache_group_id: int
    ) -> None:
        """Announce blocks that a request found cached, for a reader that follows single requests."""
        if not self.enable_kv_cache_events or not num_cached_blocks:
            return
        hashes = resolve_block_hashes(request.block_hashes, self.hash_block_size, block_size)
        self._announce_stored(
            request,
            hashes[:num_cached_blocks],
            [(at * block_size, (at + 1) * block_size) for at in range(num_cached_blocks)],
            parent=None,
            tokens=(0, num_cached_blocks * block_size),
            group_id=kv_cache_group_id,
            block_size=block_size,
        )

    def cache_partial_block(
        self,
        request: Request,
        block: KVCacheBlock,
        num_tokens: int,
        kv_cache_group_id: int,
        block_size: int,
    ) -> BlockHashWithGroupId | None:
        """Cache a block under the request's first `num_tokens`, which end within it.

        Returns the key; None for the null block. A full block has this key beside that of all its
        tokens; a block that is not full loses it when it becomes full. Raises AssertionError unless
        there is a hash of `num_tokens`, and `block_size` is a multiple of a hash's tokens.
        """
        if block.is_null:
            return None
        fine = self.hash_block_size
        hashed = len(request.block_hashes) * fine
        if not 0 < num_tokens <= hashed or num_tokens % fine or block_size % fine:
            raise AssertionError(
                f"num_tokens: {num_tokens} of {hashed} hashed tokens, block_size: {block_size}: both "
                f"must be multiples of hash_block_size {fine}"
            )
        at = num_tokens // fine - 1
        block_hash = request.block_hashes[at]
        key = make_block_hash_with_group_id(block_hash, kv_cache_group_id)
        if self.cached_block_hash_to_block.contain(key, block.block_id):
            return key
        if block.block_hash_num_tokens is not None and block.block_hash_num_tokens < num_tokens:
            self._maybe_evict_cached_block(block)
        if block.block_hash is None:
            block.set_block_hash(key, num_tokens)
        else:
            self.cached_block_hashes_by_block.setdefault(block.block_id, []).append(key)
        self.cached_block_hash_to_block.insert(key, block)
        if self.enable_kv_cache_events:
            part = (num_tokens - self.hash_block_size, num_tokens)
            self._announce_stored(
                request,
                [block_hash],
                [part],
                parent=request.block_hashes[at - 1] if at else None,
                tokens=part,
                group_id=kv_cache_group_id,
                block_size=self.hash_block_size,
            )
        return key

    def _announce_stored(
        self,
        request: Request,
        hashes: Iterable[BlockHash],
        ranges: Iterable[tuple[int, int]],
        *,
        parent: BlockHash | None,
        tokens: tuple[int, int],
        group_id: int,
        block_size: int,
    ) -> None:
        extra_keys = [generate_block_hash_extra_keys(request, start) for start, _ in ranges]
        lora = request.lora_request
        self.kv_event_queue.append(
            BlockStored(
                block_hashes=[self._external(block_hash) for block_hash in hashes],
                parent_block_hash=None if parent is None else self._external(parent),
                token_ids=list(request.all_token_ids[slice(*tokens)]),
                block_size=block_size,
                lora_id=lora.adapter_id if lora else None,
                medium=self.medium,
                lora_name=lora.name if lora else None,
                extra_keys=to_event_extra_keys(extra_keys),
                group_idx=group_id,
                session_id=request.session_id,
            )
        )

    def _external(self, block_hash: BlockHash) -> int | bytes:
        return maybe_convert_block_hash(block_hash, use_int_block_hashes=self._use_int_block_hashes)

    def _maybe_evict_cached_block(self, block: KVCacheBlock) -> bool:
        """Remove a block from the cache and announce that; return whether it was cached."""
        key = block.block_hash
        if key is None:
            return False
        block.block_hash = block.block_hash_num_tokens = None
        keys = [key]
        if self.cached_block_hashes_by_block:
            keys += self.cached_block_hashes_by_block.pop(block.block_id, ())
        pop = self.cached_block_hash_to_block.pop
        evicted = False
        for key in keys:
            if pop(key, block.block_id) is None:
                continue
            evicted = True
            if self.enable_kv_cache_events:
                self.kv_event_queue.append(
                    BlockRemoved(
                        block_hashes=[self._external(get_block_hash(key))],
                        medium=self.medium,
                        group_idx=get_group_id(key),
                    )
                )
        return evicted

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        """Take free blocks for new content; their cached content is evicted.

        Raises ValueError if fewer are free: callers ask first.
        """
        if num_blocks > self.free_block_queue.num_free_blocks:
            raise ValueError(f"Cannot get {num_blocks} free blocks from the pool")
        blocks = self.free_block_queue.popleft_n(num_blocks)
        for block in blocks:
            block.ref_cnt = 1
            if block.block_hash is not None:
                self._maybe_evict_cached_block(block)
        return blocks

    def touch(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Add a reference to blocks; free ones leave the queue and keep their content."""
        remove = self.free_block_queue.remove
        for block in blocks:
            if block.ref_cnt == 0 and not block.is_null:
                remove(block)
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """Remove a reference from blocks; those that become free are used in order, uncached first."""
        empty: list[KVCacheBlock] = []
        cached: list[KVCacheBlock] = []
        for block in ordered_blocks:
            block.ref_cnt -= 1
            if block.ref_cnt == 0 and not block.is_null:
                (empty if block.block_hash is None else cached).append(block)
        self.free_block_queue.prepend_n(empty)
        self.free_block_queue.append_n(cached)

    def evict_blocks(self, block_ids: Iterable[int]) -> None:
        """Remove blocks from the cache, even if requests hold them, because their content is bad.

        Raises ValueError for an unknown id, and then removes none.
        """
        block_ids = list(block_ids)
        for block_id in block_ids:
            if not 0 <= block_id < self.num_gpu_blocks:
                raise ValueError(f"block_ids: {block_id}, must be below {self.num_gpu_blocks}")
        for block_id in block_ids:
            self._maybe_evict_cached_block(self.blocks[block_id])

    def reset_prefix_cache(self) -> bool:
        """Forget all cached content; return False, and change nothing, while blocks are held."""
        if self.free_block_queue.num_free_blocks != self.num_gpu_blocks - 1:
            return False
        self.cached_block_hash_to_block = BlockHashToBlockMap()
        self.cached_block_hashes_by_block.clear()
        for block in self.blocks:
            block.reset_hash()
        if self.enable_kv_cache_events:
            self.kv_event_queue.append(AllBlocksCleared())
        return True

    def get_num_free_blocks(self) -> int:
        """Return the number of free blocks, cached ones included."""
        return self.free_block_queue.num_free_blocks

    def get_usage(self) -> float:
        """Return the share of the usable blocks that are held, 0 to 1."""
        usable = self.num_gpu_blocks - 1
        return 1.0 - self.free_block_queue.num_free_blocks / usable if usable else 0.0

    def take_events(self) -> list[CacheEvent]:
        events, self.kv_event_queue = self.kv_event_queue, []
        return events

    def check(self) -> None:
        self.free_block_queue.check()
        free = set(self.free_block_queue.get_all_free_blocks())
        for block in self.blocks:
            if block.is_null:
                if block in free or block.block_hash is not None:
                    raise BrokenInvariantError("the null block is free or cached")
            elif (block.ref_cnt == 0) != (block in free) or block.ref_cnt < 0:
                raise BrokenInvariantError(f"{block}: the free queue contradicts its count")
        found = sorted(
            (key, block.block_id) for key, block in self.cached_block_hash_to_block.items()
        )
        held = [(b.block_hash, b.block_id) for b in self.blocks if b.block_hash is not None]
        for block_id, keys in self.cached_block_hashes_by_block.items():
            held += [(key, block_id) for key in keys]
        if found != sorted(held):
            raise BrokenInvariantError("the cache does not hold the blocks under their hashes")
