"""The number of prompts that one step may compute in part, and of long ones among them.

Source: `PartialPrefillMetadata` in `vllm/core/scheduler.py` of 0.9.2.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from warmpath.lab.simworker.v0.requests.sequence import SequenceGroup
from warmpath.lab.simworker.v0.scheduling.scheduler_config import SchedulerConfig


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
