"""The KV cache manager: gives requests their blocks, and finds cached ones.

The scheduler calls it. For each waiting request it calls `get_computed_blocks`, then `allocate_slots`,
which takes the blocks found and free blocks for the rest, and caches the blocks that the step will fill.
`allocate_slots` returns None if the blocks do not fit; it has then only freed blocks that left an
attention window. A running request gets its next slots from `allocate_slots`; when it ends or is
preempted, the scheduler calls `free`.

Source: `vllm/v1/core/kv_cache_manager.py` of 0.32; one file as there, to be read beside it. Methods that
0.32 no longer has do what they did before.
"""

from collections.abc import Iterable, Sequence
from math import gcd, lcm

from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.v1.cache.caching_metrics import PrefixCacheStats
from warmpath.lab.simworker.v1.cache.coordinator import (
    Groups,
    KVCacheCoordinator,
    KVCacheCoordinatorNoPrefixCache,
    UnitaryKVCacheCoordinator,
)
from warmpath.lab.simworker.v1.cache.hybrid_coordinator import HybridKVCacheCoordinator
from warmpath.lab.simworker.v1.cache.kv_cache_block import KVCacheBlock, KVCacheBlocks
from warmpath.lab.simworker.v1.cache.kv_cache_event import BlockStored, CacheEvent
from warmpath.lab.simworker.v1.cache.sliding_window import SlidingWindowManager
from warmpath.lab.simworker.v1.requests.request import Request, RequestStatus
from warmpath.lab.simworker.v1.specs.kv_cache_spec import (
    KVCacheConfig,
    get_kv_cache_spec_kind,
    get_kv_cache_spec_sliding_window,
)


