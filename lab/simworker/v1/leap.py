"""Leaps: several equal steps taken as one.

While all running requests decode, one step is like the next: every request computes one token, into a
block that it has and that does not become full; no request ends before the last step; and waiting
requests go on waiting for the same reason, since no block is taken or freed. The scheduler then need not
schedule each step; it only counts their tokens.

vLLM has no leaps: they speed up simulations on a virtual clock, where most steps are equal.
"""

from warmpath.lab.simworker.v1.requests.request import RequestStatus
from warmpath.lab.simworker.v1.scheduling.scheduler import Scheduler
from warmpath.lab.simworker.v1.scheduling.scheduler_output import SchedulerOutput


class Leap:
    """Equal steps of one scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._block_size = 1 if scheduler.connector else scheduler.steady_block_size

    def steps_alike(self, output: SchedulerOutput) -> int:
        """Return the number of steps, that of `output` included, that would be scheduled just like it.

        Call it before the step's tokens are sampled.
        """
        scheduler, size = self._scheduler, self._block_size
        if (
            size == 1
            or output.work.prefills
            or output.preempted_req_ids
            or not output.num_scheduled_tokens
            or len(output.num_scheduled_tokens) != len(scheduler.running)
        ):
            return 1
        most = size
        for request in scheduler.running:
            filled = request.num_computed_tokens % size
            if request.has_stop_tokens:
                return 1
            most = min(most, size - filled if filled else 1, scheduler.tokens_left(request))
            if most <= 1:
                return 1
        return most

    def repeat(self, output: SchedulerOutput, times: int) -> None:
        """Count the tokens of `times` further steps like that of `output` as computed."""
        requests = self._scheduler.requests
        for request_id in output.num_scheduled_tokens:
            request = requests.get(request_id)
            if request is not None and request.status is RequestStatus.RUNNING:
                request.num_computed_tokens += times
