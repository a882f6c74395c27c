"""The engine of one rank, put together: the only place that knows the engines' constructors.

To add an engine is one entry in `ENGINES`, to add a time model one in `TIME_MODELS`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from simworker.engine import Engine
from simworker.events.from_v1 import LoraId, from_v1
from simworker.events.wire_event import WireEvent
from simworker.latency import LatencyModel
from simworker.v1.block_hash import none_hash
from simworker.v1.engine import V1Engine
from simworker.v1.kv_cache_manager import KVCacheManager
from simworker.v1.request import Hasher
from simworker.v1.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What an engine is built from, whichever it is."""

    engine: str
    blocks: int
    """KV cache blocks, the null block counted."""
    block_size: int
    """Tokens a block."""
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    vocab_size: int
    hash_algo: str
    hash_seed: str
    scheduling_policy: str
    preset: str


@dataclass(frozen=True, slots=True)
class EngineKind:
    """One kind of engine: how it is built, what it can, and how its events are put."""

    build: Callable[[EngineSettings], Engine[Any]]
    wire_events: Callable[[Sequence[Any], LoraId], list[WireEvent]]
    """Turns a step's events into what dialects encode."""
    hash_algos: tuple[str, ...]
    """The first is the default."""
    scheduling_policies: tuple[str, ...]
    fetch_events: Callable[[Any], list[dict[str, Any]]] | None = None
    """Returns the events since the last call, of an engine whose events are fetched over HTTP."""


def _vllm_v1(settings: EngineSettings) -> V1Engine:
    manager = KVCacheManager(settings.blocks, settings.block_size, settings.max_model_len)
    scheduler = Scheduler(
        manager,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
    )
    return V1Engine(
        manager,
        scheduler,
        TIME_MODELS[settings.preset],
        Hasher(settings.block_size, none_hash(settings.hash_seed)),
        max_model_len=settings.max_model_len,
        vocab_size=settings.vocab_size,
    )


ENGINES = {
    "vllm-v1": EngineKind(_vllm_v1, from_v1, ("sha256_cbor",), ("fcfs",)),
}

TIME_MODELS = {"llama-70b-tp4": LatencyModel()}
"""By name; the constants' sources are with them."""
