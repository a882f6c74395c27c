"""The connector: which blocks are stored in host memory, loaded and waited for."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.lab.simworker.state_machines import long_test
from tests.lab.simworker.v1 import small_cache
from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.v1.cache.kv_cache_manager import KVCacheManager
from warmpath.lab.simworker.v1.offload.connector import OffloadingConnector
from warmpath.lab.simworker.v1.offload.pool import CPUOffloadingManager
from warmpath.lab.simworker.v1.offload.transfer import OffloadingMetadata, TransferJob
from warmpath.lab.simworker.v1.requests.request import Request, SamplingParams
from warmpath.lab.simworker.v1.scheduling.scheduler import Scheduler
from warmpath.lab.simworker.v1.scheduling.scheduler_config import SchedulerConfig
from warmpath.lab.simworker.v1.specs.kv_cache_spec import KVCacheConfig, KVCacheGroupSpec


def full(block_size: int = 2) -> KVCacheGroupSpec:
    return KVCacheGroupSpec(["full"], small_cache.full(block_size))


def window(tokens: int) -> KVCacheGroupSpec:
    return KVCacheGroupSpec(["window"], small_cache.window(tokens, 2))


def request(name: str, tokens: list[int], answer: int = 4) -> Request:
    return small_cache.request(name, tokens, 2, sampling_params=SamplingParams(max_tokens=answer))


class Desk:
    """A connector with requests whose blocks are given by hand."""

    def __init__(self, *groups: KVCacheGroupSpec, num_chunks: int = 20, **options: Any) -> None:
        self.connector = OffloadingConnector(
            groups or (full(),), CPUOffloadingManager(num_chunks), hash_block_size=2, **options
        )

    def compute(self, one: Request, *blocks: list[int]) -> dict[int, TransferJob]:
        """Compute a new request in full; return the stores that begin."""
        self.connector.on_new_request(one)
        self.connector.get_num_new_matched_tokens(one, 0)
        meta = self.connector.build_connector_meta(
            num_scheduled_tokens={one.request_id: one.num_tokens},
            new_block_ids={one.request_id: blocks},
        )
        one.num_computed_tokens = one.num_tokens
        return meta.store_jobs

    def offload(self, one: Request, *blocks: list[int]) -> None:
        """Compute, store and finish it."""
        jobs = self.compute(one, *blocks)
        self.connector.update_connector_output(jobs)
        self.finish(one)

    def finish(self, one: Request) -> OffloadingMetadata:
        self.connector.request_finished(one, aborted=False)
        return self.connector.build_connector_meta(
            num_scheduled_tokens={}, new_block_ids={}, finished_req_ids=[one.request_id]
        )

    def found(self, one: Request) -> tuple[int | None, bool]:
        self.connector.on_new_request(one)
        return self.connector.get_num_new_matched_tokens(one, 0)


def blocks_of(*groups: list[tuple[int, bytes | None]]) -> Any:
    return SimpleNamespace(
        blocks=[
            [SimpleNamespace(block_id=number, block_hash=digest) for number, digest in group]
            for group in groups
        ]
    )


def test_a_preempted_requests_stores_are_waited_for() -> None:
    desk = Desk()
    [job] = desk.compute(request("a", [1, 2, 3, 4]), [7, 8])
    meta = desk.connector.build_connector_meta(
        num_scheduled_tokens={}, new_block_ids={}, preempted_req_ids=["a", "unknown"]
    )
    assert meta.jobs_to_flush == {job}


def test_a_reset_forgets_chunks_and_lets_loads_end() -> None:
    desk = Desk()
    desk.offload(request("a", [1, 2, 3, 4]), [7, 8])
    loading = request("b", [1, 2, 3, 4, 5])
    desk.found(loading)
    desk.connector.update_state_after_alloc(
        loading, blocks_of([(9, None), (10, None), (11, None)]), 4
    )
    with pytest.raises(BrokenInvariantError, match="within a step"):
        desk.connector.reset_cache()
    desk.connector.build_connector_meta(num_scheduled_tokens={}, new_block_ids={})
    desk.connector.reset_cache()
    assert not desk.connector.has_pending_push_work()
    meta = desk.connector.build_connector_meta(num_scheduled_tokens={}, new_block_ids={})
    assert meta.jobs_to_flush == {1}
    assert desk.connector.update_connector_output([1]) == ["b"]
    assert desk.found(request("c", [1, 2, 3, 4])) == (0, False)


@pytest.mark.parametrize(
    ("groups", "options", "refusal"),
    [
        ([full()], {"blocks_per_chunk": 0}, "blocks_per_chunk: 0, at least 1"),
        ([full(3)], {}, "group 0 has blocks of 3 tokens, not a multiple of the 2 of a hash"),
        ([KVCacheGroupSpec(["a"], full().kv_cache_spec, is_eagle_group=True)], {}, "a drafter's"),
        ([KVCacheGroupSpec(["a"], replace(small_cache.window(3, 2), extra_retained_tokens=1))], {}, "keeps tokens for a drafter"),
        ([window(3)], {"retention_interval": -2}, "prefix_cache_retention_interval: -2, at least 0"),
        ([window(3)], {"retention_interval": 3}, "3, not a multiple of the 2 tokens of a chunk"),
    ],
)  # fmt: skip
def test_what_cannot_be_offloaded_is_refused(
    groups: list[KVCacheGroupSpec], options: dict[str, Any], refusal: str
) -> None:
    with pytest.raises(ValueError, match=refusal):
        Desk(*groups, **options)


class Offloading(RuleBasedStateMachine):
    """Scheduler, manager and connector over memory in which each block's content is its hash.

    A copy reads and writes when it ends, so whatever is given to others too early shows.
    """

    @initialize(
        num_blocks=st.integers(8, 11),
        num_chunks=st.sampled_from([2, 5, 10, 10]),
        blocks_per_chunk=st.sampled_from([1, 1, 2]),
        windows=st.booleans(),
        prompt_only=st.booleans(),
    )
    def build(
        self, num_blocks: int, num_chunks: int, blocks_per_chunk: int, windows: bool,
        prompt_only: bool,
    ) -> None:  # fmt: skip
        self.windows = windows
        groups = [full(), window(3)] if windows else [full()]
        manager = KVCacheManager(
            KVCacheConfig(num_blocks * len(groups), [], groups, 0), 14, max_in_flight_tokens=8
        )
        self.connector = OffloadingConnector(
            groups,
            CPUOffloadingManager(num_chunks),
            hash_block_size=2,
            blocks_per_chunk=blocks_per_chunk,
            offload_prompt_only=prompt_only,
            retention_interval=0,
        )
        config = SchedulerConfig(max_model_len=14, max_num_seqs=4, max_num_batched_tokens=8)
        self.scheduler = Scheduler(manager, config, connector=self.connector)
        self.manager = manager
        self.gpu: dict[int, Any] = {}
        self.host: dict[tuple[int, int], Any] = {}
        self.jobs: dict[int, TransferJob] = {}
        self.created = 0

    @rule(
        common=st.sampled_from([0, 4, 6, 8, 8, 8]),
        length=st.integers(1, 3),
        token=st.integers(0, 2),
        answer=st.sampled_from([1, 3, 6]),
    )
    def add(self, common: int, length: int, token: int, answer: int) -> None:
        if len(self.scheduler.requests) > 5:
            return
        tokens = [7] * common + [token] * length
        self.created += 1
        self.scheduler.add_request(request(str(self.created), tokens, answer))

    @rule(ended=st.sampled_from([0, 1, 9]))
    def steps(self, ended: int) -> None:
        for _ in range(3):
            self.step(ended=ended, abort=False, which=0)

    @rule(which=st.integers(0, 9))
    def abort(self, which: int) -> None:
        alive = [name for name, one in self.scheduler.requests.items() if not one.is_finished()]
        if alive:
            self.scheduler.finish_requests(alive[which % len(alive)])

    @rule()
    def forget_what_the_gpu_has(self) -> None:
        self.scheduler.reset_prefix_cache()

    @rule(sure=st.sampled_from([False, False, True]))
    def reset(self, sure: bool) -> None:
        # With windows, vLLM stores running requests' blocks anew that may be another's by then.
        if not sure or (self.windows and self.scheduler.requests):
            return
        self.connector.reset_cache()
        self.jobs = {number: job for number, job in self.jobs.items() if not job.is_store}

    @rule(
        ended=st.sampled_from([0, 1, 1, 9]),
        abort=st.sampled_from([False, False, False, True]),
        which=st.integers(0, 9),
    )
    def step(self, ended: int, abort: bool, which: int) -> None:
        output = self.scheduler.schedule()
        meta = output.kv_connector_metadata
        assert meta is not None
        self.jobs |= meta.load_jobs | meta.store_jobs
        done = self.end_jobs(sorted(meta.jobs_to_flush & self.jobs.keys()))
        requests = [self.scheduler.requests[name] for name in output.num_scheduled_tokens]
        # In each layer all of a step's keys are written before any are read.
        for one in requests:
            self.write(one, output.num_scheduled_tokens[one.request_id])
        for one in requests:
            self.read(one, one.num_computed_tokens - output.num_scheduled_tokens[one.request_id])
        if abort:
            self.abort(which)
        sampled = {
            one.request_id: [one.num_tokens % 2]
            for one in requests
            if one.num_computed_tokens >= one.num_tokens
        }
        self.scheduler.update_from_output(output, sampled)
        done += self.end_jobs(sorted(self.jobs)[:ended])
        self.scheduler.update_connector_output(done)
        self.scheduler.take_events()

    def end_jobs(self, numbers: list[int]) -> list[int]:
        for number in numbers:
            job = self.jobs.pop(number)
            for copy in job.copies:
                place = (copy.chunk_id, copy.part)
                if job.is_store:
                    self.host[place] = self.gpu[copy.gpu_block_id]
                else:
                    self.gpu[copy.gpu_block_id] = self.host[place]
        return numbers

    def table(self, one: Request) -> list[tuple[int, int, int]]:
        """Return a request's blocks as (group, position, block id)."""
        return [
            (group, at, block_id)
            for group, ids in enumerate(self.manager.get_block_ids(one.request_id))
            for at, block_id in enumerate(ids)
            if block_id
        ]

    def read(self, one: Request, computed: int) -> None:
        """Look at what attention reads for the next token: all full blocks, of a window the last."""
        for group, at, block_id in self.table(one):
            if (at + 1) * 2 <= computed and (not group or (at + 1) * 2 > computed - 2):
                assert self.gpu[block_id] == (group, one.block_hashes[at])

    def write(self, one: Request, new: int) -> None:
        end = one.num_computed_tokens
        for group, at, block_id in self.table(one):
            if (at + 1) * 2 <= end - new or at * 2 >= end:
                continue
            full = (at + 1) * 2 <= min(end, one.num_tokens)
            self.gpu[block_id] = (group, one.block_hashes[at] if full else None)

    @invariant()
    def nothing_is_lost(self) -> None:
        self.scheduler.check()
        self.connector.check()

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for _ in range(200):
            if not self.scheduler.has_requests():
                break
            self.step(ended=99, abort=False, which=0)
        assert not self.scheduler.requests
        assert not self.connector._requests
        pool = self.manager.block_pool
        assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1


TestOffloading = long_test(Offloading)
