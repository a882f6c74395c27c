"""The sources that load tokenizers.

`TokenizerSource` is the contract, `FolderSource` loads a local folder. `prefixstore.tokenizers.hub`
loads from the HuggingFace hub; `prefixstore.tokenizers.remote` and `prefixstore.tokenizers.fallback` use
engines.
"""

from pathlib import Path
from typing import Protocol

from warmpath.prefixstore.tokenizers.tokenizer import FolderTokenizer, Tokenizer
from warmpath.prefixstore.tokenizers.trial import try_tokenizer


class TokenizerSource(Protocol):
    """Loads one tokenizer, any number of times."""

    @property
    def name(self) -> str:
        """The source's name in messages."""

    def load(self) -> Tokenizer:
        """Load the tokenizer; blocks. Raises TokenizerUnavailableError with the reason."""


class FolderSource:
    """A local folder with tokenizer.json."""

    def __init__(self, folder: Path) -> None:
        self.name = f"the folder {folder}"
        self._folder = folder

    def load(self) -> FolderTokenizer:
        """Load the folder, after a trial load in another process succeeded."""
        try_tokenizer(self._folder)
        return FolderTokenizer(self._folder)
