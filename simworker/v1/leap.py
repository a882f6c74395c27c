"""How many steps may be taken as one.

Where nothing but decoding goes on, one step is like the next: every running request computes one token,
into a block that it has and that does not become full; none ends but with the last; and what waits
goes on waiting, for the same reason, since no block is taken or freed. The scheduler need not be asked
again for these, only told.

Not vLLM's: a simulation on a virtual clock spends most of its steps so.
"""

from simworker.v1.requests.request import RequestStatus
from simworker.v1.scheduling.scheduler import Scheduler
from simworker.v1.scheduling.scheduler_output import SchedulerOutput


class Leap:
    """Steps alike, of one scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._block_size = 1 if scheduler.connector else scheduler.steady_block_size

    def steps_alike(self, output: SchedulerOutput) -> int:
        """Return how many steps, that of `output` included, would be scheduled just like it.

        To be asked before the step's tokens are sampled.
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
