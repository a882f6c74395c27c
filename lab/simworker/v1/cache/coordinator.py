"""The groups of a model, over one pool: the blocks that a request needs, holds and finds in all groups.

Source: `vllm/v1/core/kv_cache_coordinator.py` of 0.32.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from warmpath.lab.simworker.v1.cache.block_pool import BlockPool
from warmpath.lab.simworker.v1.cache.kv_cache_block import KVCacheBlock
from warmpath.lab.simworker.v1.cache.single_type_manager import (
    FullAttentionManager,
    SingleTypeKVCacheManager,
)
from warmpath.lab.simworker.v1.cache.sliding_window import SlidingWindowManager
from warmpath.lab.simworker.v1.hashing.block_hash import BlockHash
from warmpath.lab.simworker.v1.requests.request import Request
from warmpath.lab.simworker.v1.specs.kv_cache_spec import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    SlidingWindowSpec,
    iter_layer_specs,
)

Groups = tuple[Sequence[KVCacheBlock], ...]
"""Blocks of each group."""


def replay_boundaries(
    num_prompt_tokens: int, scheduler_block_size: int, *, use_eagle: bool
) -> tuple[int, ...]:
    """Return the numbers of tokens at which a hit of a later request with this prompt can end.

    Without a drafter that is one token before the prompt's end: the last token is computed again.
    With a drafter, the last full block found is computed again: a hit of the same prompt, and of
    a longer one, ends one block before it.
    """
    if not use_eagle:
        return (num_prompt_tokens - 1,)
    size = scheduler_block_size
    ends = {tokens // size * size for tokens in (num_prompt_tokens - 1, num_prompt_tokens)}
    return tuple(sorted({max(end - size, 0) for end in ends}))


class KVCacheCoordinator(ABC):
    """Calls the groups' managers one after the other.

    A hit is a multiple of `scheduler_block_size`, which is a multiple of each group's block size and of
    `hash_block_size`. `num_prefill_lookahead` is the number of tokens that a drafter of several modules
    reads ahead in a prompt. Raises ValueError, naming the field, if these contradict each other.
    """

    def __init__(
        self,
        kv_cache_config: KVCacheConfig,
        max_model_len: int,
        max_in_flight_tokens: int,
        *,
        use_eagle: bool = False,
        enable_caching: bool = True,
        enable_kv_cache_events: bool = False,
        scheduler_block_size: int,
        hash_block_size: int,
        num_prefill_lookahead: int = 0,
        use_int_block_hashes: bool = True,
    ) -> None:
        self.kv_cache_config = kv_cache_config
        self.scheduler_block_size = scheduler_block_size
        self.hash_block_size = hash_block_size
        groups = kv_cache_config.kv_cache_groups
        self.specs = [_layer_spec(group.kv_cache_spec) for group in groups]
        for name, size in (
            ("hash_block_size", hash_block_size),
            *((f"kv_cache_groups[{at}]", spec.block_size) for at, spec in enumerate(self.specs)),
        ):
            if scheduler_block_size % size:
                raise ValueError(
                    f"scheduler_block_size: {scheduler_block_size} is not a multiple of {name}'s {size}"
                )
        self.eagle_group_ids = {at for at, group in enumerate(groups) if group.is_eagle_group}
        if use_eagle and not self.eagle_group_ids:
            self.eagle_group_ids = set(range(len(groups)))
        if enable_caching and self.eagle_group_ids and scheduler_block_size < num_prefill_lookahead:
            raise ValueError(
                f"num_prefill_lookahead: {num_prefill_lookahead}, at most the "
                f"scheduler_block_size {scheduler_block_size}: one block of a hit is computed again"
            )
        self.num_reprefillable_tokens = max(0, num_prefill_lookahead - 1)
        """Computed tokens at the end of a request that the drafter may compute again."""
        self.retention_interval = kv_cache_config.prefix_cache_retention_interval
        _check_retention(self.retention_interval, scheduler_block_size, self.specs)
        self.block_pool = BlockPool(
            kv_cache_config.num_blocks,
            enable_caching,
            hash_block_size,
            enable_kv_cache_events,
            use_int_block_hashes=use_int_block_hashes,
        )
        self.single_type_managers = tuple(
            get_manager_for_kv_cache_spec(
                spec,
                max_in_flight_tokens,
                max_model_len,
                block_pool=self.block_pool,
                enable_caching=enable_caching,
                kv_cache_group_id=at,
                scheduler_block_size=scheduler_block_size,
            )
            for at, spec in enumerate(self.specs)
        )

    def get_num_blocks_to_allocate(
        self,
        request_id: str,
        num_tokens: int,
        new_computed_blocks: Groups,
        total_computed_tokens: int,
        *,
        apply_admission_cap: bool = False,
    ) -> int:
        """Return the number of free blocks needed to give a request `num_tokens` slots."""
        return sum(
            manager.get_num_blocks_to_allocate(
                request_id,
                num_tokens,
                blocks,
                total_computed_tokens,
                apply_admission_cap=apply_admission_cap,
            )
            for manager, blocks in zip(self.single_type_managers, new_computed_blocks, strict=True)
        )

    def has_slots(self, request_id: str, num_tokens: int) -> bool:
        """Return whether a request holds `num_tokens` slots in all groups."""
        for manager in self.single_type_managers:
            blocks = manager.req_to_blocks.get(request_id)
            if blocks is None or len(blocks) * manager.block_size < num_tokens:
                return False
        return True

    def allocate_new_computed_blocks(
        self,
        request_id: str,
        new_computed_blocks: Groups,
        num_local_computed_tokens: int,
        num_external_computed_tokens: int,
    ) -> None:
        """Begin a request's tables with the blocks found here and those to be loaded.

        Raises ValueError if a running request is given found blocks: its tables exist already.
        """
        managers = self.single_type_managers
        if any(request_id in manager.num_cached_block for manager in managers):
            if any(new_computed_blocks):
                raise ValueError(f"new_computed_blocks: {request_id} is running already")
            return
        for manager, blocks in zip(managers, new_computed_blocks, strict=True):
            manager.add_local_computed_blocks(
                request_id, blocks, num_local_computed_tokens, num_external_computed_tokens
            )
        if num_external_computed_tokens > 0:
            for manager in managers:
                manager.allocate_external_computed_blocks(
                    request_id, num_local_computed_tokens, num_external_computed_tokens
                )

    def allocate_new_blocks(
        self, request_id: str, num_tokens: int
    ) -> tuple[list[KVCacheBlock], ...]:
        """Take the further blocks that `num_tokens` slots need; return them."""
        return tuple(
            manager.allocate_new_blocks(request_id, num_tokens)
            for manager in self.single_type_managers
        )

    def get_num_cacheable_tokens(
        self,
        num_computed_tokens: int,
        kv_cache_group_id: int,  # noqa: ARG002  groups differ in hybrid models
    ) -> int:
        """Return the most computed tokens that a hit of this group can cover."""
        return max(0, num_computed_tokens - self.num_reprefillable_tokens)

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """In each group, cache those blocks of the first `num_computed_tokens` that a hit can use."""
        boundaries: tuple[int, ...] = ()
        if self.retention_interval is not None:
            boundaries = replay_boundaries(
                request.num_prompt_tokens,
                self.scheduler_block_size,
                use_eagle=bool(self.eagle_group_ids),
            )
        for group_id, manager in enumerate(self.single_type_managers):
            manager.cache_blocks(
                request,
                self.get_num_cacheable_tokens(num_computed_tokens, group_id),
                self.retention_interval,
                replay_boundaries=boundaries,
            )

    def emit_cached_block_events(self, request: Request, computed_blocks: Groups) -> None:
        """Announce again, in each group, the blocks that a request found cached."""
        for manager, blocks in zip(self.single_type_managers, computed_blocks, strict=True):
            self.block_pool.emit_cached_block_events(
                request, len(blocks), manager.block_size, manager.kv_cache_group_id
            )

    def free(self, request_id: str) -> None:
        for manager in self.single_type_managers:
            manager.free(request_id)

    def remove_skipped_blocks(
        self, request_id: str, processed_computed_tokens: int, num_prompt_tokens: int | None = None
    ) -> None:
        for manager in self.single_type_managers:
            manager.remove_skipped_blocks(request_id, processed_computed_tokens, num_prompt_tokens)

    def get_blocks(self, request_id: str) -> tuple[list[KVCacheBlock], ...]:
        """Return a request's tables themselves, not copies."""
        return tuple(
            manager.req_to_blocks.get(request_id) or [] for manager in self.single_type_managers
        )

    @abstractmethod
    def find_longest_cache_hit(
        self, block_hashes: Sequence[BlockHash], max_cache_hit_length: int
    ) -> tuple[tuple[list[KVCacheBlock], ...], int, int]:
        """Return the blocks of the longest prefix that all groups have cached, and its length in tokens.

        The third value is the number of tokens beyond it that a group has and others do not.
        """


