"""Where a tokenizer comes from.

`TokenizerSource` is the contract; `FolderSource` a local folder. `prefixstore.tokenizers.hub` is the
HuggingFace hub, `prefixstore.tokenizers.remote` and `prefixstore.tokenizers.fallback` the engine itself.
"""

from pathlib import Path
from typing import Protocol

from prefixstore.tokenizers.tokenizer import FolderTokenizer, Tokenizer
from prefixstore.tokenizers.trial import try_tokenizer


class TokenizerSource(Protocol):
    """One place that a tokenizer can be loaded from, any number of times."""

    @property
    def name(self) -> str:
        """What messages call it."""

    def load(self) -> Tokenizer:
        """Load the tokenizer; blocks. Raises TokenizerUnavailableError, whose message says why."""


class FolderSource:
    """A local folder with tokenizer.json."""

    def __init__(self, folder: Path) -> None:
        self.name = f"the folder {folder}"
        self._folder = folder

    def load(self) -> FolderTokenizer:
        """Load the folder, once it was loaded elsewhere and nothing happened."""
        try_tokenizer(self._folder)
        return FolderTokenizer(self._folder)
