"""Tokenises with the engines, and with a local tokenizer while no engine answers."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from warmpath.prefixstore.tokenizers.engine import Engine
from warmpath.prefixstore.tokenizers.remote import Chats, RemoteTokenizer
from warmpath.prefixstore.tokenizers.source import TokenizerSource
from warmpath.prefixstore.tokenizers.tokenizer import (
    FolderTokenizer,
    Tokenizer,
    TokenizerUnavailableError,
    Uncut,
)

log = logging.getLogger(__name__)

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
        """Return each text's ids."""
        return [self._encode(part, at_start=at_start) for part in parts]

    def _encode(self, raw: bytes, *, at_start: bool) -> bytes:
        text = raw.decode()
        try:
            return self._asked(lambda: self._engine.tokenize(text, add_special_tokens=False))
        except TokenizerUnavailableError:
            return self._local.encode([raw], at_start=at_start)[0]

    def token_ends(self, text: str, ids: bytes) -> list[int]:
        """Return the ends of a text's tokens, as the local tokenizer does."""
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


class FallbackSource:
    """Loads a tokenizer that uses engines, and one from another source while no engine answers."""

    def __init__(self, engine: Engine, local: TokenizerSource, *, vocab_size: int = 0) -> None:
        self.name = f"{engine.name}, or {local.name}"
        self.stats = FallbackStats()
        self._engine = engine
        self._local = local
        self._vocab_size = vocab_size

    def load(self) -> FallbackTokenizer | RemoteTokenizer:
        """Load the local tokenizer; if that fails, return one that uses only the engines."""
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
