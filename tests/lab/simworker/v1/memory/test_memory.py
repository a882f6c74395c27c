"""A model, its layers and its memory become groups, pages and blocks, as in recordings of the real engine."""

import gzip
import json
from math import ceil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpath.lab.simworker.v1.memory.limits import (
    GIB,
    CacheConfig,
    estimate_max_model_len,
    generate_scheduler_kv_cache_config,
    get_kv_cache_config,
    max_memory_usage_bytes,
)
from warmpath.lab.simworker.v1.memory.plan import ModelShape, plan_memory
from warmpath.lab.simworker.v1.scheduling.scheduler_config import SchedulerConfig
from warmpath.lab.simworker.v1.specs.group_layers import get_kv_cache_groups
from warmpath.lab.simworker.v1.specs.kv_cache_spec import (
    FullAttentionSpec,
    KVCacheGroupSpec,
    KVCacheSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
    get_dtype_size,
    get_kv_cache_spec_kind,
    get_kv_cache_spec_sliding_window,
)

RECORDING = Path(__file__).parents[1] / "vllm_memory.jsonl.gz"
"""Made by `tests/vllm/record_memory.py` of commit 7b94846c, of vLLM 0.32's own functions."""


def config(
    max_model_len: int = 16, *, auto_fit: bool = False, max_in_flight_tokens: int = 8192,
    num_gpu_blocks_override: int | None = None, disable_hybrid_kv_cache_manager: bool = False,
) -> Any:  # fmt: skip
    """Return what memory functions look at of a VllmConfig."""
    original = -1 if auto_fit else max_model_len
    return SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=max_model_len, original_max_model_len=original),
        cache_config=SimpleNamespace(num_gpu_blocks_override=num_gpu_blocks_override),
        scheduler_config=SimpleNamespace(
            disable_hybrid_kv_cache_manager=disable_hybrid_kv_cache_manager
        ),
        max_in_flight_tokens=max_in_flight_tokens,
    )


def spec_of(layer: dict[str, Any]) -> KVCacheSpec:
    if "sliding_window" in layer:
        return SlidingWindowSpec(**layer)
    fields = dict(layer)
    return FullAttentionSpec(sliding_window=fields.pop("full_with_window", None), **fields)


def described(group: KVCacheGroupSpec) -> list[Any]:
    spec = group.kv_cache_spec
    return [
        group.layer_names, get_kv_cache_spec_kind(spec), spec.block_size, spec.page_size_bytes,
        getattr(spec, "sliding_window", None), getattr(spec, "page_size_padded", None),
    ]  # fmt: skip


def ours(scenario: dict[str, Any]) -> dict[str, Any]:
    [layers], [memory] = scenario["layers"], scenario["memory"]
    specs = {name: spec_of(layer) for name, layer in layers.items()}
    made = config(
        scenario["max_model_len"],
        auto_fit=scenario["auto_fit"],
        max_in_flight_tokens=scenario["max_in_flight_tokens"],
        num_gpu_blocks_override=scenario["num_gpu_blocks_override"],
        disable_hybrid_kv_cache_manager=scenario["disable_hybrid_kv_cache_manager"],
    )
    told: dict[str, Any] = {
        "max_memory_usage_bytes": max_memory_usage_bytes(made, specs.values()),
        "estimate_max_model_len": estimate_max_model_len(made, specs, memory),
        "configs": None,
    }
    try:
        found = get_kv_cache_config(made, specs, memory)
    except ValueError:
        return told
    told["configs"] = [
        {
            "num_blocks": found.num_blocks,
            "tensors": [
                [one.size, one.layers, one.layer_stride, one.block_stride, one.offset]
                for one in found.kv_cache_tensors
            ],
            "groups": [described(group) for group in found.kv_cache_groups],
        }
    ]
    scheduler = generate_scheduler_kv_cache_config(found)
    told["scheduler"] = [described(group) for group in scheduler.kv_cache_groups]
    told["max_model_len"] = made.model_config.max_model_len
    return told


def theirs(outcome: dict[str, Any]) -> dict[str, Any]:
    """Return what was recorded of the functions that are here."""
    for found in outcome["configs"] or ():
        del found["concurrency"]
    return {name: told for name, told in outcome.items() if name not in {"enough", "capacity"}}


def test_memory_is_worked_out_as_by_the_engine() -> None:
    with gzip.open(RECORDING, "rt") as file:
        scenarios = [json.loads(line) for line in file]
    # Others are pipelines, whose ranks have some of the layers.
    scenarios = [each for each in scenarios if len(each["layers"]) == 1]
    different = [each for each in scenarios if ours(each) != theirs(each["outcome"])]
    assert len(scenarios) >= 80
    assert not different


def full(**changes: Any) -> FullAttentionSpec:
    return FullAttentionSpec(
        **({"block_size": 16, "num_kv_heads": 2, "head_size": 64, "dtype": "float32"} | changes)
    )


