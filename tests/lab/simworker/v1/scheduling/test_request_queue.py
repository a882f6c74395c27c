"""Queues of waiting requests, against sorted lists."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.lab.simworker.state_machines import LONG
from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.v1.requests.request import Request
from warmpath.lab.simworker.v1.requests.sampling_params import SamplingParams
from warmpath.lab.simworker.v1.scheduling.request_queue import (
    PriorityRequestQueue,
    RequestQueue,
    SchedulingPolicy,
    create_request_queue,
)


def request(name: str, priority: int = 0, arrival: float = 0.0) -> Request:
    return Request(name, [1], SamplingParams(), None, priority=priority, arrival_time=arrival)


@pytest.mark.parametrize("queue", [RequestQueue(), PriorityRequestQueue()])
def test_an_empty_queue_has_no_first(queue: RequestQueue) -> None:
    assert not queue
    with pytest.raises(IndexError):
        queue.peek_request()
    with pytest.raises(IndexError):
        queue.pop_request()
    with pytest.raises(ValueError, match="not in"):
        queue.remove_request(request("a"))


@pytest.mark.parametrize("policy", list(SchedulingPolicy))
def test_a_request_that_waits_twice_is_noticed(policy: SchedulingPolicy) -> None:
    queue = create_request_queue(policy)
    one = request("a")
    queue.add_request(one)
    queue.check()
    queue.add_request(one)
    with pytest.raises(BrokenInvariantError, match="twice"):
        queue.check()


def test_a_heap_out_of_order_is_noticed() -> None:
    queue = PriorityRequestQueue()
    first, second = request("a", 0), request("b", 1)
    queue.add_request(first)
    queue.add_request(second)
    first.priority = 2
    with pytest.raises(BrokenInvariantError, match="out of order"):
        queue.check()


class Queues(RuleBasedStateMachine):
    """Either queue does what a list does that is sorted anew each time."""

    policy = SchedulingPolicy.FCFS

    def __init__(self) -> None:
        super().__init__()
        self.queue = create_request_queue(self.policy)
        self.model: list[Request] = []
        self.made = 0

    def new(self, priority: int, arrival: int) -> Request:
        self.made += 1
        return request(str(self.made), priority, float(arrival))

    def sort(self) -> None:
        if self.policy is SchedulingPolicy.PRIORITY:
            self.model.sort(key=lambda one: (one.priority, one.arrival_time, one.request_id))

    @rule(priority=st.integers(0, 3), arrival=st.integers(0, 3))
    def add(self, priority: int, arrival: int) -> None:
        one = self.new(priority, arrival)
        self.queue.add_request(one)
        self.model.append(one)

    @rule(priorities=st.lists(st.integers(0, 3), max_size=3), arrival=st.integers(0, 3))
    def prepend(self, priorities: list[int], arrival: int) -> None:
        several = [self.new(priority, arrival) for priority in priorities]
        if len(several) == 1:
            self.queue.prepend_request(several[0])
        else:
            self.queue.prepend_requests(several)
        self.model[:0] = reversed(several)

    @precondition(lambda self: self.model)
    @rule()
    def pop(self) -> None:
        assert self.queue.peek_request() is self.model[0]
        assert self.queue.pop_request() is self.model.pop(0)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        several = data.draw(st.lists(st.sampled_from(self.model), unique_by=id, max_size=3))
        if len(several) == 1:
            self.queue.remove_request(several[0])
        else:
            self.queue.remove_requests([*several, request("not there")])
        self.model = [one for one in self.model if one not in several]

    @invariant()
    def is_the_model(self) -> None:
        self.sort()
        self.queue.check()
        assert list(self.queue) == self.model
        assert len(self.queue) == len(self.model)
        assert bool(self.queue) == bool(self.model)


class PriorityQueues(Queues):
    policy = SchedulingPolicy.PRIORITY


TestQueues = Queues.TestCase
TestQueues.settings = LONG
TestPriorityQueues = PriorityQueues.TestCase
TestPriorityQueues.settings = LONG
