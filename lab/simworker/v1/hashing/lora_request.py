"""The adapter of a request."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """An adapter. Name and path go into block hashes, the number into events."""

    lora_name: str
    lora_int_id: int
    """From 1 on; two engines may number an adapter differently."""
    lora_path: str

    def __post_init__(self) -> None:
        if self.lora_int_id < 1:
            raise ValueError(f"lora_int_id: {self.lora_int_id}, at least 1")

    @property
    def name(self) -> str:
        """The adapter's name."""
        return self.lora_name

    @property
    def adapter_id(self) -> int:
        """The engine's number of the adapter."""
        return self.lora_int_id
