"""What a request asks for, as far as the cache is concerned."""

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class SamplingParams:
    """Of vLLM's parameters those that change what is computed, cached or announced."""

    max_tokens: int = 16
    prompt_logprobs: int | None = None
    """How many a prompt token. They need the whole prompt computed, so the cache is not read."""
    skip_reading_prefix_cache: bool | None = None
    """Store, but find nothing; True by default where `prompt_logprobs` are asked for."""
    extra_args: dict[str, Any] | None = None
    """`kv_cache_report_mode`: "full" announces found blocks again, "incremental" (default) not."""

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
