"""Queues of waiting requests: first come first served, and by priority.

Source: `vllm/v1/core/sched/request_queue.py` of 0.32.
"""

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from enum import Enum

from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.v1.requests.request import Request


class SchedulingPolicy(Enum):
    """The order of waiting requests."""

    FCFS = "fcfs"
    PRIORITY = "priority"


class RequestQueue:
    """Waiting requests, first come, first served; each is in the queue once.

    A preempted request goes back to the front.
    """

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()

    def add_request(self, request: Request) -> None:
        """Add a new request."""
        self._requests.append(request)

    def pop_request(self) -> Request:
        """Take the first request out and return it. Raises IndexError if there is none."""
        return self._requests.popleft()

    def peek_request(self) -> Request:
        """Return the first request. Raises IndexError if there is none."""
        return self._requests[0]

    def prepend_request(self, request: Request) -> None:
        """Add a request that was in the queue before: at the front, if the order permits that."""
        self.prepend_requests((request,))

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        """Add requests that were in the queue before, one after another: the last ends up first."""
        self._requests.extendleft(requests)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        """Take several requests out; unknown ones are ignored."""
        gone = set(requests)
        self._requests = deque(one for one in self._requests if one not in gone)

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def check(self) -> None:
        """Raise BrokenInvariantError if a request is in the queue twice, or out of order."""
        if len(set(self)) != len(self):
            raise BrokenInvariantError("a request waits twice")


class PriorityRequestQueue(RequestQueue):
    """Lower priority numbers first, earlier arrivals first among equals, then by request id.

    A preempted request does not go to the front: it has the place that the order gives it.
    """

    def __init__(self) -> None:
        self._heap: list[Request] = []

    def add_request(self, request: Request) -> None:
        heapq.heappush(self._heap, request)

    def pop_request(self) -> Request:
        return heapq.heappop(self._heap)

    def peek_request(self) -> Request:
        return self._heap[0]

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            heapq.heappush(self._heap, request)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        gone = set(requests)
        self._heap = [one for one in self._heap if one not in gone]
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        return iter(sorted(self._heap))

    def check(self) -> None:
        super().check()
        for place in range(1, len(self._heap)):
            if self._heap[place] < self._heap[(place - 1) // 2]:
                raise BrokenInvariantError("the heap of waiting requests is out of order")


def create_request_queue(policy: SchedulingPolicy) -> RequestQueue:
    """Return an empty queue of the policy's kind."""
    return PriorityRequestQueue() if policy is SchedulingPolicy.PRIORITY else RequestQueue()
