"""The models that the router knows, by every name that a request may give."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Self


class UnknownModelError(Exception):
    """No configured model has this name. `field` is the request's field that has it."""

    def __init__(self, name: str, known: Collection[str], field: str = "prompt.model") -> None:
        names = ", ".join(sorted(known)) or "none"
        super().__init__(f"{field}: no model is called {name!r}; known: {names}")
        self._name, self._known, self._field = name, known, field

    def renamed(self, fields: Mapping[str, str]) -> Self:
        """Return the same error about the field that `fields` has in place of its own, if any."""
        return type(self)(self._name, self._known, fields.get(self._field, self._field))


@dataclass(frozen=True, slots=True)
class Model:
    """One base model."""

    name: str
    """The name from which block keys are derived, whichever name a request uses."""
    vocab_size: int = 0
    """One more than the highest token id; 0: that of the tokenizer, once it is loaded."""
    tokenizer: str = ""
    """The tokenizer's id; empty for the model of a request that names none."""


class ModelTable:
    """Finds the base model and the adapter for a name: a model's own, an alias or an adapter's."""

    def __init__(self) -> None:
        self._models: dict[str, tuple[Model, str]] = {}
        self.engines_adapters: frozenset[str] = frozenset()
        """The adapters that engines list and find by name; set by the thread that follows pods."""

    def add(self, model: Model, aliases: Iterable[str], adapters: Iterable[str]) -> None:
        """Add a model, none of whose names is another's."""
        loras = dict.fromkeys((model.name, *aliases), "") | {name: name for name in adapters}
        self._models |= {name: (model, lora) for name, lora in loras.items()}

    def resolve(self, name: str) -> tuple[Model, str]:
        """Return the base model and the adapter (empty for none) of a name.

        SGLang's form MODEL:ADAPTER names an adapter too. Raises UnknownModelError.
        """
        found = self._models.get(name)
        if found is None:
            base, _, adapter = name.rpartition(":")
            model, lora = self._models.get(base, (None, ""))
            if model is not None and adapter and not lora:
                return model, adapter
            raise UnknownModelError(name, self._models)
        return found

    def shadow(self, name: str) -> str:
        """Return the adapter that engines take for a base model's name; empty for none.

        vLLM looks for a name among its adapters first (`_maybe_get_adapters` of 0.26), so an adapter
        with the base model's own name gets its requests.
        """
        return name if name in self.engines_adapters else ""
