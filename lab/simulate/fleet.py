"""The simulated fleet: serial or vLLM engines, with the time that they spent on prefill."""

from typing import Protocol

from warmpath.lab.simulate.cell import Cell
from warmpath.lab.simulate.study import variant
from warmpath.lab.simulate.traffic.requests import LoggedRequest
from warmpath.lab.simworker.engine import Engine
from warmpath.lab.simworker.serial.block_cache import BlockCache
from warmpath.lab.simworker.serial.engine import SerialEngine
from warmpath.lab.simworker.v1.assemble import KVGroup, kv_cache_config
from warmpath.lab.simworker.v1.assemble import build_engine as vllm_engine
from warmpath.lab.simworker.v1.cache.kv_cache_event import CacheEvent
from warmpath.lab.simworker.v1.scheduling.scheduler_config import SchedulerConfig
from warmpath.lab.simworker.virtual.cluster import LeapingEngine

MAX_NUM_SEQS = 1024
MAX_NUM_BATCHED_TOKENS = 8192
"""This and MAX_NUM_SEQS are vLLM's for servers on GPUs from 70 GiB, not A100 (`get_batch_defaults`)."""


def can_serve(one: LoggedRequest, block_size: int, blocks: int) -> bool:
    """Return whether a request fits into an empty pod's cache."""
    return -(-one.prompt_tokens // block_size) - (-one.output_tokens // block_size) <= blocks


class SimulatedEngine(Engine[CacheEvent], LeapingEngine, Protocol):
    """An engine of a simulated fleet."""

    @property
    def prefill_seconds(self) -> float:
        """Modelled seconds that the engine has spent on prefill so far."""

    def check(self) -> None:
        """Raise BrokenInvariantError if the engine is inconsistent."""


def build_fleet(cell: Cell, block_size: int, longest: int) -> list[SimulatedEngine]:
    """Return the pods' engines; `longest` is the most tokens of a prompt with its answer."""
    if not variant(cell.policy).is_pooled:
        return [build_engine(cell, block_size, longest, pod) for pod in range(cell.pods)]
    cache = BlockCache(cell.blocks_per_pod * cell.pods)
    return [SerialEngine(cache, block_size, cell.latency_of(pod)) for pod in range(cell.pods)]


def build_engine(cell: Cell, block_size: int, longest: int, pod: int) -> SimulatedEngine:
    """Return an engine, which holds nothing, for a pod with a cache of its own."""
    latency = cell.latency_of(pod)
    if cell.engine == "serial":
        return SerialEngine(BlockCache(cell.blocks_per_pod), block_size, latency)
    return vllm_engine(
        # One block more, since vLLM's null block holds no content.
        kv_cache_config(cell.blocks_per_pod + 1, [KVGroup(block_size)]),
        SchedulerConfig(
            max_model_len=longest,
            max_num_seqs=MAX_NUM_SEQS,
            max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
            policy="priority" if cell.engine_priority else "fcfs",
        ),
        latency,
    )
