"""An engine as a tokenizer: exact by definition, one request a text.

Nothing is known of how the engine's tokenizer cuts a text, so texts are never split, and only a text
that was asked for before, whole, is known.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from prefixstore.tokenizers.engine import Engine
from prefixstore.tokenizers.ids import ID_BYTES
from prefixstore.tokenizers.tokenizer import (
    InvalidTextError,
    Tokenizer,
    TokenizerUnavailableError,
    Uncut,
)

PROBE = "a"


@runtime_checkable
class ChatEncoder(Protocol):
    """What a tokenizer also is that takes chats and not only texts."""

    @property
    def chats(self) -> Tokenizer:
        """Chats as a tokenizer of texts: those that `chat_text` writes."""

    def encode_chat(self, body: Mapping[str, Any]) -> bytes:
        """Return a chat's ids, special tokens as the body says; waits for the engine.

        Raises InvalidTextError and TokenizerUnavailableError.
        """


def chat_text(body: Mapping[str, Any]) -> str:
    """Write a chat as the text that stands for it; raises InvalidTextError where it cannot be."""
    try:
        return json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidTextError("is no JSON") from error


class RemoteTokenizer(Uncut):
    """One model's engines, asked for each text."""

    def __init__(self, engine: Engine, *, vocab_size: int = 0) -> None:
        """Ask the engine what it puts around a text. Raises TokenizerUnavailableError.

        `vocab_size` 0: not known; `/tokenize` does not tell.
        """
        self.vocab_size = vocab_size
        self._engine = engine
        self.chats: Tokenizer = Chats(self.encode_chat, vocab_size)
        try:
            plain = engine.tokenize(PROBE, add_special_tokens=False)
            whole = engine.tokenize(PROBE, add_special_tokens=True)
        except InvalidTextError as error:
            raise TokenizerUnavailableError(f"{engine.name}: {PROBE!r} {error}") from error
        at = _find(whole, plain) if plain else -1
        if at < 0:
            problem = "special tokens are not put around the text"
            raise TokenizerUnavailableError(f"{engine.name}: {problem}")
        self.prefix, self.suffix = whole[:at], whole[at + len(plain) :]

    def encode(self, parts: Sequence[bytes], *, at_start: bool) -> list[bytes]:  # noqa: ARG002  always
        """Return each text's ids, from the engine."""
        return [self._engine.tokenize(part.decode(), add_special_tokens=False) for part in parts]

    def encode_chat(self, body: Mapping[str, Any]) -> bytes:
        """Return a chat's ids, from the engine."""
        return self._engine.tokenize_chat(body)


class Chats(Uncut):
    """Chats as texts, so that the pool bounds, shares and keeps them as it does texts."""

    prefix = suffix = b""

    def __init__(self, encode_chat: "EncodeChat", vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._encode_chat = encode_chat

    def encode(self, parts: Sequence[bytes], *, at_start: bool) -> list[bytes]:  # noqa: ARG002  always
        """Return the ids of the chats that `chat_text` wrote."""
        return [self._encode_chat(json.loads(part)) for part in parts]


class EncodeChat(Protocol):
    """`ChatEncoder.encode_chat`."""

    def __call__(self, body: Mapping[str, Any], /) -> bytes:
        """Return a chat's ids."""


class RemoteSource:
    """Engines as the only place that a tokenizer comes from."""

    def __init__(self, engine: Engine, *, vocab_size: int = 0) -> None:
        self.name = engine.name
        self._engine = engine
        self._vocab_size = vocab_size

    def load(self) -> RemoteTokenizer:
        """Probe the engine."""
        return RemoteTokenizer(self._engine, vocab_size=self._vocab_size)


def _find(whole: bytes, part: bytes) -> int:
    """Return where ids lie in others, -1 where they do not; both packed."""
    for at in range(0, len(whole) - len(part) + 1, ID_BYTES):
        if whole[at : at + len(part)] == part:
            return at
    return -1