def window(**changes: Any) -> SlidingWindowSpec:
    fields = {"block_size": 16, "num_kv_heads": 2, "head_size": 64, "dtype": "float32"}
    return SlidingWindowSpec(**(fields | {"sliding_window": 1} | changes))


PAGE = 16 * 2 * 64 * 4 * 2


def test_without_the_hybrid_manager_windows_are_full_attention() -> None:
    layers: dict[str, KVCacheSpec] = {"a": full(), "b": window(sliding_window=128)}
    without = config(disable_hybrid_kv_cache_manager=True)
    [group] = get_kv_cache_groups(without, layers)
    assert group.kv_cache_spec == full(sliding_window=128)
    assert layers["b"] == full(sliding_window=128)
    with pytest.raises(ValueError, match="disable_hybrid_kv_cache_manager"):
        get_kv_cache_groups(without, {"a": window(), "b": window(sliding_window=2)})


def test_a_model_without_attention_has_the_null_block_only() -> None:
    made = get_kv_cache_config(config(), {}, 0)
    assert (made.num_blocks, made.kv_cache_tensors, made.kv_cache_groups) == (1, [], [])


def test_too_little_memory_is_refused_with_figures_and_remedy() -> None:
    layers: dict[str, KVCacheSpec] = {"a": full()}
    with pytest.raises(ValueError, match="0 bytes are left besides the null block"):
        get_kv_cache_config(config(), layers, PAGE)
    # 3 blocks are usable; 64 tokens need 4.
    refusal = "64 tokens, needs .* the estimated maximum model length is 48.*lower max_model_len"
    with pytest.raises(ValueError, match=refusal):
        get_kv_cache_config(config(64), layers, PAGE * 4)
    assert get_kv_cache_config(config(48), layers, PAGE * 4).num_blocks == 4


def test_the_length_is_fitted_to_memory_where_that_is_asked_for() -> None:
    made = config(1000, auto_fit=True)
    get_kv_cache_config(made, {"a": full()}, PAGE * 4)
    assert made.model_config.max_model_len == 48
    with pytest.raises(ValueError, match="not one token fits"):
        get_kv_cache_config(config(1000, auto_fit=True), {"a": full()}, PAGE)


sizes = st.fixed_dictionaries(
    {"block_size": st.sampled_from([8, 16]), "head_size": st.sampled_from([32, 48, 64])}
)
specs = st.one_of(
    sizes.map(lambda changes: full(**changes)),
    st.tuples(sizes, st.sampled_from([1, 20, 300])).map(
        lambda both: window(**both[0], sliding_window=both[1])
    ),
)
models = st.lists(specs, min_size=1, max_size=8).map(
    lambda layers: {f"{at}": spec for at, spec in enumerate(layers)}
)


@given(models, st.integers(1, 500), st.integers(0, 200 * PAGE))
def test_the_longest_length_fits_and_one_token_more_does_not(
    layers: dict[str, KVCacheSpec], length: int, memory: int
) -> None:
    longest = estimate_max_model_len(config(length), layers, memory)
    assert 0 <= longest <= length
    if longest:
        assert max_memory_usage_bytes(config(longest), layers.values()) <= memory
    if longest < length:
        assert max_memory_usage_bytes(config(longest + 1), layers.values()) > memory


@given(models, st.integers(1, 200))
def test_each_layer_is_in_one_group_and_pages_of_a_group_do_not_overlap(
    layers: dict[str, KVCacheSpec], blocks: int
) -> None:
    made = config(1, max_in_flight_tokens=1, num_gpu_blocks_override=blocks + 40)
    found = get_kv_cache_config(made, layers, 0)
    names = [name for group in found.kv_cache_groups for name in group.layer_names]
    assert sorted(names) == sorted(layers)
    for group in found.kv_cache_groups:
        regions = sorted(
            (tensor.offset + at * tensor.layer_stride, tensor.block_stride * found.num_blocks)
            for tensor in found.kv_cache_tensors
            for at, name in enumerate(tensor.layers)
            if name in group.layer_names
        )
        end = 0
        for begin, length in regions:
            assert begin == end
            end = begin + length
        assert end <= found.kv_cache_tensors[0].size


LLAMA_3_8B = ModelShape()
"""32 layers with 8 heads of 128 elements: 2 MiB a block of 16 tokens."""

HYBRID = ModelShape(num_layers=12, sliding_window=128, full_attention_every=6)


def scheduler(**changes: Any) -> SchedulerConfig:
    fields = {"max_model_len": 8192, "max_num_batched_tokens": 2048}
    return SchedulerConfig(**(fields | changes))


def of(blocks: int, **changes: Any) -> CacheConfig:
    """Return the settings of a device whose memory has room for some blocks of 2 MiB."""
    share = ceil(100 * GIB * 0.92)
    return CacheConfig(
        gpu_memory_bytes=100 * GIB, non_kv_cache_memory_bytes=share - blocks * (2 << 20), **changes
    )


