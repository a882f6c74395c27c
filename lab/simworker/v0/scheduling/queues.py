"""The three queues of groups, and the order in which groups wait.

Source: `Scheduler` in `vllm/core/scheduler.py` of 0.9.2.

With the policy `fcfs` a queue is in order of arrival, except that a group preempted by recompute goes to
the front. With `priority` the running queue is sorted before each use and the waiting queue after it: a
lower number first, then the earlier arrival.
"""

from collections import deque
from collections.abc import Iterable, Iterator

from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.v0.requests.sequence import SequenceGroup, SequenceStatus


def get_priority(seq_group: SequenceGroup) -> tuple[int, float]:
    """Return a group's sort key under the priority policy; the lowest comes first."""
    return seq_group.priority, seq_group.arrival_time


def by_priority(groups: Iterable[SequenceGroup]) -> deque[SequenceGroup]:
    """Return the groups as a queue in the order of the priority policy."""
    return deque(sorted(groups, key=get_priority))


class SequenceGroupQueues:
    """Every unfinished group, in one of three queues according to the place of its blocks."""

    def __init__(self) -> None:
        self.waiting: deque[SequenceGroup] = deque()
        """Groups without blocks: new, or preempted by recompute."""
        self.running: deque[SequenceGroup] = deque()
        """Groups with blocks on the GPU."""
        self.swapped: deque[SequenceGroup] = deque()
        """Groups with blocks on the CPU."""

    def add_seq_group(self, seq_group: SequenceGroup) -> None:
        self.waiting.append(seq_group)

    def _add_seq_group_to_running(self, seq_group: SequenceGroup) -> None:
        self.running.append(seq_group)

    def _add_seq_group_to_swapped(self, seq_group: SequenceGroup) -> None:
        self.swapped.append(seq_group)

    def has_unfinished_seqs(self) -> bool:
        """Whether any group is left."""
        return bool(self.waiting or self.running or self.swapped)

    def get_num_unfinished_seq_groups(self) -> int:
        return len(self.waiting) + len(self.running) + len(self.swapped)

    def take_out(self, request_ids: set[str]) -> list[SequenceGroup]:
        """Remove the groups of some requests from all queues, and return them."""
        taken = [group for group in self.groups() if group.request_id in request_ids]
        if taken:
            for queue in (self.waiting, self.running, self.swapped):
                left = [group for group in queue if group.request_id not in request_ids]
                queue.clear()
                queue.extend(left)
        return taken

    def groups(self) -> Iterator[SequenceGroup]:
        yield from self.waiting
        yield from self.running
        yield from self.swapped

    def check_queues(self) -> None:
        """Raise BrokenInvariantError unless each group is in one queue, that of its sequences."""
        queued = [id(group) for group in self.groups()]
        if len(queued) != len(set(queued)):
            raise BrokenInvariantError("a group is queued twice")
        seq_ids = [seq.seq_id for group in self.groups() for seq in group.seqs]
        if len(seq_ids) != len(set(seq_ids)):
            raise BrokenInvariantError("two sequences have one id")
        for queue, status in (
            (self.waiting, SequenceStatus.WAITING),
            (self.running, SequenceStatus.RUNNING),
            (self.swapped, SequenceStatus.SWAPPED),
        ):
            for group in queue:
                others = [s for s in group.seqs if not s.is_finished() and s.status != status]
                if others:
                    raise BrokenInvariantError(
                        f"{others} of group {group.request_id} in the queue {status.name}"
                    )
        for group in self.waiting:
            if group.get_max_num_running_seqs() != 1:
                raise BrokenInvariantError(
                    f"group {group.request_id} waits with {group.get_max_num_running_seqs()} "
                    "sequences, which no prefill computes together"
                )
