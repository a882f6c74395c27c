"""The sizes and kinds of layers' caches, and which of them merge into a group."""

from types import SimpleNamespace
from typing import Any

import pytest

from warmpath.lab.simworker.v1.specs.kv_cache_spec import (
    FullAttentionSpec,
    KVCacheSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
    get_dtype_size,
    get_kv_cache_spec_kind,
    get_kv_cache_spec_sliding_window,
)


def full(**changes: Any) -> FullAttentionSpec:
    fields = {"block_size": 16, "num_kv_heads": 2, "head_size": 64, "dtype": "float32"}
    return FullAttentionSpec(**(fields | changes))


def window(**changes: Any) -> SlidingWindowSpec:
    fields = {"block_size": 16, "num_kv_heads": 2, "head_size": 64, "dtype": "float32"}
    return SlidingWindowSpec(**(fields | {"sliding_window": 8} | changes))


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
    assert get_kv_cache_spec_sliding_window(window()) == 8
    assert get_kv_cache_spec_sliding_window(full(sliding_window=8)) is None
    assert get_kv_cache_spec_sliding_window(both) is None
