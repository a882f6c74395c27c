"""Uses an engine as the tokenizer: exact by definition, with one HTTP request per text.

The engine's definition is not known here, so no cuts are proven: texts are sent whole, and only a text
equal to an earlier one is found in the store.
"""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from warmpath.prefixstore.tokenizers.cache import TokenizerSource
from warmpath.prefixstore.tokenizers.engine import Engine
from warmpath.prefixstore.tokenizers.tokenizer import (
    ID_BYTES,
    Asking,
    FolderTokenizer,
    InvalidTextError,
    Tokenizer,
    TokenizerUnavailableError,
)

log = logging.getLogger(__name__)

PROBE = "a"


def chat_text(body: Mapping[str, Any]) -> str:
    """Return a chat request's body as JSON text. Raises InvalidTextError if that is impossible."""
    try:
        return json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidTextError("cannot be written as JSON") from error


class EngineTokenizer(Asking):
    """A tokenizer that asks one model's engines for each text.

    With a `local` tokenizer of the same model special tokens come from it, so that a start does not
    depend on an engine, and it serves while no engine answers: texts only, as the caller renders chats.
    """

    def __init__(
        self, engine: Engine, local: FolderTokenizer | None = None, *, vocab_size: int = 0
    ) -> None:
        """Raise TokenizerUnavailableError if there is no `local` and no engine answers.

        `vocab_size` is used without `local`, 0: not known; `/tokenize` does not return it.
        """
        self._engine = engine
        self._local = local
        self._is_away = False
        self.is_alone = local is None
        """Whether there are no tokens while no engine answers."""
        self.vocab_size = local.vocab_size if local else vocab_size
        self.prefix, self.suffix = (local.prefix, local.suffix) if local else _affixes(engine)
        self.chat_template = local.chat_template if local else None
        self.special_tokens = local.special_tokens if local else {}
        self.chats: Tokenizer = Chats(lambda body: self._asked(lambda: engine.chat(body)))
        """Tokenises chats; it raises where no engine answers."""

    def encode(self, parts: Sequence[bytes], *, at_start: bool) -> list[bytes]:
        return [self._encode(part, at_start=at_start) for part in parts]

    def _encode(self, raw: bytes, *, at_start: bool) -> bytes:
        text = raw.decode()
        try:
            return self._asked(lambda: self._engine.tokenize(text, add_special_tokens=False))
        except TokenizerUnavailableError:
            if self._local is None:
                raise
            return self._local.encode([raw], at_start=at_start)[0]

    def _asked(self, ask: Callable[[], bytes]) -> bytes:
        try:
            answer = ask()
        except TokenizerUnavailableError as error:
            if self._local is not None:
                self._engine.stats.fallbacks += 1
                # One line per outage, or one per thread if several notice it at the same time.
                if not self._is_away:
                    self._is_away = True
                    log.warning("%s; the local tokenizer is used instead", error)
            raise
        self._is_away = False
        return answer

    def token_ends(self, text: str, ids: bytes) -> list[int]:
        return self._local.token_ends(text, ids) if self._local else []


class Chats(Asking):
    """Tokenises chats that are written as JSON (`chat_text`), so that the pool treats them as texts."""

    vocab_size = 0
    prefix = suffix = b""

    def __init__(self, encode_chat: Callable[[Mapping[str, Any]], bytes]) -> None:
        self._encode_chat = encode_chat

    def encode(self, parts: Sequence[bytes], *, at_start: bool) -> list[bytes]:  # noqa: ARG002  always
        return [self._encode_chat(json.loads(part)) for part in parts]


def _affixes(engine: Engine) -> tuple[bytes, bytes]:
    """Return the special tokens that an engine puts before and after a text."""
    try:
        plain = engine.tokenize(PROBE, add_special_tokens=False)
        whole = engine.tokenize(PROBE, add_special_tokens=True)
    except InvalidTextError as error:
        raise TokenizerUnavailableError(f"{engine.name}: {PROBE!r} {error}") from error
    for at in range(0, len(whole) - len(plain) + 1, ID_BYTES):
        if plain and whole[at : at + len(plain)] == plain:
            return whole[:at], whole[at + len(plain) :]
    raise TokenizerUnavailableError(f"{engine.name}: special tokens are not put around the text")


def engine_source(
    engine: Engine, local: TokenizerSource | None = None, *, vocab_size: int = 0
) -> TokenizerSource:
    """Return a source of tokenizers that ask engines, and use the one of `local` while none answers.

    Without `local`, or if that cannot be loaded, the engines serve alone.
    """

    def load() -> EngineTokenizer:
        if local is None:
            return EngineTokenizer(engine, vocab_size=vocab_size)
        try:
            folder = local.load()
        except TokenizerUnavailableError as error:
            try:
                alone = EngineTokenizer(engine, vocab_size=vocab_size)
            except TokenizerUnavailableError as other:
                raise TokenizerUnavailableError(f"{error}; {other}") from error
            log.error("%s; the engine is used without a fall-back", error)  # noqa: TRY400
            return alone
        assert isinstance(folder, FolderTokenizer)
        return EngineTokenizer(engine, folder)

    return TokenizerSource(f"{engine.name}, or {local.name}" if local else engine.name, load)
