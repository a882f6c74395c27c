"""The engine of one rank, put together: the only module that calls the engines' constructors.

A further engine is one further entry in `ENGINES`.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warmpath.lab.simworker.engine import Engine
from warmpath.lab.simworker.events.from_v1 import LoraId, from_v1
from warmpath.lab.simworker.events.wire_event import WireEvent
from warmpath.lab.simworker.presets import PRESETS
from warmpath.lab.simworker.trtllm.blocks.retention import KvCacheRetentionConfig
from warmpath.lab.simworker.trtllm.cache.block_cache import CacheOptions
from warmpath.lab.simworker.trtllm.cache.kv_cache_manager import (
    KVCacheManager as TrtllmKVCacheManager,
)
from warmpath.lab.simworker.trtllm.engine import TrtllmEngine
from warmpath.lab.simworker.trtllm.events.event_manager import KVCacheEventManager
from warmpath.lab.simworker.v1.assemble import KVGroup, OffloadConfig, kv_cache_config
from warmpath.lab.simworker.v1.assemble import build_engine as build_v1
from warmpath.lab.simworker.v1.engine import V1Engine
from warmpath.lab.simworker.v1.memory.limits import GIB, CacheConfig
from warmpath.lab.simworker.v1.memory.plan import MemoryPlan, ModelShape, plan_memory
from warmpath.lab.simworker.v1.scheduling.scheduler_config import SchedulerConfig
from warmpath.lab.simworker.v1.specs.kv_cache_spec import SlidingWindowSpec

TRTLLM_EVENT_BUFFER = 65_536
"""Events kept until somebody fetches them (`event_buffer_max_size`)."""

Clock = Callable[[], float]
"""Returns modelled seconds; TensorRT-LLM's blocks have priorities that end by it."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Settings of an engine of any kind."""

    engine: str
    blocks: int
    """KV cache blocks on the GPU; vLLM v1's null block is one of them."""
    cpu_blocks: int
    """Blocks in host memory: v1 offloads to them, they are TensorRT-LLM's secondary pool."""
    describes_offloads: bool
    """Whether v1's events of host memory carry tokens and parents."""
    bytes_per_block: int
    """Bytes of one block in all layers of a rank, which a copy to or from host memory moves."""
    block_size: int
    kv_groups: tuple[KVGroup, ...]
    """Groups of v1's layers, which share the blocks, or of TensorRT-LLM's, which have `blocks` each."""
    use_eagle: bool
    """Whether a drafter reads v1's cache, so that the last block of a hit is computed again."""
    retention: KvCacheRetentionConfig | None
    """The priorities that each request to TensorRT-LLM wishes for its blocks; None: no wish."""
    enable_prefix_caching: bool
    enable_chunked_prefill: bool
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
    """One kind of engine: its constructor, its abilities, and the form of its events."""

    build: Callable[[EngineSettings, Clock], Engine[Any]]
    """Builds an engine; raises ValueError naming the field for settings that the engine refuses."""
    wire_events: Callable[[Sequence[Any], LoraId], list[WireEvent]]
    """Turns a step's events into those that dialects encode."""
    hash_algos: tuple[str, ...]
    """The names of the hash algorithms, the default first."""
    scheduling_policies: tuple[str, ...]
    fetch_events: Callable[[Any], list[dict[str, Any]]] | None = None
    """Returns the events since the last call; None unless the engine's events are fetched over HTTP."""
    version: str = ""
    """The answer of /version; empty: the dialect's version."""
    metrics: str = ""
    """The engine whose endpoints, and by default names of metrics, it has; empty: the dialect's."""

    @property
    def streams(self) -> bool:
        """Whether it publishes its events over ZMQ."""
        return self.wire_events is not _no_stream


def _vllm_v1(settings: EngineSettings, _: Clock) -> V1Engine:
    offload = None
    if settings.cpu_blocks:
        offload = OffloadConfig(
            settings.cpu_blocks,
            settings.bytes_per_block,
            self_describing_kv_events=settings.describes_offloads,
        )
    return build_v1(
        kv_cache_config(settings.blocks, settings.kv_groups),
        SchedulerConfig(
            max_model_len=settings.max_model_len,
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            policy=settings.scheduling_policy,
            enable_chunked_prefill=settings.enable_chunked_prefill,
        ),
        PRESETS[settings.preset],
        vocab_size=settings.vocab_size,
        hash_algorithm=settings.hash_algo,
        hash_seed=settings.hash_seed,
        enable_caching=settings.enable_prefix_caching,
        # The dialect shortens digests, if it does.
        use_int_block_hashes=False,
        use_eagle=settings.use_eagle,
        offload=offload,
    )


