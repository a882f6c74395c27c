"""The blocks of all requests in one group of layers.

Source: `SingleTypeKVCacheManager` in `vllm/v1/core/single_type_kv_cache_manager.py` of 0.32. Left out:
state-space layers, decode-context parallelism and the zeroing of new blocks.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from itertools import islice

from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.v1.cache.block_pool import BlockPool
from warmpath.lab.simworker.v1.cache.kv_cache_block import KVCacheBlock
from warmpath.lab.simworker.v1.hashing.block_hash import BlockHash
from warmpath.lab.simworker.v1.hashing.block_hash_view import resolve_block_hashes
from warmpath.lab.simworker.v1.requests.request import Request
from warmpath.lab.simworker.v1.specs.kv_cache_spec import FullAttentionSpec, KVCacheSpec

CacheHit = tuple[tuple[list[KVCacheBlock], ...], int]
"""Blocks of each group that was looked up, and the tokens of the hit."""


class SingleTypeKVCacheManager(ABC):
    """Block tables, and the number of cached blocks in each.

    Subclasses add the rules of one kind of attention.
    """

    def __init__(
        self,
        kv_cache_spec: KVCacheSpec,
        block_pool: BlockPool,
        enable_caching: bool,
        kv_cache_group_id: int,
        scheduler_block_size: int,
        *,
        max_admission_blocks_per_request: int | None = None,
    ) -> None:
        self.kv_cache_spec = kv_cache_spec
        self.block_size = kv_cache_spec.block_size
        self.block_pool = block_pool
        self.enable_caching = enable_caching
        self.kv_cache_group_id = kv_cache_group_id
        self.scheduler_block_size = scheduler_block_size
        self.cache_hit_alignment_tokens = scheduler_block_size
        """A hit of the whole model is a multiple of it, in tokens."""
        self.max_admission_blocks_per_request = max_admission_blocks_per_request
        """The most blocks that a request holds at once, if it frees blocks while it runs."""
        self.use_eagle = False
        """Whether a drafter reads this group; if so, the last block of a hit is computed again."""
        self.req_to_blocks: defaultdict[str, list[KVCacheBlock]] = defaultdict(list)
        self.num_cached_block: dict[str, int] = {}
        """Running request -> number of its leading blocks that were cached or skipped."""
        self._null_block = block_pool.null_block

    def get_num_blocks_to_allocate(
        self,
        request_id: str,
        num_tokens: int,
        new_computed_blocks: Sequence[KVCacheBlock],
        total_computed_tokens: int,
        apply_admission_cap: bool = False,
    ) -> int:
        """Return the number of free blocks needed to give a request `num_tokens` slots.

        Found blocks in the free queue count, as they leave it. `total_computed_tokens` counts the tokens
        found, here or elsewhere, and those computed before. With `apply_admission_cap` the answer is for
        the whole request, which frees blocks while it runs.
        """
        required = -(-num_tokens // self.block_size)
        if apply_admission_cap and self.max_admission_blocks_per_request is not None:
            required = min(required, self.max_admission_blocks_per_request)
        held = len(self.req_to_blocks.get(request_id, ()))
        if request_id in self.num_cached_block:
            # After refused drafts it may hold more blocks than it needs.
            return max(required - held, 0)
        skipped = self.get_num_skipped_tokens(total_computed_tokens) // self.block_size
        new = max(required - max(skipped, len(new_computed_blocks) + held), 0)
        in_window = new_computed_blocks[max(0, skipped - held) :]
        return new + len([0 for block in in_window if not (block.ref_cnt or block.is_null)])

    def add_local_computed_blocks(
        self,
        request_id: str,
        new_computed_blocks: Sequence[KVCacheBlock],
        num_local_computed_tokens: int,
        num_external_computed_tokens: int,
    ) -> None:
        """Begin a request's table with the blocks found; those before the window are null."""
        blocks = self.req_to_blocks[request_id]
        total = num_local_computed_tokens + num_external_computed_tokens
        skipped = self.get_num_skipped_tokens(total) // self.block_size
        found = new_computed_blocks[skipped:]
        self.block_pool.touch(found)
        blocks += [self._null_block] * skipped
        blocks += found
        self.num_cached_block[request_id] = len(blocks)

    def allocate_external_computed_blocks(
        self, request_id: str, num_local_computed_tokens: int, num_external_computed_tokens: int
    ) -> None:
        """Take blocks for tokens to load from elsewhere, except those before the window.

        Call it after all groups have added the blocks found: no group may take a block that another
        found.
        """
        total = num_local_computed_tokens + num_external_computed_tokens
        if self.get_num_skipped_tokens(total) >= total:
            return
        blocks = self.req_to_blocks[request_id]
        needed = -(-total // self.block_size) - len(blocks)
        blocks += self.block_pool.get_new_blocks(max(needed, 0))

    def allocate_new_blocks(self, request_id: str, num_tokens: int) -> list[KVCacheBlock]:
        """Take blocks until the request has `num_tokens` slots in all; return the new ones."""
        blocks = self.req_to_blocks[request_id]
        needed = -(-num_tokens // self.block_size) - len(blocks)
        if needed <= 0:
            return []
        new = self.block_pool.get_new_blocks(needed)
        blocks += new
        return new

    def cache_blocks(
        self,
        request: Request,
        num_tokens: int,
        retention_interval: int | None = None,
        *,
        replay_boundaries: Sequence[int] = (),
    ) -> None:
        """Of the blocks that the first `num_tokens` fill, cache those that a hit can use.

        In a group that is cached sparsely, `retention_interval` and `replay_boundaries` select them
        (`reachable_block_mask`).
        """
        cached = self.num_cached_block.get(request.request_id, 0)
        full = num_tokens // self.block_size
        if cached >= full:
            return
        boundaries = replay_boundaries
        if request.shared_prefix_boundary:
            boundaries = (*boundaries, request.shared_prefix_boundary)
        mask = self.reachable_block_mask(
            cached,
            full,
            self.cache_hit_alignment_tokens,
            self.kv_cache_spec,
            self.use_eagle,
            retention_interval,
            boundaries,
        )
        self.block_pool.cache_full_blocks(
            request,
            self.req_to_blocks[request.request_id],
            cached,
            full,
            self.block_size,
            self.kv_cache_group_id,
            mask,
        )
        self.num_cached_block[request.request_id] = full

    @classmethod
    def reachable_block_mask(  # noqa: PLR0917  vLLM's signature
        cls,
        start_block: int,  # noqa: ARG003  for groups that are cached sparsely
        end_block: int,  # noqa: ARG003
        alignment_tokens: int | None,  # noqa: ARG003
        kv_cache_spec: KVCacheSpec,  # noqa: ARG003
        use_eagle: bool,  # noqa: ARG003
        retention_interval: int | None = None,  # noqa: ARG003
        reachable_boundaries: Sequence[int] = (),  # noqa: ARG003
    ) -> list[bool] | None:
        """Return, for each block from `start_block` to before `end_block`, whether a hit can use it.

        Return None if a hit can use every block.
        """
        return None

    def pop_blocks_for_free(self, request_id: str) -> list[KVCacheBlock]:
        """Forget a request; return its blocks, which stay held until the caller frees them."""
        self.num_cached_block.pop(request_id, None)
        return self.req_to_blocks.pop(request_id, [])

    def free(self, request_id: str) -> None:
        """Free a request's blocks, the last first: the tail of a prompt is evicted before its head."""
        self.block_pool.free_blocks(reversed(self.pop_blocks_for_free(request_id)))

    def remove_skipped_blocks(
        self,
        request_id: str,
        processed_computed_tokens: int,
        num_prompt_tokens: int | None = None,  # noqa: ARG002  vLLM's signature
    ) -> None:
        """Free blocks that attention will not read again; null blocks take their places."""
        skipped = self.get_num_skipped_tokens(processed_computed_tokens) // self.block_size
        blocks = self.req_to_blocks.get(request_id)
        if not skipped or not blocks:
            return
        freed = []
        for index in range(min(skipped, len(blocks)) - 1, -1, -1):
            block = blocks[index]
            if block.is_null:
                break
            freed.append(block)
            blocks[index] = self._null_block
        self.block_pool.free_blocks(freed)

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:  # noqa: ARG002  see below
        """Return how many leading tokens attention will not read again: 0 for full attention."""
        return 0

    @classmethod
    @abstractmethod
    def find_longest_cache_hit(  # noqa: PLR0917  vLLM's signature
        cls,
        block_hashes: Sequence[BlockHash],
        max_length: int,
        kv_cache_group_ids: Sequence[int],
        block_pool: BlockPool,
        kv_cache_spec: KVCacheSpec,
        drop_eagle_block: bool,
        alignment_tokens: int,
    ) -> CacheHit:
        """Return the longest prefix that all these groups, which have equal specs, have cached.

        It has at most `max_length` tokens and is a multiple of `alignment_tokens`. With
        `drop_eagle_block` the last block found is dropped.
        """

    def check(self) -> None:
        """Raise BrokenInvariantError if more blocks of a table are counted as cached than it has."""
        for request_id, cached in self.num_cached_block.items():
            if cached > len(self.req_to_blocks.get(request_id, ())):
                raise BrokenInvariantError(f"{request_id}: {cached} blocks cached, fewer held")


class FullAttentionManager(SingleTypeKVCacheManager):
    """A hit is a run of blocks from the first on."""

    @classmethod
    def find_longest_cache_hit(  # noqa: PLR0917  vLLM's signature
        cls,
        block_hashes: Sequence[BlockHash],
        max_length: int,
        kv_cache_group_ids: Sequence[int],
        block_pool: BlockPool,
        kv_cache_spec: KVCacheSpec,
        drop_eagle_block: bool,
        alignment_tokens: int,
    ) -> CacheHit:
        """Return the leading blocks that are cached in all groups.

        Raises TypeError for another kind of spec, ValueError for an alignment finer than a block: only
        models with state-space layers have hits that end within a block.
        """
        if not isinstance(kv_cache_spec, FullAttentionSpec):
            raise TypeError(f"kv_cache_spec: {type(kv_cache_spec).__name__} is not full attention")
        size = kv_cache_spec.block_size
        if alignment_tokens % size:
            raise ValueError(f"alignment_tokens: {alignment_tokens} is not a multiple of {size}")
        hashes = resolve_block_hashes(block_hashes, block_pool.hash_block_size, size)
        found: list[list[KVCacheBlock]] = []
        limit = max_length // size
        for group_id in kv_cache_group_ids:
            leading = block_pool.cached_block_hash_to_block.get_leading_blocks(
                islice(hashes, limit), group_id
            )
            found.append(leading)
            limit = len(leading)
        if drop_eagle_block and limit:
            limit -= 1
        limit -= limit * size % alignment_tokens // size
        for blocks in found:
            del blocks[limit:]
        return tuple(found), limit * size

    def cache_blocks(
        self,
        request: Request,
        num_tokens: int,
        retention_interval: int | None = None,
        *,
        replay_boundaries: Sequence[int] = (),
    ) -> None:
        """Cache full blocks, and the prompt's tail if hashes are finer than blocks.

        The tail is cached under the last hash that ends before the prompt's last token: another request
        with the same prompt could use no more.
        """
        super().cache_blocks(
            request, num_tokens, retention_interval, replay_boundaries=replay_boundaries
        )
        fine = self.block_pool.hash_block_size
        if fine == self.block_size:
            return
        prompt = request.num_prompt_tokens - (0 if self.use_eagle else 1)
        boundary = prompt // fine * fine
        if boundary <= 0 or boundary > num_tokens or boundary % self.block_size == 0:
            return
        blocks = self.req_to_blocks[request.request_id]
        index = boundary // self.block_size
        if index < len(blocks):
            self.block_pool.cache_partial_block(
                request, blocks[index], boundary, self.kv_cache_group_id, self.block_size
            )
