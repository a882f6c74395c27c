"""The number of a group's tokens that the next step computes.

Source: `Scheduler._get_num_new_uncached_and_cached_tokens` and
`Scheduler._chunk_new_tokens_to_schedule` in `vllm/core/scheduler.py` of 0.9.2.

Source of `PartialPrefillMetadata`: `vllm/core/scheduler.py` of 0.9.2.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from warmpath.lab.simworker.v0.blocks.block_manager import BlockManager
from warmpath.lab.simworker.v0.requests.sequence import Sequence, SequenceGroup, SequenceStatus
from warmpath.lab.simworker.v0.scheduling.queues import SchedulingBudget
from warmpath.lab.simworker.v0.scheduling.scheduler_config import CacheConfig, SchedulerConfig


@dataclass(slots=True)
class PartialPrefillMetadata:
    """A step's prefills. With several at once a long prompt does not keep short ones waiting."""

    schedulable_prefills: int
    """Prefills that share the step's tokens evenly."""
    long_prefills: int
    """Long prefills that run."""
    scheduler_config: SchedulerConfig

    @classmethod
    def from_queues(
        cls,
        running: Iterable[SequenceGroup],
        waiting: Iterable[SequenceGroup],
        scheduler_config: SchedulerConfig,
    ) -> "PartialPrefillMetadata":
        """Count the running prefills, and the waiting ones that may join them.

        Waiting long prefills count only within the limit; they are not `long_prefills` until they are
        scheduled.
        """
        limit = scheduler_config.max_num_partial_prefills
        metadata = cls(0, 0, scheduler_config)
        prefills = 0
        for group in running:
            if group.is_prefill():
                prefills += 1
                metadata.maybe_increment_partial_prefills(group)
        long_prefills = metadata.long_prefills
        for group in waiting:
            if prefills >= limit:
                break
            if metadata.is_long(group):
                if long_prefills >= scheduler_config.max_long_partial_prefills:
                    continue
                long_prefills += 1
            prefills += 1
        metadata.schedulable_prefills = min(prefills, limit)
        return metadata

    def is_long(self, seq_group: SequenceGroup) -> bool:
        """Whether a group still has over `long_prefill_token_threshold` tokens to compute."""
        threshold = self.scheduler_config.long_prefill_token_threshold
        return seq_group.first_unfinished_seq.get_num_new_tokens() > threshold

    def can_schedule(self, seq_group: SequenceGroup) -> bool:
        """Whether a waiting group may start: a long one may not beside too many other long ones."""
        config = self.scheduler_config
        return (
            config.max_num_partial_prefills == 1
            or self.long_prefills < config.max_long_partial_prefills
            or not self.is_long(seq_group)
        )

    def maybe_increment_partial_prefills(self, seq_group: SequenceGroup) -> None:
        """Count a group that is computed in this step, if it is long."""
        if self.is_long(seq_group):
            self.long_prefills += 1


class NewTokens:
    """Counts a group's tokens to compute, subtracts cached ones, and cuts chunks."""

    def __init__(
        self,
        scheduler_config: SchedulerConfig,
        cache_config: CacheConfig,
        block_manager: BlockManager,
    ) -> None:
        self._scheduler_config = scheduler_config
        self._cache_config = cache_config
        self._block_manager = block_manager

    def count(
        self,
        seq_group: SequenceGroup,
        status: SequenceStatus,
        budget: SchedulingBudget,
        *,
        enable_chunking: bool,
        partial_prefill_metadata: PartialPrefillMetadata | None = None,
    ) -> tuple[int, int]:
        """Return (tokens to compute, tokens found cached) of a group's sequences of one status.

        With chunking the first is 0 if the budget has no room for a chunk. A prompt that is wholly
        cached computes its last token again, for the logits.
        """
        seqs = seq_group.get_seqs(status=status)
        uncached = cached = 0
        for seq in seqs:
            new, found = self._count_sequence(seq)
            uncached += new
            cached += found
        if uncached == 0 and cached > 0:
            uncached, cached = 1, cached - 1
        if enable_chunking and len(seqs) == 1:
            # Several sequences decode, one token each: they cannot be cut.
            uncached = self._cut(uncached, budget, partial_prefill_metadata)
        return uncached, cached

    @property
    def prompt_limit(self) -> int:
        """The most tokens that a prompt may have."""
        config = self._scheduler_config
        if config.enable_chunked_prefill and not config.is_multi_step:
            return config.max_model_len
        return min(config.max_model_len, config.max_num_batched_tokens)

    def _count_sequence(self, seq: Sequence) -> tuple[int, int]:
        if not seq.is_prefill():
            return 1, 0
        computed = seq.get_num_computed_tokens()
        new = seq.get_len() - computed
        if not self._cache_config.enable_prefix_caching:
            return new, 0
        # For a prefill under way these are the tokens that its first chunk found, fewer than computed.
        found = max(0, self._block_manager.get_num_cached_tokens(seq) - computed)
        return new - found, found

    def _cut(
        self, new: int, budget: SchedulingBudget, prefills: PartialPrefillMetadata | None
    ) -> int:
        config = self._scheduler_config
        remaining = budget.remaining_token_budget()
        if config.is_multi_step:
            # Without chunks a prompt is computed whole or later; one over the limit is ignored later.
            return new if new <= remaining or new > self.prompt_limit else 0
        slot = remaining
        if prefills is not None:
            slot = config.max_num_batched_tokens // max(prefills.schedulable_prefills, 1)
        if self._cache_config.enable_prefix_caching:
            # A chunk that is not the last ends with a full block, which other requests can find.
            block_size = self._cache_config.block_size
            remaining = min(remaining, slot) // block_size * block_size
        return min(new, remaining, slot)