def get_manager_for_kv_cache_spec(
    kv_cache_spec: KVCacheSpec,
    max_in_flight_tokens: int,
    max_model_len: int,
    *,
    block_pool: BlockPool,
    enable_caching: bool,
    kv_cache_group_id: int,
    scheduler_block_size: int,
) -> SingleTypeKVCacheManager:
    """Return the manager of a group. Raises ValueError for kinds of layers that are not simulated."""
    if isinstance(kv_cache_spec, FullAttentionSpec):
        return FullAttentionManager(
            kv_cache_spec, block_pool, enable_caching, kv_cache_group_id, scheduler_block_size
        )
    if isinstance(kv_cache_spec, SlidingWindowSpec):
        return SlidingWindowManager(
            kv_cache_spec,
            block_pool,
            enable_caching,
            kv_cache_group_id,
            scheduler_block_size,
            max_admission_blocks_per_request=kv_cache_spec.max_admission_blocks_per_request(
                max_in_flight_tokens, max_model_len
            ),
        )
    raise ValueError(
        f"kv_cache_groups[{kv_cache_group_id}]: {type(kv_cache_spec).__name__} is not simulated, "
        "only full attention and sliding windows are"
    )


def _layer_spec(spec: KVCacheSpec) -> KVCacheSpec:
    """Return the spec of one layer for all of a group: layers of one kind need the same slots."""
    return next(iter(iter_layer_specs(spec)))


