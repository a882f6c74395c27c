"""Models whose groups differ: some layers read all tokens, others a window.

A prefix is a hit only if *every* group has the blocks that it needs for it. Each kind of group can find
its longest prefix up to a given length. The search begins with the whole prompt, lets every kind shorten
it in turn, and repeats that until no kind does. The length only falls, so the search ends.

Source: `HybridKVCacheCoordinator` in `vllm/v1/core/kv_cache_coordinator.py` of 0.32, without hits that
end within a block, which only state-space layers have.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from warmpath.lab.simworker.v1.cache.coordinator import KVCacheCoordinator
from warmpath.lab.simworker.v1.cache.kv_cache_block import KVCacheBlock
from warmpath.lab.simworker.v1.cache.single_type_manager import SingleTypeKVCacheManager
from warmpath.lab.simworker.v1.hashing.block_hash import BlockHash
from warmpath.lab.simworker.v1.specs.kv_cache_spec import FullAttentionSpec, KVCacheSpec


class SpecGroup(NamedTuple):
    """Groups with equal specs, which are looked up together."""

    spec: KVCacheSpec
    group_ids: list[int]
    manager_cls: type[SingleTypeKVCacheManager]
    use_eagle: bool
    """Whether a drafter reads any of the groups."""


class HybridKVCacheCoordinator(KVCacheCoordinator):
    """Finds and caches prefixes of a model whose cache groups differ.

    Raises ValueError unless `hash_block_size` divides each group's block size.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for at, spec in enumerate(self.specs):
            if spec.block_size % self.hash_block_size:
                raise ValueError(
                    f"hash_block_size: {self.hash_block_size} does not divide "
                    f"kv_cache_groups[{at}]'s {spec.block_size}"
                )
        self.attention_groups = self._group()
        for group in self.attention_groups:
            for group_id in group.group_ids:
                self.single_type_managers[group_id].use_eagle = group.use_eagle

    def _group(self) -> list[SpecGroup]:
        """Put groups with equal specs together, those with full attention first.

        Hits with full attention are the cheapest to find, and bound the search of the other groups.
        """
        alike: list[SpecGroup] = []
        for group_id, spec in enumerate(self.specs):
            use_eagle = group_id in self.eagle_group_ids
            for at, group in enumerate(alike):
                if group.spec == spec:
                    group.group_ids.append(group_id)
                    alike[at] = group._replace(use_eagle=group.use_eagle or use_eagle)
                    break
            else:
                manager = type(self.single_type_managers[group_id])
                alike.append(SpecGroup(spec, [group_id], manager, use_eagle))
        alike.sort(key=lambda group: not isinstance(group.spec, FullAttentionSpec))
        return alike

    def get_num_cacheable_tokens(self, num_computed_tokens: int, kv_cache_group_id: int) -> int:
        """Return how many of the computed tokens a hit can cover.

        They are rounded down to a multiple of the scheduler's block size, since hits end only there.
        A drafter's group is cached one block further; a hit finds that block and drops it.
        """
        size = self.scheduler_block_size
        manager = self.single_type_managers[kv_cache_group_id]
        if manager.use_eagle and num_computed_tokens >= size:
            final = max(0, num_computed_tokens - self.num_reprefillable_tokens)
            return min(final, final // size * size + manager.block_size)
        return num_computed_tokens // size * size

    def find_longest_cache_hit(
        self, block_hashes: Sequence[BlockHash], max_cache_hit_length: int
    ) -> tuple[tuple[list[KVCacheBlock], ...], int, int]:
        """Return the blocks, by group, of the longest prefix that all groups hold, and its tokens.

        The third part is how many tokens the longest hit lost in the search that the module explains.
        A drafter's group looks up one block more and drops the last, once for each length.
        """
        found: list[list[KVCacheBlock]] = [[] for _ in self.specs]
        own_length: dict[int, int] = {}
        """Kinds with full attention -> their prefix; they have every shorter one too."""
        dropped: set[int] = set()
        length = max_cache_hit_length
        longest = 0
        # With full attention and one other kind, full attention cannot shorten the other's prefix again.
        settled_at_once = len(self.attention_groups) == 2 and isinstance(
            self.attention_groups[0].spec, FullAttentionSpec
        )
        while True:
            current = length
            for at, group in enumerate(self.attention_groups):
                if at in own_length:
                    current = min(current, own_length[at])
                    continue
                drop = group.use_eagle and at not in dropped
                limit = current
                if drop:
                    limit = min(
                        current + group.spec.block_size, len(block_hashes) * self.hash_block_size
                    )
                blocks, new = group.manager_cls.find_longest_cache_hit(
                    block_hashes,
                    limit,
                    group.group_ids,
                    self.block_pool,
                    group.spec,
                    drop,
                    self.scheduler_block_size,
                )
                if drop:
                    dropped.add(at)
                elif new < current:
                    dropped.clear()
                current = new
                for group_id, ours in zip(group.group_ids, blocks, strict=True):
                    found[group_id] = ours
                if isinstance(group.spec, FullAttentionSpec):
                    own_length[at] = new
                longest = max(longest, current)
            if current >= length:
                break
            length = current
            if settled_at_once:
                break
        for group in self.attention_groups:
            if isinstance(group.spec, FullAttentionSpec):
                for group_id in group.group_ids:
                    del found[group_id][-(-length // group.spec.block_size) :]
        return tuple(found), length, longest - length
