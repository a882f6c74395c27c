"""Tokenizers: text to token ids, as the engine computes them.

`Tokenizer` is the contract; `FolderTokenizer` is a model's own from a local folder, by HuggingFace's
`tokenizers`, and `ByteTokenizer` a reference that needs no files.
"""

import json
import sys
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import tokenizers

from prefixstore.boundary import pieces_of, qualifies


class TokenizerUnavailableError(Exception):
    """A tokenizer cannot be had; the message says from where, and why."""


class InvalidTextError(Exception):
    """A text cannot be tokenised."""


class Tokenizer(Protocol):
    """What the pool needs of a tokenizer. Ids are packed little-endian uint32, 4 bytes each."""

    @property
    def vocab_size(self) -> int:
        """One more than the highest token id."""

    @property
    def prefix(self) -> bytes:
        """Ids that come before the text's where special tokens are added."""

    @property
    def suffix(self) -> bytes:
        """Ids that come after the text's where special tokens are added."""

    @property
    def waits(self) -> bool:
        """Whether `encode` waits for another process, and so never runs on the event loop."""

    def split(self, text: str) -> list[str]:
        """Cut a text into pieces whose tokens, put together, are the whole text's tokens."""

    def encode(self, pieces: list[str]) -> list[bytes]:
        """Return each piece's ids, no special tokens added. Thread-safe."""


class ByteTokenizer:
    """One token a byte of UTF-8, and a begin token: simple, and splittable anywhere."""

    vocab_size = 257
    prefix = (256).to_bytes(4, "little")
    suffix = b""
    waits = False

    def split(self, text: str) -> list[str]:
        """Cut a text into pieces."""
        return pieces_of(text)

    def encode(self, pieces: list[str]) -> list[bytes]:
        """Return each piece's ids."""
        return [_pack(list(piece.encode())) for piece in pieces]


class FolderTokenizer:
    """A model's tokenizer from its folder: tokenizer.json, tokenizer_config.json, chat template."""

    waits = False

    def __init__(self, folder: Path) -> None:
        """Load a folder. Raises TokenizerUnavailableError."""
        try:
            definition = (folder / "tokenizer.json").read_text(encoding="utf-8")
            self._tokenizer = tokenizers.Tokenizer.from_str(definition)
            parsed = json.loads(definition)
            self._config = _optional_json(folder / "tokenizer_config.json")
            model_config = _optional_json(folder / "config.json")
            self.chat_template = _template(folder, self._config)
        except Exception as error:
            # `tokenizers` raises plain Exception for a broken definition.
            raise TokenizerUnavailableError(f"{folder}: {error}") from error
        # What a request may be cut or filled to is the engine's business.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.vocab_size = max(
            max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1,
            int(model_config.get("vocab_size") or 0),
        )
        self.prefix, self.suffix = self._affixes(folder)
        self._splits = qualifies(parsed)

    def _affixes(self, folder: Path) -> tuple[bytes, bytes]:
        """Find out what is put around a text."""
        plain = self._tokenizer.encode("a", add_special_tokens=False).ids
        whole = self._tokenizer.encode("a", add_special_tokens=True).ids
        for start in range(len(whole) - len(plain) + 1):
            if whole[start : start + len(plain)] == plain:
                return _pack(whole[:start]), _pack(whole[start + len(plain) :])
        raise TokenizerUnavailableError(f"{folder}: special tokens are not put around the text")

    @property
    def special_tokens(self) -> Mapping[str, str]:
        """The named special tokens (`bos_token`, …) that a chat template may use."""
        named = {}
        for name, value in self._config.items():
            text = value.get("content") if isinstance(value, dict) else value
            if name.endswith("_token") and isinstance(text, str):
                named[name] = text
        return named

    def split(self, text: str) -> list[str]:
        """Cut a text into pieces where that is proven to change no token."""
        return pieces_of(text) if self._splits else [text]

    def encode(self, pieces: list[str]) -> list[bytes]:
        """Return each piece's ids."""
        try:
            return [
                _pack(self._tokenizer.encode(piece, add_special_tokens=False).ids)
                for piece in pieces
            ]
        except UnicodeEncodeError as error:
            raise InvalidTextError(_lone_surrogate(error)) from error


def check_text(text: str) -> bytes:
    """Return a text's UTF-8. Raises InvalidTextError where it has none."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidTextError(_lone_surrogate(error)) from error


def _lone_surrogate(error: UnicodeEncodeError) -> str:
    return f"is not Unicode text: a lone surrogate at character {error.start}"


def _pack(ids: list[int]) -> bytes:
    packed = array("I", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _optional_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    value = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(value, dict):
        raise TypeError(f"{path.name} is not a JSON object")
    return value


def _template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """Return the model's chat template, where it has one: a file's before the configuration's."""
    path = folder / "chat_template.jinja"
    if path.exists():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {one["name"]: one["template"] for one in template}
        template = named.get("default")
    return template if isinstance(template, str) else None