def test_memory_becomes_blocks() -> None:
    plan = plan_memory(LLAMA_3_8B, of(2048), scheduler())
    assert (plan.bytes_per_block, plan.kv_cache_config.num_blocks) == (2 << 20, 2048)
    with pytest.raises(
        ValueError, match=r"must be less than the share 0\.92 of gpu_memory_bytes 1"
    ):
        of(0)


def test_each_sixth_layer_has_full_attention() -> None:
    kinds = [type(spec) for spec in HYBRID.kv_cache_spec(16).values()]
    assert kinds == ([SlidingWindowSpec] * 5 + [FullAttentionSpec]) * 2
    plan = plan_memory(HYBRID, of(1, num_gpu_blocks_override=2000), scheduler())
    assert [len(group.layer_names) for group in plan.kv_cache_config.kv_cache_groups] == [2] * 6


def test_a_length_that_does_not_fit_is_refused_or_fitted() -> None:
    with pytest.raises(ValueError, match=r"max_model_len: .* 8192 tokens, needs"):
        plan_memory(LLAMA_3_8B, of(101), scheduler())
    fitted = plan_memory(LLAMA_3_8B, of(101), scheduler(), fit_max_model_len=True)
    assert fitted.kv_cache_config.num_blocks == 101


def test_a_model_without_attention_has_the_null_block() -> None:
    plan = plan_memory(ModelShape(num_layers=0), of(1), scheduler())
    assert (plan.kv_cache_config.num_blocks, plan.bytes_per_block) == (1, 0)


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"num_layers": -1}, "num_layers: -1, at least 0"),
        ({"num_kv_heads": 0}, "num_kv_heads: 0, at least 1"),
        ({"head_size": 0}, "head_size: 0, at least 1"),
        ({"full_attention_every": -1}, "full_attention_every: -1, at least 0"),
        ({"full_attention_every": 2}, "full_attention_every: 2, but without a sliding_window"),
        ({"sliding_window": 0}, "sliding_window: 0, at least 1"),
        ({"dtype": "int3"}, "dtype: 'int3' is none of"),
    ],
)
def test_an_impossible_model_is_refused(changes: dict[str, Any], refusal: str) -> None:
    with pytest.raises(ValueError, match=refusal):
        ModelShape(**changes)


def test_a_page_holds_the_keys_and_values_of_a_block() -> None:
    assert full().page_size_bytes == 16 * 2 * (64 + 64) * 4
    assert full(head_size_v=32, dtype="bfloat16").page_size_bytes == 16 * 2 * (64 + 32) * 2
    assert full(page_size_padded=20_000).page_size_bytes == 20_000


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2), ("fp8", 1)])
def test_a_type_is_known_by_name_or_says_its_size(dtype: str, size: int) -> None:
    assert get_dtype_size(dtype) == size
    assert get_dtype_size(SimpleNamespace(itemsize=size)) == size


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"block_size": 0}, "block_size: 0, at least 1"),
        ({"num_kv_heads": 0}, "num_kv_heads: 0, at least 1"),
        ({"head_size": 0}, "head_size: 0, at least 1"),
        ({"head_size_v": -2}, "head_size_v: -2, at least 0"),
        ({"dtype": "float31"}, "dtype: 'float31' is none of float32,"),
        ({"page_size_padded": 16383}, "page_size_padded: 16383 bytes, at least the 16384"),
        ({"sliding_window": 0}, "sliding_window: 0, at least 1"),
        ({"extra_retained_tokens": -1}, "extra_retained_tokens: -1, at least 0"),
    ],
)
def test_an_impossible_spec_is_refused(changes: dict[str, Any], refusal: str) -> None:
    with pytest.raises(ValueError, match=refusal):
        window(**changes)


@pytest.mark.parametrize(
    ("layers", "error"),
    [
        ([full(), window()], AssertionError),
        ([full(), full(head_size=32)], AssertionError),
        ([full(sliding_window=8), full(attention_chunk_size=8)], AssertionError),
        ([full(sliding_window=8), full(sliding_window=9)], ValueError),
        ([window(), window(sliding_window=9)], AssertionError),
        ([window(), full()], AssertionError),
    ],
)
def test_layers_that_differ_do_not_merge(layers: list[KVCacheSpec], error: type[Exception]) -> None:
    with pytest.raises(error):
        layers[0].merge(layers)


def test_events_name_kind_and_window() -> None:
    both = UniformTypeKVCacheSpecs(16, kv_cache_specs={"a": full(), "b": window()})
    assert get_kv_cache_spec_kind(window()) == "sliding_window"
    assert get_kv_cache_spec_kind(both) == "unknown"
    assert get_kv_cache_spec_sliding_window(window()) == 1
    assert get_kv_cache_spec_sliding_window(full(sliding_window=8)) is None
    assert get_kv_cache_spec_sliding_window(both) is None
