"""Sampling parameters that matter to memory.

Source: `vllm/sampling_params.py` of 0.9.2.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The number of sequences, and their limits."""

    n: int = 1
    """Sequences to generate for the prompt."""
    best_of: int | None = None
    """Sequences to generate; the best n are returned. None: n are generated."""
    max_tokens: int | None = 16
    """Tokens to generate for a sequence; None for as many as the model's length allows."""
    min_tokens: int = 0

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError(f"n {self.n} is less than 1")
        if self.best_of is not None and self.best_of < self.n:
            raise ValueError(f"best_of {self.best_of} is less than n {self.n}")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError(f"max_tokens {self.max_tokens} is less than 1")
        if self.min_tokens < 0:
            raise ValueError(f"min_tokens {self.min_tokens} is less than 0")


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """The adapter of a request. The number, from 1 on, identifies it."""

    lora_name: str
    lora_int_id: int
    lora_path: str = ""
    long_lora_max_len: int | None = None
    """The most tokens of a prompt with this adapter, if it lengthens the model's limit."""

    def __post_init__(self) -> None:
        if self.lora_int_id < 1:
            raise ValueError(f"lora_int_id {self.lora_int_id} is less than 1")


@dataclass(frozen=True, slots=True)
class LoRAConfig:
    """Limits of adapters: their greatest rank, and how many one batch may use."""

    max_lora_rank: int = 16
    max_loras: int = 1

    def __post_init__(self) -> None:
        if self.max_loras < 1:
            raise ValueError(f"max_loras {self.max_loras} is less than 1")
