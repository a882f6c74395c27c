"""Copies between GPU and host on a bus with a bandwidth: when each job ends."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.lab.simworker.state_machines import LONG
from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.v1.offload.transfer import (
    PCIE_4_X16,
    BlockCopy,
    OffloadingMetadata,
    TransferJob,
    TransferWorker,
)


def job(blocks: int, *, is_store: bool) -> TransferJob:
    return TransferJob("r", is_store, tuple(BlockCopy(at + 1, at, 0) for at in range(blocks)))


def step(
    loads: dict[int, int] | None = None, stores: dict[int, int] | None = None, flush: object = ()
) -> OffloadingMetadata:
    """Return a step whose jobs copy this number of blocks."""
    assert isinstance(flush, (tuple, set))
    return OffloadingMetadata(
        {number: job(blocks, is_store=False) for number, blocks in (loads or {}).items()},
        {number: job(blocks, is_store=True) for number, blocks in (stores or {}).items()},
        set(flush),
    )


def worker() -> TransferWorker:
    """Copy a block a second."""
    return TransferWorker(bytes_per_block=10, bandwidth=10.0)


def test_the_bus_must_carry_something() -> None:
    with pytest.raises(ValueError, match="bytes_per_block: 0, above 0"):
        TransferWorker(0)
    with pytest.raises(ValueError, match=r"bandwidth: 0\.0 bytes a second, above 0"):
        TransferWorker(1, 0.0)


def test_two_mebibytes_take_67_microseconds_over_pcie_4() -> None:
    copies = TransferWorker(2 << 20)
    copies.begin_step(step(loads={0: 1}), 0.0)
    assert copies.next_end() == pytest.approx((2 << 20) / PCIE_4_X16)


def test_a_job_in_two_places_is_noticed() -> None:
    copies = worker()
    copies.begin_step(step(loads={0: 1}, stores={0: 1}), 0.0)
    with pytest.raises(BrokenInvariantError, match="under way and deferred"):
        copies.check()
    copies = worker()
    copies._ends[0] = 1.0
    with pytest.raises(BrokenInvariantError, match="after its direction is free"):
        copies.check()


class Bus(RuleBasedStateMachine):
    """Jobs against two queues: either way they end in order, and none before its blocks are over."""

    def __init__(self) -> None:
        super().__init__()
        self.copies = worker()
        self.now = 0.0
        self.jobs = 0
        self.queues: dict[bool, list[int]] = {False: [], True: []}
        self.blocks: dict[int, int] = {}
        self.submitted: dict[int, float] = {}
        self.waiting: list[int] = []

    @rule(
        loads=st.sampled_from([(), (2,), (3, 1)]),
        stores=st.sampled_from([(), (1,), (2, 1), (3, 2)]),
        flush=st.sampled_from([(), (), (1,), (2,), (1, 3), (5,)]),
    )
    def begin(
        self, loads: tuple[int, ...], stores: tuple[int, ...], flush: tuple[int, ...]
    ) -> None:
        numbers = iter(range(self.jobs, self.jobs + 9))
        by_load = dict(zip(numbers, loads, strict=False))
        numbers = iter(range(self.jobs + len(loads), self.jobs + 9))
        by_store = dict(zip(numbers, stores, strict=False))
        self.jobs += len(loads) + len(stores)
        flushed = {self.jobs - at for at in flush}
        wait = self.copies.begin_step(step(by_load, by_store, flushed), self.now)
        self.blocks |= by_load | by_store
        at_once = [number for number in by_store if number in flushed]
        self.queues[True] += self.waiting + at_once
        self.queues[False] += by_load
        for number in (*self.waiting, *at_once, *by_load):
            self.submitted[number] = self.now
        self.waiting = [number for number in by_store if number not in flushed]
        self.now += wait
        under_way = {number for queue in self.queues.values() for number in queue}
        self.end()
        assert not flushed & under_way & {n for queue in self.queues.values() for n in queue}

    @rule(seconds=st.integers(0, 4))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule()
    def end(self) -> None:
        for number in self.copies.get_finished(self.now):
            [queue] = [queue for queue in self.queues.values() if queue[:1] == [number]]
            queue.pop(0)
            assert self.now >= self.submitted[number] + self.blocks[number]

    @invariant()
    def all_is_well(self) -> None:
        self.copies.check()
        under_way = any(self.queues.values())
        assert (self.copies.next_end() is not None) == under_way


TestBus = Bus.TestCase
TestBus.settings = LONG