def _trtllm(settings: EngineSettings, clock: Clock) -> TrtllmEngine:
    pools = settings.blocks, settings.cpu_blocks
    # A window that is not shorter than any request is full attention.
    windows = {group.window for group in settings.kv_groups if group.window}
    whole = {settings.max_model_len: pools}
    manager = TrtllmKVCacheManager(
        whole | {window: pools for window in windows if window < settings.max_model_len},
        CacheOptions(
            settings.block_size, event_manager=KVCacheEventManager(TRTLLM_EVENT_BUFFER), clock=clock
        ),
        max_sequence_length=settings.max_model_len,
        enable_block_reuse=settings.enable_prefix_caching,
    )
    return TrtllmEngine(
        manager,
        PRESETS[settings.preset],
        vocab_size=settings.vocab_size,
        max_batch_size=settings.max_num_seqs,
        max_num_tokens=settings.max_num_batched_tokens,
        enable_chunked_context=settings.enable_chunked_prefill,
        retention=settings.retention,
    )


def _no_stream(_: Sequence[Any], __: LoraId) -> list[WireEvent]:
    """Return no events for ZMQ: TensorRT-LLM's are fetched over HTTP."""
    return []


ENGINES = {
    "vllm-v1": EngineKind(
        _vllm_v1, from_v1, ("sha256_cbor", "sha256", "xxhash_cbor", "xxhash"), ("fcfs", "priority")
    ),
    "trtllm": EngineKind(
        _trtllm,
        _no_stream,
        ("v1_block_key",),
        ("fcfs",),
        TrtllmEngine.latest_events,
        version="1.2.0",
        metrics="trtllm",
    ),
}


def read_model_shape(text: str) -> ModelShape:
    """Read a model's `config.json`, as Hugging Face's transformers write it.

    Raises ArgumentTypeError for a file that cannot be read, and for layers that the simulator lacks.
    """
    try:
        config = json.loads(Path(text).read_text())
        # A model of several kinds of input has its layers in a part.
        config = config.get("text_config", config)
        heads = config["num_attention_heads"]
        return ModelShape(
            num_layers=config["num_hidden_layers"],
            num_kv_heads=config.get("num_key_value_heads") or heads,
            head_size=config.get("head_dim") or config["hidden_size"] // heads,
            dtype=config.get("torch_dtype") or config.get("dtype") or "bfloat16",
            **_windows(config),
        )
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text}: {(error.strerror or '').lower()}") from None
    except (ValueError, AttributeError, TypeError) as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from None
    except KeyError as error:
        raise argparse.ArgumentTypeError(f"{text}: it has no {error.args[0]}") from None


def _windows(config: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of `ModelShape` on windows."""
    window, types = config.get("sliding_window"), config.get("layer_types")
    if window is None or config.get("use_sliding_window") is False:
        return {}
    if types is None:
        return {"sliding_window": window, "full_attention_every": 0}
    unknown = set(types) - {"full_attention", "sliding_attention"}
    if unknown:
        raise ValueError(f"layer_types: {', '.join(sorted(unknown))} are not simulated")
    full = types.count("full_attention")
    if full == len(types):
        return {}
    every = len(types) // full if full else 0
    if full and sum((at + 1) % every == 0 for at in range(len(types))) != full:
        raise ValueError("layer_types: full attention does not come in equal steps")
    return {"sliding_window": window, "full_attention_every": every}


def plan_blocks(args: argparse.Namespace, longest: int) -> tuple[MemoryPlan, Sequence[KVGroup]]:
    """Return the plan of `--gpu-memory` for `--model-config`, and its groups.

    `longest` is the most tokens of a request where `--max-model-len` does not say it.

    Raises ArgumentTypeError where an engine with these settings would not start.
    """
    try:
        plan = plan_memory(
            args.model_config,
            CacheConfig(
                block_size=args.block_size,
                gpu_memory_bytes=round(args.gpu_memory * GIB),
                non_kv_cache_memory_bytes=round(args.weights_memory * GIB),
            ),
            SchedulerConfig(
                max_model_len=args.max_model_len or longest,
                max_num_seqs=args.max_num_seqs,
                max_num_batched_tokens=args.max_num_batched_tokens,
            ),
            fit_max_model_len=args.max_model_len is None,
        )
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"--gpu-memory: {error}") from None
    specs = [group.kv_cache_spec for group in plan.kv_cache_config.kv_cache_groups]
    return plan, tuple(
        KVGroup(one.block_size, one.sliding_window if isinstance(one, SlidingWindowSpec) else 0)
        for one in specs
    )
