"""Uses an engine as the tokenizer: exact by definition, with one HTTP request per text.

The engine's definition is not known here, so no cuts are proven: texts are sent whole, and only a text
equal to an earlier one is found in the store.
"""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard, TypeVar

from warmpath.prefixstore.tokenizers.cache import TokenizerSource
from warmpath.prefixstore.tokenizers.engine import Engine
from warmpath.prefixstore.tokenizers.tokenizer import (
    ID_BYTES,
    FolderTokenizer,
    InvalidTextError,
    Tokenizer,
    TokenizerUnavailableError,
    Uncut,
)

log = logging.getLogger(__name__)

PROBE = "a"


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
        return [self._engine.tokenize(part.decode(), add_special_tokens=False) for part in parts]

    def encode_chat(self, body: Mapping[str, Any]) -> bytes:
        return self._engine.tokenize_chat(body)


class Chats(Uncut):
    """A tokenizer of chats written as texts, so that the pool treats them like texts."""

    prefix = suffix = b""

    def __init__(self, encode_chat: Callable[[Mapping[str, Any]], bytes], vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._encode_chat = encode_chat

    def encode(self, parts: Sequence[bytes], *, at_start: bool) -> list[bytes]:  # noqa: ARG002  always
        return [self._encode_chat(json.loads(part)) for part in parts]


def _find(whole: bytes, part: bytes) -> int:
    for at in range(0, len(whole) - len(part) + 1, ID_BYTES):
        if whole[at : at + len(part)] == part:
            return at
    return -1


Answer = TypeVar("Answer")


@dataclass(slots=True)
class FallbackStats:
    """Counters of fall-backs, which the router exports as metrics."""

    fallbacks: int = 0
    """Requests that no engine answered."""


class FallbackTokenizer(Uncut):
    """A model's engines, and the same model's tokenizer on this machine.

    Special tokens come from the local tokenizer, so that a start does not depend on an engine. Texts
    are never cut, as in `RemoteTokenizer`. If no engine answers for a chat, `encode_chat` raises;
    the caller renders the chat.
    """

    def __init__(self, engine: Engine, local: FolderTokenizer, stats: FallbackStats) -> None:
        self.vocab_size = local.vocab_size
        self.prefix, self.suffix = local.prefix, local.suffix
        self.chat_template = local.chat_template
        self.special_tokens = local.special_tokens
        self.chats: Tokenizer = Chats(self.encode_chat, local.vocab_size)
        self._engine = engine
        self._local = local
        self._stats = stats
        self._away = False

    def encode(self, parts: Sequence[bytes], *, at_start: bool) -> list[bytes]:
        return [self._encode(part, at_start=at_start) for part in parts]

    def _encode(self, raw: bytes, *, at_start: bool) -> bytes:
        text = raw.decode()
        try:
            return self._asked(lambda: self._engine.tokenize(text, add_special_tokens=False))
        except TokenizerUnavailableError:
            return self._local.encode([raw], at_start=at_start)[0]

    def token_ends(self, text: str, ids: bytes) -> list[int]:
        return self._local.token_ends(text, ids)

    def encode_chat(self, body: Mapping[str, Any]) -> bytes:
        """Return a chat's ids from an engine. Raises TokenizerUnavailableError if none answers."""
        return self._asked(lambda: self._engine.tokenize_chat(body))

    def _asked(self, ask: Callable[[], Answer]) -> Answer:
        try:
            answer = ask()
        except TokenizerUnavailableError as error:
            self._stats.fallbacks += 1
            # One line per outage, or one per thread if several notice it at the same time.
            if not self._away:
                self._away = True
                log.warning("%s; the local tokenizer is used instead", error)
            raise
        self._away = False
        return answer


def takes_chats(tokenizer: Tokenizer) -> TypeGuard[RemoteTokenizer | FallbackTokenizer]:
    """Return whether a tokenizer also takes chats."""
    return isinstance(tokenizer, RemoteTokenizer | FallbackTokenizer)


class EngineSource:
    """Loads a tokenizer that uses engines, and one of the source `local`, if any, while none answers."""

    def __init__(
        self, engine: Engine, local: TokenizerSource | None = None, *, vocab_size: int = 0
    ) -> None:
        self.name = f"{engine.name}, or {local.name}" if local else engine.name
        self.stats = FallbackStats()
        self._engine = engine
        self._local = local
        self._vocab_size = vocab_size

    def load(self) -> FallbackTokenizer | RemoteTokenizer:
        """Load the local tokenizer; without it, return one that uses only the engines."""
        if self._local is None:
            return RemoteTokenizer(self._engine, vocab_size=self._vocab_size)
        try:
            local = self._local.load()
        except TokenizerUnavailableError as error:
            try:
                remote = RemoteTokenizer(self._engine, vocab_size=self._vocab_size)
            except TokenizerUnavailableError as other:
                raise TokenizerUnavailableError(f"{error}; {other}") from error
            log.error("%s; the engine is used without a fall-back", error)  # noqa: TRY400
            return remote
        assert isinstance(local, FolderTokenizer)
        return FallbackTokenizer(self._engine, local, self.stats)
