"""The KV cache of a layer, of a group of layers and of a model: sizes and kinds.

A *page* holds the keys and values of one layer for one block of tokens:

    page_size_bytes = num_kv_heads x block_size x (head_size + head_size_v) x bytes of dtype

Layers that share one block table form a *group*; block i of a group is page i of each of its layers, so
that one block id names as many pages as the group has layers.

There are two kinds of attention. *Full* attention reads all tokens before, so a request of n tokens
holds ceil(n / block_size) blocks. A *sliding window* of w tokens reads the last w - 1 computed tokens;
blocks that have left it are freed while the request runs, so a request holds at most the window, the
tokens of steps under way and one block more.

Source: `vllm/v1/kv_cache_interface.py` of 0.32, with its names, fields and sizes; one file as there, to
be read beside it. Left out: decode-context parallelism, quantisation with scales, MLA, state-space and
chunked-local layers.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Protocol, Self

DTYPE_BYTES = {
    "float32": 4, "float": 4,
    "float16": 2, "half": 2, "bfloat16": 2,
    "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "int8": 1, "uint8": 1,
}  # fmt: skip
"""Bytes an element, by the names that vLLM and PyTorch give to types."""


class KVCacheSpecKind(StrEnum):
    """The kinds of layers in events."""

    FULL_ATTENTION = "full_attention"
    SLIDING_WINDOW = "sliding_window"
    UNKNOWN = "unknown"
    """The kind of a group with layers of several kinds."""


class Dtype(Protocol):
    """A type of elements that knows its size, as `torch.dtype` and `numpy.dtype` do."""

    @property
    def itemsize(self) -> int:
        """Bytes an element."""


@dataclass(slots=True)
class ModelLength:
    """The part of a `ModelConfig` that is used here."""

    max_model_len: int
    """The longest request, prompt and answer together, in tokens."""
    original_max_model_len: int | None = None
    """-1 to fit `max_model_len`, which is then the model's own limit, to the memory."""


@dataclass(frozen=True, slots=True)
class HybridChoice:
    """The part of a `SchedulerConfig` that is used here."""

    disable_hybrid_kv_cache_manager: bool = False
    """Whether windows are allocated as full attention."""


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """The part of a `VllmConfig` that bounds a request's memory; vLLM's own will do as well."""

    model_config: ModelLength
    max_in_flight_tokens: int
    """The most tokens of steps that have not ended: batches at once x tokens a batch."""
    scheduler_config: HybridChoice = HybridChoice()


def get_dtype_size(dtype: str | Dtype) -> int:
    """Return the bytes of an element. Raises ValueError for a name that is not in `DTYPE_BYTES`."""
    if not isinstance(dtype, str):
        return int(dtype.itemsize)
    size = DTYPE_BYTES.get(dtype)
    if size is None:
        raise ValueError(f"dtype: {dtype!r} is none of {', '.join(DTYPE_BYTES)}")
    return size


@dataclass(frozen=True)
class KVCacheSpec:
    """One layer's cache: the size of its pages, and the most that a request can need."""

    block_size: int

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise ValueError(f"block_size: {self.block_size}, at least 1")

    @property
    def page_size_bytes(self) -> int:
        """Bytes that the layer stores for one block."""
        raise NotImplementedError

    def max_memory_usage_bytes(self, vllm_config: MemoryLimits) -> int:
        """Return the bytes that one request of `max_model_len` tokens can hold at once."""
        raise NotImplementedError

    def copy_with_new_block_size(self, block_size: int) -> Self:
        """Return the same cache with blocks of another number of tokens."""
        return replace(self, block_size=block_size)

    @classmethod
    def merge(cls, specs: Sequence["KVCacheSpec"]) -> "KVCacheSpec":
        """Return the one spec that layers of one group share.

        Raises AssertionError if they cannot be in one group; the caller then makes another group.
        """
        if any(spec != specs[0] for spec in specs):
            raise AssertionError("all layers of a group must have the same KV cache spec")
        return specs[0]

    def is_uniform_with_collection(self, kv_cache_specs: Mapping[str, "KVCacheSpec"]) -> bool:
        """Return whether all these layers need the same slots for the same tokens as this one."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class AttentionSpec(KVCacheSpec):
    """A layer that stores keys and values."""

    num_kv_heads: int
    """Heads of keys and values on this rank."""
    head_size: int
    """Elements of a head's key."""
    dtype: str | Dtype
    """A name in `DTYPE_BYTES`, or an object with an `itemsize`."""
    head_size_v: int = -1
    """Elements of a head's value; `head_size` if not given."""
    page_size_padded: int | None = None
    """Bytes to which a page is padded; None for no padding."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head_size_v == -1:
            object.__setattr__(self, "head_size_v", self.head_size)
        for name, low in (("num_kv_heads", 1), ("head_size", 1), ("head_size_v", 0)):
            if getattr(self, name) < low:
                raise ValueError(f"{name}: {getattr(self, name)}, at least {low}")
        unpadded = self.unpadded_page_size_bytes
        if self.page_size_padded is not None and self.page_size_padded < unpadded:
            raise ValueError(
                f"page_size_padded: {self.page_size_padded} bytes, at least the {unpadded} of a page"
            )

    @property
    def unpadded_page_size_bytes(self) -> int:
        """Bytes of a page's content."""
        elements = self.num_kv_heads * self.block_size * (self.head_size + self.head_size_v)
        return elements * get_dtype_size(self.dtype)

    @property
    def page_size_bytes(self) -> int:
        """Bytes of a page, padding included."""
        if self.page_size_padded is not None:
            return self.page_size_padded
        return self.unpadded_page_size_bytes


