"""The simulated fleet: engines of both kinds, with the time that they spent on prefill."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from warmpath.lab.simulate.traffic.requests import LoggedRequest
from warmpath.lab.simworker.engine import Engine
from warmpath.lab.simworker.latency import LatencyModel
from warmpath.lab.simworker.serial.block_cache import BlockCache
from warmpath.lab.simworker.serial.engine import SerialEngine
from warmpath.lab.simworker.v1.assemble import KVGroup, kv_cache_config
from warmpath.lab.simworker.v1.assemble import build_engine as vllm_engine
from warmpath.lab.simworker.v1.cache.kv_cache_event import CacheEvent
from warmpath.lab.simworker.v1.scheduling.scheduler_config import SchedulerConfig
from warmpath.lab.simworker.virtual.cluster import LeapingEngine

EngineKind = Literal["serial", "vllm"]
ENGINE_KINDS: tuple[EngineKind, ...] = get_args(EngineKind)

MAX_NUM_SEQS = 1024
MAX_NUM_BATCHED_TOKENS = 8192
"""Both are vLLM's own for a server on GPUs of 70 GiB or more, A100 left out (`get_batch_defaults`)."""


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """The size and engines of a fleet."""

    engine: EngineKind
    pods: int
    blocks: int
    block_size: int
    latency: LatencyModel
    longest: int
    """The most tokens of a prompt with its answer."""
    factors: Sequence[float] = ()
    """How many times as long each pod takes for everything; empty: all pods are alike."""
    by_priority: bool = False
    """Whether engines begin prompts by the requests' priority, the least first (only vLLM's can)."""
    is_pooled: bool = False
    """Whether all pods share one cache, as large as all their caches together."""

    def latency_of(self, pod: int) -> LatencyModel:
        """Return the latency model of a pod, by its number."""
        return self.latency.times(self.factors[pod]) if self.factors else self.latency


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


def build_fleet(settings: FleetSettings) -> list[SimulatedEngine]:
    """Return the pods' engines. Raises ValueError for impossible settings."""
    if not settings.is_pooled:
        return [build_engine(settings, pod) for pod in range(settings.pods)]
    if settings.engine != "serial":
        raise ValueError("policy pooled: only engine serial can share a cache")
    cache = BlockCache(settings.blocks * settings.pods)
    return [
        SerialEngine(cache, settings.block_size, settings.latency_of(pod))
        for pod in range(settings.pods)
    ]


def build_engine(settings: FleetSettings, pod: int) -> SimulatedEngine:
    """Return an engine, which holds nothing, for a pod with a cache of its own."""
    latency = settings.latency_of(pod)
    if settings.engine == "serial":
        return SerialEngine(BlockCache(settings.blocks), settings.block_size, latency)
    return vllm_engine(
        # One block more, since vLLM's null block holds no content.
        kv_cache_config(settings.blocks + 1, [KVGroup(settings.block_size)]),
        SchedulerConfig(
            max_model_len=settings.longest,
            max_num_seqs=MAX_NUM_SEQS,
            max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
            policy="priority" if settings.by_priority else "fcfs",
        ),
        latency,
    )
