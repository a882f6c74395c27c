"""The order of v0's waiting requests, by arrival or by priority."""

from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.lab.simworker.state_machines import LONG
from tests.lab.simworker.v0.groups import ids, make_group
from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.v0.requests.sequence import SequenceStatus
from warmpath.lab.simworker.v0.scheduling.queues import SequenceGroupQueues, by_priority


def twice(queues: SequenceGroupQueues) -> None:
    queues.running.append(queues.waiting[0])


def of_one_id(queues: SequenceGroupQueues) -> None:
    queues.add_seq_group(make_group("0", 4))


def in_the_wrong_queue(queues: SequenceGroupQueues) -> None:
    queues.running.append(queues.waiting.popleft())


def waiting_with_several(queues: SequenceGroupQueues) -> None:
    queues.waiting[0].add(queues.waiting[0].first_seq.fork(9))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (twice, "queued twice"),
        (of_one_id, "one id"),
        (in_the_wrong_queue, "in the queue RUNNING"),
        (waiting_with_several, "waits with 2 sequences"),
    ],
)
def test_broken_queues_are_noticed(
    spoil: Callable[[SequenceGroupQueues], None], reason: str
) -> None:
    queues = SequenceGroupQueues()
    queues.add_seq_group(make_group("0", 4))
    queues.check_queues()
    spoil(queues)
    with pytest.raises(BrokenInvariantError, match=reason):
        queues.check_queues()


class QueuesMachine(RuleBasedStateMachine):
    """Groups move between queues; a plain dictionary says where each is."""

    def __init__(self) -> None:
        super().__init__()
        self.queues = SequenceGroupQueues()
        self.where: dict[str, str] = {}
        self.order: list[str] = []

    @rule(priority=st.integers(0, 2))
    def add(self, priority: int) -> None:
        request_id = str(len(self.order))
        self.order.append(request_id)
        self.queues.add_seq_group(make_group(request_id, 1, priority=priority))
        self.where[request_id] = "waiting"

    @precondition(lambda self: self.queues.has_unfinished_seqs())
    @rule(data=st.data(), name=st.sampled_from(["waiting", "running", "swapped"]))
    def move(self, data: st.DataObject, name: str) -> None:
        group = data.draw(st.sampled_from(list(self.queues.groups())))
        assert self.queues.take_out({group.request_id}) == [group]
        group.first_seq.status = SequenceStatus[name.upper()]
        getattr(self.queues, name).append(group)
        self.where[group.request_id] = name

    @rule(request_ids=st.sets(st.integers(0, 12).map(str), max_size=3))
    def take_out(self, request_ids: set[str]) -> None:
        taken = self.queues.take_out(request_ids)
        assert set(ids(taken)) == request_ids & self.where.keys()
        for request_id in request_ids:
            self.where.pop(request_id, None)

    @rule()
    def sort(self) -> None:
        before = list(self.queues.waiting)
        self.queues.waiting = by_priority(before)
        assert sorted(before, key=lambda g: g.priority) == list(self.queues.waiting)

    @invariant()
    def every_group_is_where_it_was_put(self) -> None:
        self.queues.check_queues()
        for name in ("waiting", "running", "swapped"):
            here = {request_id for request_id, place in self.where.items() if place == name}
            assert set(ids(getattr(self.queues, name))) == here
        assert self.queues.get_num_unfinished_seq_groups() == len(self.where)
        assert self.queues.has_unfinished_seqs() == bool(self.where)


TestQueues = QueuesMachine.TestCase
TestQueues.settings = LONG
