"""The three queues of groups, the order in which groups wait, and the budget of a step.

Source: `Scheduler` and `SchedulingBudget` in `vllm/core/scheduler.py` of 0.9.2.

With the policy `fcfs` a queue is in order of arrival, except that a group preempted by recompute goes to
the front. With `priority` the running queue is sorted before each use and the waiting queue after it: a
lower number first, then the earlier arrival.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

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


@dataclass(slots=True)
class SchedulingBudget:
    """A budget that knows each request's share: a request counts once, however often it is added.

    This is needed because the default policy counts the running sequences before it schedules them, so
    that prefills leave room for them, and counts them again when it does.
    """

    token_budget: int
    max_num_seqs: int
    _tokens: dict[str, int] = field(default_factory=dict)
    _seqs: dict[str, int] = field(default_factory=dict)
    num_batched_tokens: int = 0
    """Tokens of this step that are computed."""
    num_curr_seqs: int = 0
    num_cached_tokens: int = 0
    """Tokens of this step found in the prefix cache, which cost nothing."""

    def can_schedule(self, *, num_new_tokens: int, num_new_seqs: int) -> bool:
        """Whether so many more fit. 0 tokens are allowed, as all may be cached; 0 sequences are not."""
        assert num_new_tokens >= 0
        assert num_new_seqs > 0
        return (
            num_new_tokens <= self.remaining_token_budget()
            and self.num_curr_seqs + num_new_seqs <= self.max_num_seqs
        )

    def remaining_token_budget(self) -> int:
        """Tokens that may still be computed."""
        return self.token_budget - self.num_batched_tokens

    def add_num_batched_tokens(
        self, req_id: str, num_batched_tokens: int, num_cached_tokens: int = 0
    ) -> None:
        """Count a request's tokens, unless they are counted already."""
        assert num_batched_tokens >= 0
        assert num_cached_tokens >= 0
        if req_id in self._tokens:
            return
        self._tokens[req_id] = num_batched_tokens
        self.num_batched_tokens += num_batched_tokens
        self.num_cached_tokens += num_cached_tokens

    def add_num_seqs(self, req_id: str, num_curr_seqs: int) -> None:
        """Count a request's sequences, unless they are counted already."""
        if req_id not in self._seqs:
            self._seqs[req_id] = num_curr_seqs
            self.num_curr_seqs += num_curr_seqs

    def subtract_num_seqs(self, req_id: str, num_curr_seqs: int) -> None:
        """Stop counting a request's sequences, if they are counted."""
        if req_id in self._seqs:
            counted = self._seqs.pop(req_id)
            assert counted == num_curr_seqs
            self.num_curr_seqs -= num_curr_seqs

    def check(self) -> None:
        """Raise BrokenInvariantError unless totals are the sums of the counts and within the limits."""
        if self.num_batched_tokens != sum(self._tokens.values()):
            raise BrokenInvariantError(
                f"{self.num_batched_tokens} tokens counted, but by request {self._tokens}"
            )
        if self.num_curr_seqs != sum(self._seqs.values()):
            raise BrokenInvariantError(
                f"{self.num_curr_seqs} sequences counted, but by request {self._seqs}"
            )
        if self.num_batched_tokens > self.token_budget:
            raise BrokenInvariantError(
                f"{self.num_batched_tokens} tokens in a budget of {self.token_budget}"
            )
        if self.num_curr_seqs > self.max_num_seqs:
            raise BrokenInvariantError(
                f"{self.num_curr_seqs} sequences where {self.max_num_seqs} are allowed"
            )
