"""Sampling and pooling parameters that matter to the cache."""

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class SamplingParams:
    """The vLLM parameters that change the computed, cached or announced blocks."""

    max_tokens: int = 16
    prompt_logprobs: int | None = None
    """Log probabilities for each prompt token; for these the whole prompt is computed. None: no."""
    skip_reading_prefix_cache: bool | None = None
    """Whether to store blocks without looking any up; None becomes True with `prompt_logprobs` only."""
    extra_args: dict[str, Any] | None = None
    """With `kv_cache_report_mode` "full", found blocks are announced again; default is "incremental"."""
    ignore_eos: bool = False
    """Whether answers go on after the model's end-of-sequence tokens."""
    stop_token_ids: list[int] | None = None
    """Tokens that end the answer; the answer includes them."""

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens: {self.max_tokens}, at least 1")
        if self.skip_reading_prefix_cache is None:
            self.skip_reading_prefix_cache = self.prompt_logprobs is not None


@dataclass(slots=True)
class PoolingParams:
    """A request for an embedding or a score: no token is generated."""

    skip_reading_prefix_cache: bool | None = None
    """Poolers that need all hidden states set it."""