def _check_retention(
    interval: int | None, scheduler_block_size: int, specs: Sequence[KVCacheSpec]
) -> None:
    if interval is None:
        return
    if interval < 0 or interval % scheduler_block_size:
        raise ValueError(
            f"prefix_cache_retention_interval: {interval}, must be non-negative and a multiple of "
            f"scheduler_block_size {scheduler_block_size}"
        )
    if interval and not any(isinstance(spec, SlidingWindowSpec) for spec in specs):
        raise ValueError(
            f"prefix_cache_retention_interval: {interval}, must be 0 without layers with sliding windows"
        )


class UnitaryKVCacheCoordinator(KVCacheCoordinator):
    """A model with one group. Raises ValueError unless a hash covers one of its blocks."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        size = self.block_size = self.specs[0].block_size
        if self.hash_block_size != size:
            raise ValueError(
                f"hash_block_size: {self.hash_block_size}, with one group its block_size {size}"
            )
        self.single_type_managers[0].use_eagle = 0 in self.eagle_group_ids

    def find_longest_cache_hit(
        self, block_hashes: Sequence[BlockHash], max_cache_hit_length: int
    ) -> tuple[tuple[list[KVCacheBlock], ...], int, int]:
        """Return the group's hit, its tokens, and 0: no group has more."""
        manager = self.single_type_managers[0]
        blocks, length = manager.find_longest_cache_hit(
            block_hashes,
            max_cache_hit_length,
            (0,),
            self.block_pool,
            self.specs[0],
            manager.use_eagle,
            self.block_size,
        )
        return blocks, length, 0


class KVCacheCoordinatorNoPrefixCache(KVCacheCoordinator):
    """A coordinator without a prefix cache: it allocates blocks, and finds and caches none."""

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Do nothing: no block is cached."""

    def find_longest_cache_hit(
        self,
        block_hashes: Sequence[BlockHash],  # noqa: ARG002
        max_cache_hit_length: int,  # noqa: ARG002
    ) -> tuple[tuple[list[KVCacheBlock], ...], int, int]:
        """Return no blocks, 0 tokens, and 0: no group has more."""
        return tuple([] for _ in self.single_type_managers), 0, 0
