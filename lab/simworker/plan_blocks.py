"""The blocks and groups that vLLM v1 plans from a device's memory and a model's configuration."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from warmpath.lab.simworker.v1.assemble import KVGroup
from warmpath.lab.simworker.v1.memory.cache_config import GIB, CacheConfig
from warmpath.lab.simworker.v1.memory.plan import MemoryPlan, ModelShape, plan_memory
from warmpath.lab.simworker.v1.scheduling.scheduler_config import SchedulerConfig
from warmpath.lab.simworker.v1.specs.kv_cache_spec import SlidingWindowSpec


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
                enable_prefix_caching=args.enable_prefix_caching,
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
