"""Chunks in host memory, found, stored, used and evicted, and when the copies of each job end."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.lab.simworker.state_machines import long_test
from warmpath.lab.simworker.v1.offload.pool import (
    CPUOffloadingManager,
    LookupResult,
    OffloadKey,
    ReqContext,
)
from warmpath.lab.simworker.v1.offload.transfer import (
    BlockCopy,
    OffloadingMetadata,
    TransferJob,
    TransferWorker,
)


def keys(*names: int) -> list[OffloadKey]:
    return [OffloadKey(bytes([name]), 0) for name in names]


def stored(pool: CPUOffloadingManager, *names: int) -> ReqContext:
    """Store chunks for a request that finishes."""
    context = ReqContext("r", {OffloadKey(bytes([name]), 0): name for name in names})
    assert pool.prepare_store(keys(*names), context)
    pool.complete_store(keys(*names))
    pool.on_request_finished(context)
    return context


def test_what_is_not_there_is_not_loaded() -> None:
    pool = CPUOffloadingManager(2)
    with pytest.raises(ValueError, match="cannot be read: MISS"):
        pool.prepare_load(keys(1), ReqContext("r"))
    pool.prepare_store(keys(1), ReqContext("r"))
    with pytest.raises(ValueError, match="cannot be read: HIT_PENDING"):
        pool.prepare_load(keys(1), ReqContext("r"))
    pool.complete_store(keys(1))
    with pytest.raises(ValueError, match="is not being read"):
        pool.complete_load(keys(1))


def test_a_pool_has_at_least_no_chunks() -> None:
    with pytest.raises(ValueError, match="num_chunks: -1, at least 0"):
        CPUOffloadingManager(-1)
    pool = CPUOffloadingManager(0)
    assert pool.prepare_store(keys(1), ReqContext("r")) is None


ALL_KEYS = [OffloadKey(bytes([name]), name % 2) for name in range(9)]

SOME_KEYS = st.sampled_from(
    [
        tuple(ALL_KEYS[(first + at * stride) % 9] for at in range(count))
        for first in range(9)
        for stride in (1, 2, 8)
        for count in (1, 2, 4)
    ]
)
"""One to four of them, in a row, with gaps or backwards."""


class Pool(RuleBasedStateMachine):
    """A pool beside host memory, in which each chunk's content is its key."""

    @initialize(size=st.integers(0, 6))
    def build(self, size: int) -> None:
        self.pool = CPUOffloadingManager(size)
        self.memory: list[OffloadKey | None] = [None] * size
        self.used: dict[OffloadKey, int] = {}
        self.clock = 0
        self.stores: list[dict[OffloadKey, int]] = []
        self.loads: list[dict[OffloadKey, int]] = []
        self.contexts = [ReqContext(str(number)) for number in range(3)]
        for context in self.contexts:
            context.positions.update((key, key.block_hash[0] % 4) for key in ALL_KEYS)
        self.readable: set[OffloadKey] = set()

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    @rule(wanted=SOME_KEYS, who=st.integers(0, 2))
    def store(self, wanted: tuple[OffloadKey, ...], who: int) -> None:
        ids = self.pool.chunk_ids()
        idle = [key for key in ids if self.idle(key) and key not in wanted]
        missing = [key for key in wanted if key not in ids]
        room = len(self.memory) - len(ids)
        output = self.pool.prepare_store(wanted, self.contexts[who])
        if output is None:
            assert len(missing) > room + len(idle)
            assert self.pool.chunk_ids() == ids
            return
        oldest = sorted(idle, key=self.used.__getitem__)
        assert output.keys_to_store == missing
        assert output.evicted_keys == oldest[: max(len(missing) - room, 0)]
        for key in output.evicted_keys:
            self.memory[ids[key]] = None
        for key in missing:
            self.used[key] = self.tick()
        if missing:
            self.stores.append(dict(zip(missing, output.chunk_ids, strict=True)))

    def idle(self, key: OffloadKey) -> bool:
        return not any(key in job for job in self.stores + self.loads)

    @rule(which=st.integers(0, 9))
    def end_store(self, which: int) -> None:
        if self.stores:
            job = self.stores.pop(which % len(self.stores))
            for key, chunk in job.items():
                assert self.memory[chunk] is None
                self.memory[chunk] = key
            self.pool.complete_store(job)

    @rule(wanted=SOME_KEYS, who=st.integers(0, 2))
    def load(self, wanted: tuple[OffloadKey, ...], who: int) -> None:
        if all(self.pool.lookup(key) is LookupResult.HIT for key in wanted):
            ids = self.pool.prepare_load(wanted, self.contexts[who])
            self.loads.append(dict(zip(wanted, ids, strict=True)))

    @rule(which=st.integers(0, 9))
    def end_load(self, which: int) -> None:
        if self.loads:
            job = self.loads.pop(which % len(self.loads))
            assert [self.memory[chunk] for chunk in job.values()] == list(job)
            self.pool.complete_load(job)

    @rule(who=st.integers(0, 2))
    def finish(self, who: int) -> None:
        context = self.contexts[who]
        accessed = sorted(context.accessed, key=lambda key: key.group_idx)
        accessed.sort(key=context.positions.__getitem__)
        self.pool.on_request_finished(context)
        for key in reversed(accessed):
            if key in self.pool.chunk_ids():
                self.used[key] = self.tick()

    @rule()
    def reset(self) -> None:
        self.take_events()
        self.pool.reset_cache()
        self.readable = set()
        self.stores, self.loads = [], []
        self.memory = [None] * len(self.memory)
        for context in self.contexts:
            context.accessed.clear()

    @rule()
    def take_events(self) -> None:
        for event in self.pool.take_events():
            assert event.keys
            change = self.readable.difference_update if event.removed else self.readable.update
            change(event.keys)
        hits = {key for key in ALL_KEYS if self.pool.lookup(key) is LookupResult.HIT}
        assert self.readable == hits

    @invariant()
    def nothing_is_lost(self) -> None:
        self.pool.check()
        for key in self.pool.chunk_ids():
            there = key in self.memory
            assert (self.pool.lookup(key) is LookupResult.HIT) == there


TestPool = long_test(Pool)


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


TestBus = long_test(Bus)
