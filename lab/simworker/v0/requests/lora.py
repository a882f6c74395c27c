"""Adapters.

Source: `vllm/lora/request.py` and `LoRAConfig` in `vllm/config.py` of 0.9.2.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """The adapter of a request. The number, from 1 on, identifies it."""

    lora_name: str
    lora_int_id: int
    lora_path: str = ""

    def __post_init__(self) -> None:
        if self.lora_int_id < 1:
            raise ValueError(f"lora_int_id {self.lora_int_id} is less than 1")


@dataclass(frozen=True, slots=True)
class LoRAConfig:
    """How many adapters one batch may use."""

    max_loras: int = 1

    def __post_init__(self) -> None:
        if self.max_loras < 1:
            raise ValueError(f"max_loras {self.max_loras} is less than 1")
