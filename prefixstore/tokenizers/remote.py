"""Uses an engine as the tokenizer: exact by definition, with one HTTP request per text.

The engine's definition is not known here, so no cuts are proven: texts are sent whole, and only a text
equal to an earlier one is found in the store.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeGuard, runtime_checkable

from warmpath.prefixstore.tokenizers.engine import Engine
from warmpath.prefixstore.tokenizers.ids import ID_BYTES
from warmpath.prefixstore.tokenizers.tokenizer import (
    InvalidTextError,
    Tokenizer,
    TokenizerUnavailableError,
    Uncut,
)

PROBE = "a"


@runtime_checkable
class ChatEncoder(Protocol):
    """The further contract of a tokenizer that also takes chats."""

    @property
    def chats(self) -> Tokenizer:
        """A tokenizer for texts written by `chat_text`, each of which is a chat as JSON."""

    def encode_chat(self, body: Mapping[str, Any]) -> bytes:
        """Return a chat's ids, with special tokens if the body asks for them; blocks.

        Raises InvalidTextError and TokenizerUnavailableError.
        """


def takes_chats(tokenizer: Tokenizer) -> TypeGuard[ChatEncoder]:
    """Return whether a tokenizer is a ChatEncoder."""
    # `isinstance` takes 20 us, as it looks for each member of a Protocol.
    return hasattr(tokenizer, "encode_chat")


def chat_text(body: Mapping[str, Any]) -> str:
    """Return a chat request's body as JSON text. Raises InvalidTextError if that is impossible."""
    try:
        return json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidTextError("cannot be written as JSON") from error


class RemoteTokenizer(Uncut):
    """A tokenizer that asks one model's engines for each text."""

    def __init__(self, engine: Engine, *, vocab_size: int = 0) -> None:
        """Ask the engine for its special tokens around a text. Raises TokenizerUnavailableError.

        `vocab_size` 0: not known; `/tokenize` does not return it.
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
        """Return each text's ids from the engine."""
        return [self._engine.tokenize(part.decode(), add_special_tokens=False) for part in parts]

    def encode_chat(self, body: Mapping[str, Any]) -> bytes:
        """Return a chat's ids from the engine."""
        return self._engine.tokenize_chat(body)


class Chats(Uncut):
    """A tokenizer of chats written as texts, so that the pool treats them like texts."""

    prefix = suffix = b""

    def __init__(self, encode_chat: "EncodeChat", vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._encode_chat = encode_chat

    def encode(self, parts: Sequence[bytes], *, at_start: bool) -> list[bytes]:  # noqa: ARG002  always
        """Return the ids of the chats that `chat_text` wrote."""
        return [self._encode_chat(json.loads(part)) for part in parts]


class EncodeChat(Protocol):
    """The type of `ChatEncoder.encode_chat`."""

    def __call__(self, body: Mapping[str, Any], /) -> bytes:
        """Return a chat's ids."""


class RemoteSource:
    """A source whose tokenizer is the engine itself, with no local fall-back."""

    def __init__(self, engine: Engine, *, vocab_size: int = 0) -> None:
        self.name = engine.name
        self._engine = engine
        self._vocab_size = vocab_size

    def load(self) -> RemoteTokenizer:
        """Ask the engine for its special tokens and return its tokenizer."""
        return RemoteTokenizer(self._engine, vocab_size=self._vocab_size)


def _find(whole: bytes, part: bytes) -> int:
    """Return the offset of packed ids within others, -1 if they are not found."""
    for at in range(0, len(whole) - len(part) + 1, ID_BYTES):
        if whole[at : at + len(part)] == part:
            return at
    return -1