class KVCacheManager:
    """Blocks of all requests of one engine.

    `kv_cache_config`: number of blocks, and the groups of layers.
    `max_model_len`: the longest request, tokens.
    `scheduler_block_size`: hits are a multiple of it; the least common multiple of the groups' block
    sizes if not given. `hash_block_size`: tokens a hash of `Request.block_hashes`; their greatest common
    divisor if not given.
    `max_in_flight_tokens`: most tokens of steps that have not ended; bounds the blocks that a sliding
    window holds. `max_model_len` if not given, which bounds nothing.
    `use_eagle`: a drafter reads the cache; the last block of a hit is computed again. If no group is
    marked as the drafter's, all are.
    `num_prefill_lookahead`: prompt tokens that a drafter of several modules reads ahead.
    `watermark`: share of the blocks to stay free when a waiting request is admitted beside others.
    `use_int_block_hashes`: events carry 64-bit integers, not whole digests.
    Raises ValueError naming the field.
    """

    def __init__(  # noqa: PLR0917  vLLM's signature
        self,
        kv_cache_config: KVCacheConfig,
        max_model_len: int,
        scheduler_block_size: int | None = None,
        hash_block_size: int | None = None,
        max_in_flight_tokens: int | None = None,
        enable_caching: bool = True,
        use_eagle: bool = False,
        num_prefill_lookahead: int = 0,
        enable_kv_cache_events: bool = False,
        watermark: float = 0.0,
        *,
        use_int_block_hashes: bool = True,
    ) -> None:
        for name, value in (
            ("max_model_len", max_model_len),
            ("scheduler_block_size", scheduler_block_size),
            ("hash_block_size", hash_block_size),
            ("max_in_flight_tokens", max_in_flight_tokens),
        ):
            if value is not None and value < 1:
                raise ValueError(f"{name}: {value}, at least 1")
        if watermark < 0:
            raise ValueError(f"watermark: {watermark}, at least 0")
        groups = kv_cache_config.kv_cache_groups
        sizes = [group.kv_cache_spec.block_size for group in groups] or [1]
        self.kv_cache_config = kv_cache_config
        self.max_model_len = max_model_len
        self.enable_caching = enable_caching
        self.enable_kv_cache_events = enable_kv_cache_events
        self.use_eagle = use_eagle
        self.prefix_cache_stats = PrefixCacheStats()
        self.num_kv_cache_groups = len(groups)
        kind: type[KVCacheCoordinator] = HybridKVCacheCoordinator
        if not enable_caching:
            kind = KVCacheCoordinatorNoPrefixCache
        elif len(groups) == 1:
            kind = UnitaryKVCacheCoordinator
        self.coordinator = kind(
            kv_cache_config,
            max_model_len,
            max_model_len if max_in_flight_tokens is None else max_in_flight_tokens,
            use_eagle=use_eagle,
            enable_caching=enable_caching,
            enable_kv_cache_events=enable_kv_cache_events,
            scheduler_block_size=scheduler_block_size or lcm(*sizes),
            hash_block_size=hash_block_size or gcd(*sizes),
            num_prefill_lookahead=num_prefill_lookahead,
            use_int_block_hashes=use_int_block_hashes,
        )
        self.block_pool = self.coordinator.block_pool
        self.watermark_blocks = int(watermark * kv_cache_config.num_blocks)
        self.kv_cache_event_metadata = tuple(
            (
                get_kv_cache_spec_kind(group.kv_cache_spec).value,
                get_kv_cache_spec_sliding_window(group.kv_cache_spec),
            )
            for group in groups
        )
        self.empty_kv_cache_blocks = KVCacheBlocks(tuple(() for _ in groups))
        managers = self.coordinator.single_type_managers
        self._windows = any(isinstance(one, SlidingWindowManager) for one in managers)
        self._only_group = managers[0] if len(managers) == 1 else None

    @property
    def usage(self) -> float:
        """Share of the usable blocks that requests hold, 0 to 1."""
        return self.block_pool.get_usage()

    def prefix_cache_lookup_enabled(self, request: Request) -> bool:
        """Return whether a request may look up cached blocks."""
        return self.enable_caching and not request.skip_reading_prefix_cache

    def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int, int]:
        """Return the request's leading cached blocks, the number of their tokens, and a boundary.

        The last token is always computed again, for its logits. The request holds no block yet.
        The boundary is the end of a longer prefix that one group has and another, cached sparsely,
        lacks; the caller keeps it in `Request.shared_prefix_boundary`. It is 0 if there is none.
        """
        if not self.prefix_cache_lookup_enabled(request):
            return self.empty_kv_cache_blocks, 0, 0
        blocks, length, beyond = self.coordinator.find_longest_cache_hit(
            request.block_hashes, request.num_tokens - 1
        )
        if length and self.enable_kv_cache_events and request.kv_cache_report_mode == "full":
            self.coordinator.emit_cached_block_events(request, blocks)
        return self.create_kv_cache_blocks(blocks), length, length + beyond if beyond else 0

    def allocate_slots(  # noqa: PLR0917  vLLM's signature
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        num_lookahead_tokens: int = 0,
        num_external_computed_tokens: int = 0,
        delay_cache_blocks: bool = False,
        full_sequence_must_fit: bool = False,
        reserved_blocks: int = 0,
        has_scheduled_reqs: bool = True,
    ) -> KVCacheBlocks | None:
        """Give a request the blocks for its next tokens; return None if there are too few.

            | computed | found | external | new, drafts at their end | lookahead |
                               |<---------- blocks are allocated for ----------->|
            |<--- cached, up to the request's own tokens --->|

        `num_new_tokens`: tokens that this step computes; drafts beyond `Request.num_tokens` are never
        cached. `num_new_computed_tokens`, `new_computed_blocks`: the result of `get_computed_blocks`.
        `num_lookahead_tokens`: slots that a drafter writes to. `num_external_computed_tokens`: tokens to
        load from elsewhere. `delay_cache_blocks`: cache no block before the load has ended, which the
        caller does with `cache_blocks`. `full_sequence_must_fit`: return None unless all of the
        request's tokens would fit. `reserved_blocks`: number of blocks to leave free.
        `has_scheduled_reqs`: other requests run, so the watermark holds for a waiting one.

        Returns the new blocks, without those found and those for external tokens. Raises ValueError if
        there is no token to compute or adopt.
        """
        if (
            request.status is RequestStatus.RUNNING
            and new_computed_blocks is None
            and num_new_tokens > 0
            and not (num_new_computed_tokens or num_external_computed_tokens)
            and not (full_sequence_must_fit or reserved_blocks)
        ):
            # Most calls ask for one more token in a block that is not full.
            computed = request.num_computed_tokens
            end = computed + num_new_tokens
            if end <= self.max_model_len:
                if self._windows:
                    self.coordinator.remove_skipped_blocks(
                        request.request_id, max(0, computed - request.num_in_flight_tokens)
                    )
                slots = min(end + num_lookahead_tokens, self.max_model_len)
                if self.coordinator.has_slots(request.request_id, slots):
                    if not delay_cache_blocks:
                        self._cache_computed(request, end)
                    return self.empty_kv_cache_blocks
        if not (num_new_tokens or num_external_computed_tokens or num_new_computed_tokens):
            # Recordings of vLLM hold this text as an outcome.
            raise ValueError(
                "num_new_tokens must be greater than 0 when there are no computed tokens to adopt"
            )
        if num_new_tokens < 0:
            raise ValueError(f"num_new_tokens: {num_new_tokens}, at least 0")
        return self._allocate(
            request,
            num_new_tokens,
            request.num_computed_tokens + num_new_computed_tokens,
            (new_computed_blocks or self.empty_kv_cache_blocks).blocks,
            lookahead=num_lookahead_tokens,
            external=num_external_computed_tokens,
            watermark=self._watermark(request, has_scheduled_reqs=has_scheduled_reqs),
            reserved=reserved_blocks,
            full_sequence_must_fit=full_sequence_must_fit,
            delay_cache_blocks=delay_cache_blocks,
        )

    def _watermark(self, request: Request, *, has_scheduled_reqs: bool) -> int:
        waits = request.status in {RequestStatus.WAITING, RequestStatus.PREEMPTED}
        return self.watermark_blocks if has_scheduled_reqs and waits else 0

    def _allocate(
        self,
        request: Request,
        num_new_tokens: int,
        local: int,
        found: Sequence[Sequence[KVCacheBlock]],
        *,
        lookahead: int,
        external: int,
        watermark: int,
        reserved: int,
        full_sequence_must_fit: bool,
        delay_cache_blocks: bool,
    ) -> KVCacheBlocks | None:
        request_id = request.request_id
        blocks: Groups = tuple(found)
        coordinator = self.coordinator
        computed = min(local + external, self.max_model_len)
        if full_sequence_must_fit:
            needed = coordinator.get_num_blocks_to_allocate(
                request_id,
                min(request.num_tokens, self.max_model_len),
                blocks,
                computed,
                apply_admission_cap=True,
            )
            if needed + watermark > self.block_pool.get_num_free_blocks():
                return None
        slots = min(computed + num_new_tokens + lookahead, self.max_model_len)
        # Tokens in flight may still be refused, and their steps still read the window before them.
        coordinator.remove_skipped_blocks(
            request_id, max(0, computed - request.num_in_flight_tokens)
        )
        needed = coordinator.get_num_blocks_to_allocate(request_id, slots, blocks, local + external)
        if needed + watermark > self.block_pool.get_num_free_blocks() - reserved:
            return None
        if found is not self.empty_kv_cache_blocks.blocks or external > 0:
            coordinator.allocate_new_computed_blocks(request_id, blocks, local, external)
        new = coordinator.allocate_new_blocks(request_id, slots)
        if not delay_cache_blocks:
            self._cache_computed(request, computed + num_new_tokens)
        return self.create_kv_cache_blocks(new)

    def _cache_computed(self, request: Request, num_tokens: int) -> None:
        """Cache the blocks that a step fills, without tokens that may be refused."""
        num_tokens = min(num_tokens, request.num_tokens)
        only = self._only_group
        if only is not None:
            # Most steps fill no block.
            cached = only.num_cached_block.get(request.request_id, 0)
            if num_tokens // only.block_size <= cached:
                return
        self.coordinator.cache_blocks(request, num_tokens)

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Cache the blocks that the first `num_computed_tokens` fill, after a load from elsewhere."""
        if self.enable_caching:
            self.coordinator.cache_blocks(request, num_computed_tokens)

    def free(self, request: Request) -> None:
        """Free a request's blocks, the last first; their content stays until they get new content."""
        self.coordinator.free(request.request_id)

    def remove_skipped_blocks(
        self, request_id: str, processed_computed_tokens: int, num_prompt_tokens: int | None = None
    ) -> None:
        """Free blocks that no later step reads; ended steps have computed the given tokens."""
        self.coordinator.remove_skipped_blocks(
            request_id, processed_computed_tokens, num_prompt_tokens
        )

    def evict_blocks(self, block_ids: Iterable[int]) -> None:
        self.block_pool.evict_blocks(block_ids)

    def reset_prefix_cache(self) -> bool:
        if not self.block_pool.reset_prefix_cache():
            return False
        self.prefix_cache_stats.reset = True
        return True

    def record_prefix_cache_stats(self, request: Request, num_hits: int) -> None:
        """Count the look-up of a request that has been scheduled; `num_hits` in tokens."""
        if self.prefix_cache_lookup_enabled(request):
            self.prefix_cache_stats.record(
                request.num_tokens, num_hits, request.num_preemptions > 0
            )

    def make_prefix_cache_stats(self) -> PrefixCacheStats:
        """Return the counts since the last call."""
        stats, self.prefix_cache_stats = self.prefix_cache_stats, PrefixCacheStats()
        return stats

    def get_blocks(self, request_id: str) -> KVCacheBlocks:
        return self.create_kv_cache_blocks(self.coordinator.get_blocks(request_id))

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        return self.get_blocks(request_id).get_block_ids()

    def create_kv_cache_blocks(self, blocks: tuple[list[KVCacheBlock], ...]) -> KVCacheBlocks:
        """Wrap blocks; without any, always return the same object."""
        return KVCacheBlocks(blocks) if any(blocks) else self.empty_kv_cache_blocks

    def take_events(self) -> list[CacheEvent]:
        events = self.block_pool.take_events()
        for event in events:
            if not isinstance(event, BlockStored):
                continue
            if event.group_idx is not None and event.group_idx < self.num_kv_cache_groups:
                kind, window = self.kv_cache_event_metadata[event.group_idx]
                event.kv_cache_spec_kind = kind
                event.kv_cache_spec_sliding_window = window
        return events

    def check(self) -> None:
        """Raise BrokenInvariantError if reference counts are not those of the tables.

        Blocks that were popped and not freed yet are in no table, which is an error here.
        """
        self.block_pool.check()
        counts: dict[int, int] = {}
        for manager in self.coordinator.single_type_managers:
            manager.check()
            for blocks in manager.req_to_blocks.values():
                for block in blocks:
                    counts[block.block_id] = counts.get(block.block_id, 0) + 1
        for block in self.block_pool.blocks:
            if not block.is_null and block.ref_cnt != counts.get(block.block_id, 0):
                raise BrokenInvariantError(f"{block} is in {counts.get(block.block_id, 0)} tables")