@dataclass(frozen=True, kw_only=True)
class FullAttentionSpec(AttentionSpec):
    """A layer that keeps all tokens.

    With the hybrid manager disabled, this is also the spec of a layer with a window: it attends to its
    window only, but keeps all blocks. `sliding_window` then holds the window.
    """

    sliding_window: int | None = None
    """Tokens of the window that the layer computes with, if it has one."""
    attention_chunk_size: int | None = None
    """Tokens of the chunk that the layer computes with, if it has one."""

    def max_memory_usage_bytes(self, vllm_config: MemoryLimits) -> int:
        """Return the bytes of `max_model_len` tokens."""
        return -(-vllm_config.model_config.max_model_len // self.block_size) * self.page_size_bytes

    @classmethod
    def merge(cls, specs: Sequence[KVCacheSpec]) -> "FullAttentionSpec":
        """Return the spec of a group of equal layers; some may have a window or chunks.

        Raises AssertionError if layers differ, or windows are mixed with chunks; ValueError if two
        windows, or two sizes of chunks, differ.
        """
        full = [spec for spec in specs if isinstance(spec, FullAttentionSpec)]
        if len(full) < len(specs):
            raise AssertionError("all layers of a group with full attention must have it")
        window = _one({spec.sliding_window for spec in full}, "sliding_window")
        chunk = _one({spec.attention_chunk_size for spec in full}, "attention_chunk_size")
        for spec in full:
            for part in fields(AttentionSpec):
                if getattr(spec, part.name) != getattr(full[0], part.name):
                    raise AssertionError(f"layers of a group differ in {part.name}")
        if window is not None and chunk is not None:
            raise AssertionError("a model with both sliding windows and chunks is not supported")
        return replace(full[0], sliding_window=window, attention_chunk_size=chunk)

    def is_uniform_with_collection(self, kv_cache_specs: Mapping[str, KVCacheSpec]) -> bool:
        """Return whether all these layers keep all tokens."""
        return all(isinstance(spec, FullAttentionSpec) for spec in kv_cache_specs.values())


@dataclass(frozen=True, kw_only=True)
class SlidingWindowSpec(AttentionSpec):
    """A layer that keeps the last tokens."""

    sliding_window: int
    """Tokens of the window, including the one that is being computed."""
    extra_retained_tokens: int = 0
    """Tokens kept before the window, for drafters that compute the last ones again."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, low in (("sliding_window", 1), ("extra_retained_tokens", 0)):
            if getattr(self, name) < low:
                raise ValueError(f"{name}: {getattr(self, name)}, at least {low}")

    def max_admission_blocks_per_request(
        self, max_in_flight_tokens: int, max_model_len: int
    ) -> int:
        """Return the most blocks that a request holds at once.

        That is one block more than the tokens fill, since the window may begin within a block: with four
        tokens a block, four tokens can lie in two blocks.
        """
        kept = self.sliding_window - 1 + self.extra_retained_tokens
        tokens = min(kept + max_in_flight_tokens, max_model_len)
        return -(-tokens // self.block_size) + 1

    def max_memory_usage_bytes(self, vllm_config: MemoryLimits) -> int:
        """Return the bytes of the window and of the tokens in flight."""
        blocks = self.max_admission_blocks_per_request(
            vllm_config.max_in_flight_tokens, vllm_config.model_config.max_model_len
        )
        return blocks * self.page_size_bytes

    def is_uniform_with_collection(self, kv_cache_specs: Mapping[str, KVCacheSpec]) -> bool:
        """Return whether all these layers have this window."""
        return all(
            isinstance(spec, SlidingWindowSpec) and spec.sliding_window == self.sliding_window
            for spec in kv_cache_specs.values()
        )


@dataclass(frozen=True)
class UniformTypeKVCacheSpecs(KVCacheSpec):
    """Layers of one kind whose pages differ in size, as one group: they need the same slots."""

    kv_cache_specs: Mapping[str, KVCacheSpec] = field(kw_only=True)
    """Layer -> its spec."""

    @property
    def page_size_bytes(self) -> int:
        """Bytes of one block in all layers together."""
        return sum(spec.page_size_bytes for spec in self.kv_cache_specs.values())

    def max_memory_usage_pages(self, vllm_config: MemoryLimits) -> int:
        """Return the most blocks that a request holds at once."""
        return max(
            -(-spec.max_memory_usage_bytes(vllm_config) // spec.page_size_bytes)
            for spec in self.kv_cache_specs.values()
        )

    def max_memory_usage_bytes(self, vllm_config: MemoryLimits) -> int:
        """Return the most bytes that a request holds at once, in all layers."""
        return self.max_memory_usage_pages(vllm_config) * self.page_size_bytes

    @classmethod
    def is_uniform_type(cls, kv_cache_specs: Mapping[str, KVCacheSpec]) -> bool:
        """Return whether layers can be in one such group: they have one block size and one kind."""
        if len({spec.block_size for spec in kv_cache_specs.values()}) > 1:
            return False
        first = next(iter(kv_cache_specs.values()))
        return first.is_uniform_with_collection(kv_cache_specs)

    @classmethod
    def from_specs(cls, kv_cache_specs: Mapping[str, KVCacheSpec]) -> Self | None:
        """Return the spec of all layers together; None if they are not of one kind."""
        if not cls.is_uniform_type(kv_cache_specs):
            return None
        first = next(iter(kv_cache_specs.values()))
        return cls(block_size=first.block_size, kv_cache_specs=kv_cache_specs)


@dataclass
class KVCacheTensor:
    """The place of some layers of one shape in a rank's memory.

    Layer l's page of block b begins at `offset + l * layer_stride + b * block_stride`. Tensors of
    different groups overlap: a block id belongs to one group at a time.
    """

    size: int
    """Bytes of the whole memory, the same for all tensors of a rank."""
    layers: list[str]
    """The names of the layers, in the order of their pages."""
    layer_stride: int
    """Bytes from a layer's page to the next layer's page of the same block."""
    block_stride: int
    """Bytes from a block's page to the next block's page of the same layer."""
    offset: int = 0
    """Bytes before the first layer's block 0."""


@dataclass
class KVCacheGroupSpec:
    """Layers that share one block table."""

    layer_names: list[str]
    kv_cache_spec: KVCacheSpec
    is_eagle_group: bool = False
    """Whether a drafter's layers are among them; if so, the last matched block is computed again."""


@dataclass
class KVCacheConfig:
    """The KV cache of one rank, or of the scheduler: its blocks, their memory, their groups."""

    num_blocks: int
    """Blocks, the null block included."""
    kv_cache_tensors: list[KVCacheTensor]
    kv_cache_groups: list[KVCacheGroupSpec]
    prefix_cache_retention_interval: int | None = None
    """Groups with a window keep the blocks for hits at every multiple of this number of tokens. With 0
    they do so only at the ends of prompts and where prompts part; with None wherever a hit can end."""


def iter_layer_specs(kv_cache_spec: KVCacheSpec) -> Collection[KVCacheSpec]:
    """Return the specs of a group: one a layer if they differ, else this one, which all layers share."""
    if isinstance(kv_cache_spec, UniformTypeKVCacheSpecs):
        return kv_cache_spec.kv_cache_specs.values()
    return (kv_cache_spec,)


def get_kv_cache_spec_kind(kv_cache_spec: KVCacheSpec) -> KVCacheSpecKind:
    """Return the kind for events."""
    kinds = {_kind(spec) for spec in iter_layer_specs(kv_cache_spec)}
    return kinds.pop() if len(kinds) == 1 else KVCacheSpecKind.UNKNOWN


def get_kv_cache_spec_sliding_window(kv_cache_spec: KVCacheSpec) -> int | None:
    """Return the window for events: that of a group with a window, else None."""
    windows = {
        spec.sliding_window if isinstance(spec, SlidingWindowSpec) else None
        for spec in iter_layer_specs(kv_cache_spec)
    }
    return windows.pop() if len(windows) == 1 else None


def _kind(spec: KVCacheSpec) -> KVCacheSpecKind:
    if isinstance(spec, FullAttentionSpec):
        return KVCacheSpecKind.FULL_ATTENTION
    if isinstance(spec, SlidingWindowSpec):
        return KVCacheSpecKind.SLIDING_WINDOW
    return KVCacheSpecKind.UNKNOWN


def _one(values: set[Any], name: str) -> Any:
    values = values - {None}
    if len(values) > 1:
        raise ValueError(f"layers of a group differ in {name}: {sorted(values)}")
    return values.pop() if values else None
