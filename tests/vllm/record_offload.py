"""Drive vLLM's own scheduler with its own OffloadingConnector, and record every step.

    VLLM/bin/python tests/vllm/record_offload.py --model tiny-llama --out recording.jsonl.gz

It extends the driver of `record_scheduler.py`. A scenario has host memory too, and the script plays the
worker that copies: it decides which jobs end with which step. Lines have in addition

    schedule             out: `loads` and `stores`, by job [request, GPU blocks, chunks, parts of chunks],
                         and the jobs to `flush`
    update_from_output   args: the jobs that ended; out: events of medium CPU (see `summary`)
    reset_connector      forget all chunks
"""

from dataclasses import dataclass, field
from typing import Any

import record_scheduler as base
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.v1.outputs import KVConnectorOutput
from written import summary, written_of_host

PAGE = 4096
"""Bytes of host memory that a chunk takes at least; the chunks of these small models take no more."""


@dataclass(frozen=True)
class Scenario(base.Scenario):
    """One scheduler with host memory."""

    num_chunks: int = 40
    blocks_per_chunk: int = 1
    offload_prompt_only: bool = True
    self_describing: bool = False
    retention_interval: int | None = None
    slowness: int = 2
    """Steps that a copy takes at most."""


TIGHT = {"num_blocks": 24, "max_model_len": 60, "steps": 90}
SCENARIOS = [
    Scenario("offload", **TIGHT),
    Scenario("offload-roomy", num_chunks=400, num_blocks=40, steps=90),
    Scenario("offload-few-chunks", num_chunks=7, **TIGHT),
    Scenario("offload-slow", slowness=9, **TIGHT),
    Scenario("offload-answers-too", offload_prompt_only=False, **TIGHT),
    Scenario("offload-chunks-of-2", blocks_per_chunk=2, offload_prompt_only=False, **TIGHT),
    Scenario("offload-chunks-of-3", blocks_per_chunk=3, num_chunks=12, **TIGHT),
    Scenario("offload-self-describing", self_describing=True, num_chunks=15, **TIGHT),
    Scenario("offload-self-describing-chunks", self_describing=True, blocks_per_chunk=2, **TIGHT),
    Scenario("offload-priority", policy="priority", **TIGHT),
    Scenario("offload-windows", num_blocks=60, max_model_len=80, sliding_window=10,
             num_chunks=60, steps=100),
    # Enough blocks that none is used twice: vLLM looks again at a finished request's window, and stores
    # blocks that another request has by then; sooner or later it fails with a KeyError.
    Scenario("offload-windows-answers-too", num_blocks=4000, max_model_len=80, sliding_window=10,
             num_chunks=200, offload_prompt_only=False, steps=100),
    Scenario("offload-windows-answers-too-chunks-of-2", num_blocks=4000, max_model_len=80,
             sliding_window=6, blocks_per_chunk=2, num_chunks=40, offload_prompt_only=False),
    Scenario("offload-windows-chunks-of-2", num_blocks=70, max_model_len=80, sliding_window=6,
             blocks_per_chunk=2, num_chunks=40, steps=100),
    Scenario("offload-windows-chunks-of-4", num_blocks=70, max_model_len=80, sliding_window=6,
             blocks_per_chunk=4, num_chunks=40, steps=100),
    Scenario("offload-windows-sparse", num_blocks=70, max_model_len=80, sliding_window=10,
             num_chunks=60, retention_interval=0, offload_prompt_only=False, steps=100),
    Scenario("offload-windows-interval", num_blocks=70, max_model_len=80, sliding_window=6,
             num_chunks=60, retention_interval=16, offload_prompt_only=False, steps=100),
    Scenario("offload-windows-slow", num_blocks=45, max_model_len=60, sliding_window=6,
             slowness=9, num_chunks=30, steps=100),
    Scenario("offload-windows-self-describing", num_blocks=45, max_model_len=60, sliding_window=6,
             num_chunks=30, self_describing=True, steps=80),
]  # fmt: skip


@dataclass
class Job:
    """A copy under way."""

    number: int
    request_id: str
    is_load: bool
    steps: int
    """Number of steps after which the job ends."""


