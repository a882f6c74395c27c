"""LoRA adapters by name, loaded and unloaded while the worker serves.

Source: `OpenAIServingModels` in `vllm/entrypoints/openai/models/serving.py` of 0.32.
"""

from dataclasses import dataclass

from warmpath.lab.simworker.engine import BrokenInvariantError


class AdapterError(ValueError):
    """An adapter that cannot be loaded or found."""

    def __init__(self, message: str, *, unknown: bool = False) -> None:
        super().__init__(message)
        self.unknown = unknown


@dataclass(frozen=True, slots=True)
class Adapter:
    """One adapter. Its path goes into the block hashes, its number into events."""

    name: str
    path: str
    number: int


class Adapters:
    """The adapters of one worker, in the order in which they were loaded."""

    def __init__(self, base_model: str) -> None:
        self._base_model = base_model
        self._loaded: dict[str, Adapter] = {}
        self._last_number = 0

    def load(self, name: str, path: str, *, in_place: bool = False) -> None:
        """Load an adapter. Raises AdapterError.

        With `in_place` it may replace a loaded adapter of the same name, and gets that one's number. It
        finds only blocks that were cached under its own path.
        """
        if not name or not path:
            raise AdapterError("Both 'lora_name' and 'lora_path' must be provided.")
        if name == self._base_model:
            raise AdapterError(f"The lora adapter '{name}' conflicts with a served base model.")
        before = self._loaded.get(name)
        if before is not None and not in_place:
            raise AdapterError(
                f"The lora adapter '{name}' has already been loaded. If you want to load the "
                "adapter in place, set 'load_inplace' to True."
            )
        if before is None:
            self._last_number += 1
        self._loaded[name] = Adapter(name, path, before.number if before else self._last_number)

    def unload(self, name: str) -> None:
        """Unload an adapter. Raises AdapterError. Requests under way go on."""
        if name not in self._loaded:
            raise AdapterError(f"The lora adapter '{name}' cannot be found.", unknown=True)
        del self._loaded[name]

    def get(self, name: str) -> Adapter | None:
        return self._loaded.get(name)

    def number_of(self, name: str) -> int | None:
        adapter = self._loaded.get(name)
        return adapter.number if adapter else None

    def all(self) -> list[Adapter]:
        return list(self._loaded.values())

    def check(self) -> None:
        """Raise BrokenInvariantError if two adapters have one number."""
        numbers = [adapter.number for adapter in self._loaded.values()]
        if len(set(numbers)) != len(numbers) or any(n > self._last_number for n in numbers):
            raise BrokenInvariantError(f"adapters are numbered {numbers}")
