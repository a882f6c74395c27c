"""The KV cache's memory as vLLM 0.32 computes it, for many random models.

Run by vLLM's interpreter: `VLLM_LOGGING_LEVEL=ERROR PYTHON tests/vllm/record_memory.py SCENARIOS FILE`.
Writes gzipped JSON lines, a scenario and its outcome each; read by `tests/lab/simworker/v1/memory/test_memory.py`.
"""

import gzip
import json
import sys
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import torch
import vllm.v1.core.single_type_kv_cache_manager  # noqa: F401  registers the manager of each spec
from vllm.v1.core import kv_cache_utils as real
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec, get_kv_cache_spec_kind
from vllm.v1.kv_cache_layout import KVCacheLayout

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "fp8": torch.uint8}


def made_up_layer(rng: Random, base: dict[str, Any]) -> dict[str, Any]:
    """Return a layer that differs from the model's usual one, or not."""
    layer = dict(base)
    if rng.random() < 0.15:
        layer["head_size"] = rng.choice([32, 64, 96, 128])
    if rng.random() < 0.05:
        layer["num_kv_heads"] = rng.choice([1, 2, 4, 8])
    if rng.random() < 0.03:
        layer["dtype"] = rng.choice(list(DTYPES))
    if rng.random() < 0.03:
        layer["head_size_v"] = rng.choice([32, 64])
    if rng.random() < 0.03:
        layer["block_size"] = rng.choice([16, 32])
    return layer


def made_up(rng: Random) -> dict[str, Any]:
    """Return a scenario: layers by rank, memory by rank, limits."""
    base = {
        "block_size": rng.choice([8, 16, 32, 128]),
        "num_kv_heads": rng.choice([1, 2, 4, 8]),
        "head_size": rng.choice([64, 128]),
        "dtype": rng.choice(list(DTYPES)),
    }
    uniform = rng.random() < 0.4
    window = rng.choice([1, 16, 100, 128, 1024])
    windows = [window] if rng.random() < 0.85 else [window, window * 2]
    pattern = rng.choice([[0], [1], [0, 1], [1, 1, 0], [1, 1, 1, 1, 1, 0]])
    full_knows_window = rng.random() < 0.1
    layers: dict[str, Any] = {}
    for number in range(rng.randint(1, 20)):
        layer = dict(base) if uniform else made_up_layer(rng, base)
        if pattern[number % len(pattern)]:
            layer["sliding_window"] = rng.choice(windows)
        elif full_knows_window and rng.random() < 0.5:
            layer["full_with_window"] = rng.choice(windows)
        layers[f"layer.{number}"] = layer
    ranks = rng.choice([1, 1, 2, 3])
    names = list(layers)
    if rng.random() < 0.5 and len(names) >= ranks:
        cut = [len(names) * rank // ranks for rank in range(ranks + 1)]
        by_rank = [names[cut[rank] : cut[rank + 1]] for rank in range(ranks)]
    else:
        by_rank = [names] * ranks
    length = rng.choice([16, 1000, 4096, 16384, 131072])
    page = 2 * base["block_size"] * base["num_kv_heads"] * base["head_size"]
    size = 2 * page * len(names) * (length // base["block_size"] + 1)
    memory = [
        int(size * rng.choice([0, 0.5, 1, 2, 4, 8, 20]) * rng.uniform(0.7, 1.3)) for _ in by_rank
    ]
    return {
        "layers": [{name: layers[name] for name in own} for own in by_rank],
        "memory": memory,
        "max_model_len": length,
        "auto_fit": rng.random() < 0.3,
        "max_in_flight_tokens": rng.choice([256, 2048, 8192, 16384]),
        "num_gpu_blocks_override": rng.choice([None] * 5 + [2, 100, 5000]),
        "disable_hybrid_kv_cache_manager": rng.random() < 0.2,
    }  # fmt: skip


def real_spec(layer: dict[str, Any]) -> Any:
    fields = {**layer, "dtype": DTYPES[layer["dtype"]], "dcp_sharded": False}
    if "sliding_window" in fields:
        return SlidingWindowSpec(**fields)
    return FullAttentionSpec(sliding_window=fields.pop("full_with_window", None), **fields)


def real_config(scenario: dict[str, Any]) -> Any:
    """Return the parts of a VllmConfig that vLLM's functions read."""
    return SimpleNamespace(
        model_config=SimpleNamespace(
            max_model_len=scenario["max_model_len"],
            original_max_model_len=-1 if scenario["auto_fit"] else scenario["max_model_len"],
        ),
        cache_config=SimpleNamespace(
            num_gpu_blocks_override=scenario["num_gpu_blocks_override"],
            prefix_cache_retention_interval=None,
            get_resolved_kv_cache_layout=lambda: KVCacheLayout.LBNHC,
        ),
        scheduler_config=SimpleNamespace(
            disable_hybrid_kv_cache_manager=scenario["disable_hybrid_kv_cache_manager"]
        ),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1, tensor_parallel_size=1),
        attention_config=SimpleNamespace(hisparse_config=None),
        device_config=SimpleNamespace(device_type="cuda"),
        speculative_config=None,
        num_prefill_lookahead_tokens=0,
        max_in_flight_tokens=scenario["max_in_flight_tokens"],
    )


def outcome(scenario: dict[str, Any]) -> dict[str, Any]:
    """Return vLLM's results for a scenario; None for those that it refuses."""
    specs = [{name: real_spec(layer) for name, layer in own.items()} for own in scenario["layers"]]
    config = real_config(scenario)
    told: dict[str, Any] = {
        "max_memory_usage_bytes": real.max_memory_usage_bytes(config, specs[0].values()),
        "estimate_max_model_len": real.estimate_max_model_len(
            config, specs[0], scenario["memory"][0]
        ),
        "enough": None, "configs": None,
    }  # fmt: skip
    with suppress(ValueError, AssertionError):
        real.check_enough_kv_cache_memory(config, deepcopy(specs[0]), scenario["memory"][0])
        told["enough"] = True
    with suppress(ValueError, AssertionError):
        configs = real.get_kv_cache_configs(config, specs, scenario["memory"])
        told["configs"] = [
            {
                "num_blocks": each.num_blocks,
                "tensors": [
                    [
                        tensor.size,
                        tensor.layers,
                        tensor.layer_stride,
                        tensor.block_stride,
                        tensor.offset,
                    ]
                    for tensor in each.kv_cache_tensors
                ],
                "groups": [described(group) for group in each.kv_cache_groups],
                "concurrency": real.get_max_concurrency_for_kv_cache_config(config, each),
            }
            for each in configs
        ]
        scheduler = real.generate_scheduler_kv_cache_config(configs)
        told["scheduler"] = [described(group) for group in scheduler.kv_cache_groups]
        told["capacity"] = real.get_kv_cache_capacity(config, scheduler)
        told["max_model_len"] = config.model_config.max_model_len
    return told


def described(group: Any) -> list[Any]:
    spec = group.kv_cache_spec
    return [
        group.layer_names, get_kv_cache_spec_kind(spec).value,
        spec.block_size, spec.page_size_bytes, getattr(spec, "sliding_window", None),
        getattr(spec, "page_size_padded", None),
    ]  # fmt: skip


def main() -> None:
    rng = Random(32)
    with gzip.GzipFile(Path(sys.argv[2]), "wb", mtime=0) as file:
        for _ in range(int(sys.argv[1])):
            scenario = made_up(rng)
            line = json.dumps({**scenario, "outcome": outcome(scenario)}, separators=(",", ":"))
            file.write(line.encode() + b"\n")


if __name__ == "__main__":
    main()