@dataclass
class Driver(base.Driver):
    """A scheduler with a connector, and a worker that copies."""

    jobs: list[Job] = field(default_factory=list)
    over: list[Job] = field(default_factory=list)
    """Those that end with the last step."""

    def __post_init__(self) -> None:
        s = self.scenario
        Scheduler = base.Scheduler  # noqa: N806

        def scheduler(config: Any, kv_cache_config: Any, *args: Any, **kwargs: Any) -> Any:
            config.kv_transfer_config = KVTransferConfig(
                kv_connector="OffloadingConnector",
                kv_role="kv_both",
                kv_connector_extra_config={
                    "cpu_bytes_to_use": s.num_chunks * PAGE,
                    "blocks_per_chunk": s.blocks_per_chunk,
                    "offload_prompt_only": s.offload_prompt_only,
                    "self_describing_kv_events": s.self_describing,
                },
            )
            config.cache_config.prefix_cache_retention_interval = s.retention_interval
            kv_cache_config.prefix_cache_retention_interval = s.retention_interval
            return Scheduler(config, kv_cache_config, *args, **kwargs)

        base.Scheduler = scheduler
        try:
            super().__post_init__()
        finally:
            base.Scheduler = Scheduler
        connector = self.scheduler.connector
        assert connector.connector_scheduler.manager._num_chunks == s.num_chunks
        build = connector.build_connector_meta

        def in_order(output: Any) -> Any:
            # vLLM has a set of names, whose order differs between processes.
            output.finished_req_ids = dict.fromkeys(sorted(output.finished_req_ids))
            return build(output)

        connector.build_connector_meta = in_order

    def copied(self, output: Any) -> dict[str, Any]:
        meta = output.kv_connector_metadata
        for jobs, is_load in ((meta.load_jobs, True), (meta.store_jobs, False)):
            for number, job in jobs.items():
                steps = self.rng.randint(0 if is_load else 1, self.scenario.slowness)
                self.jobs.append(Job(number, job.req_id, is_load, steps))
        return {
            "loads": {n: self.copies(job, job.dst_spec, job.src_spec) for n, job in meta.load_jobs.items()},
            "stores": {n: self.copies(job, job.src_spec, job.dst_spec) for n, job in meta.store_jobs.items()},
            "flush": sorted(meta.jobs_to_flush),
        }  # fmt: skip

    def copies(self, job: Any, gpu: Any, cpu: Any) -> list[Any]:
        if self.scenario.sliding_window:
            # vLLM gives only the first part, although the parts of a window's chunks have gaps.
            return [job.req_id, list(map(int, gpu.block_ids)), list(map(int, cpu.block_ids)), None]
        parts: list[int] = []
        for size, first in zip(gpu.group_sizes, gpu.block_indices, strict=True):
            parts += [(first + at) % self.scenario.blocks_per_chunk for at in range(size)]
        return [job.req_id, list(map(int, gpu.block_ids)), list(map(int, cpu.block_ids)), parts]

    def ended(self, output: Any) -> dict[str, Any]:
        """End jobs with this step: in order for each direction, those that vLLM flushes at once."""
        flush = output.kv_connector_metadata.jobs_to_flush
        self.over = []
        blocked = {True: False, False: False}
        last = dict.fromkeys((True, False), -1)
        for at, job in enumerate(self.jobs):
            if job.number in flush:
                last[job.is_load] = at
        for at, job in enumerate(self.jobs):
            must = at <= last[job.is_load]
            if must or (job.steps <= 0 and not blocked[job.is_load]):
                self.over.append(job)
            else:
                blocked[job.is_load] = True
            job.steps -= 1
        self.jobs = [job for job in self.jobs if job not in self.over]
        completed = OffloadingWorkerMetadata(completed_jobs={job.number: 1 for job in self.over})
        loaded = {job.request_id for job in self.over if job.is_load}
        return {
            "kv_connector_output": KVConnectorOutput(
                finished_recving=loaded, kv_connector_worker_meta=completed
            )
        }

    def told(self, outputs: Any, events: list[Any]) -> tuple[Any, dict[str, Any]]:  # noqa: ARG002
        mediums = [getattr(event, "medium", "GPU") for event in events]
        copied = [event for event, where in zip(events, mediums, strict=True) if where == "CPU"]
        return [[job.number for job in self.over]], {
            "gpu_events": mediums.count("GPU"),
            "cpu_events": summary([written_of_host(event) for event in copied]),
        }

    def reset(self, reset_running_requests: bool) -> None:  # noqa: ARG002  the driver's
        # Running requests are not reset: requests preempted and loaded again in one step break an
        # assertion of vLLM's connector.
        super().reset(reset_running_requests=False)
        if self.rng.random() < 0.7:
            self.scheduler.reset_connector_cache()
            self.record("reset_connector", [], None)


if __name__ == "__main__":
    base.record("Record vLLM's KV offloading, step by step.", Driver, SCENARIOS)
