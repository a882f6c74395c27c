"""From a text or a chat to the tokens of its model, within a caller's time."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from indexer.keys.token import TOKEN_BYTES
from prefixstore.chats.renderer import (
    BrokenTemplateError,
    RenderCrashedError,
    Renderer,
    RenderTimeoutError,
)
from prefixstore.chats.template import TemplateError
from prefixstore.pool import TokenizerPool, Tokens
from prefixstore.store.memo import KeyMemo
from prefixstore.tokenizers.cache import TokenizerCache
from prefixstore.tokenizers.remote import ChatEncoder, chat_text
from prefixstore.tokenizers.tokenizer import InvalidTextError, Tokenizer, TokenizerUnavailableError
from router.prompt.bad_request import BadRequestError, NoTokenizerError
from router.prompt.body import ChatBody
from router.prompt.deadline import TimeLeft
from router.prompt.models import Model
from router.prompt.trace import Trace
from router.prompt.truncate import NoRoomError, Truncation, cut, cut_between


class Ids(NamedTuple):
    """A prompt's tokens."""

    packed: bytes
    covered_chars: int = 0
    """Characters of the text that they stand for; 0 where there is no text of ours."""
    memo: KeyMemo | None = None
    unread: int = 0
    """Tokens, as estimated, of what is left of the text where the time was over before its end."""


CHARS_PER_TOKEN = 4
"""Of English text, roughly: of a text of which nothing is known its length has to do."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Whose text it is, how much time there is for it, and where what happens is noted."""

    model: Model
    left: TimeLeft
    trace: Trace | None = None
    truncation: Truncation | None = None

    def step(self, name: str) -> None:
        """Note that a step ended."""
        if self.trace:
            self.trace.step(name)

    def tokenised(self, text: str, tokens: Tokens) -> None:
        """Note what became of a text; it is empty where an engine rendered it."""
        if self.trace:
            self.trace.tokenised(text, tokens)


class Tokeniser:
    """Turns texts and chats into tokens; `count` refuses too many of them, of a field."""

    def __init__(
        self,
        tokenizers: TokenizerCache,
        renderer: Renderer,
        pool: TokenizerPool,
        count: Callable[[int, str], None],
    ) -> None:
        self._tokenizers = tokenizers
        self._renderer = renderer
        self._pool = pool
        self._count = count
        self._troubles: dict[str, str] = {}
        """By model, why its tokenizer could not be had when it was last asked for."""

    def troubles(self) -> dict[str, str]:
        """Return by model why its tokenizer cannot be had, of those that could not last time."""
        return self._tokenizers.failures() | self._troubles

    def vocab_size(self, model: Model) -> int:
        """Return one more than a model's highest token id; 0 where it is not known."""
        return model.vocab_size or self._tokenizers.vocab_size(model.tokenizer)

    async def text(self, text: str, field: str, asked: Asked, *, special: bool) -> Ids:
        """Return a text's tokens; `special` says whether special tokens are put around it."""
        model = asked.model
        if not text:
            raise BadRequestError(field, "is empty; at least one character is needed")
        if not model.tokenizer:
            raise NoTokenizerError(
                field, f"model {model.name!r} has no tokenizer configured; send token ids"
            )
        tokenizer = await self._tokenizer(asked)
        if tokenizer is None:
            return Ids(b"", unread=reckon(text))
        try:
            found = await self._encode(
                model.tokenizer, tokenizer, text, field, asked, special=special
            )
        except InvalidTextError as error:
            raise BadRequestError(field, str(error)) from error
        except TokenizerUnavailableError as error:
            raise self._unavailable(model, error) from error
        asked.tokenised(text, found)
        ids = Ids(found.ids, found.covered_chars, found.memo, reckon(text, found.covered_chars))
        cut = asked.truncation
        if not special or ids.unread or cut is None or cut.side or _fits(found.ids, cut):
            return truncated(ids, cut)
        plain = await self._encode(model.tokenizer, tokenizer, text, field, asked, special=False)
        if plain.covered_chars < len(text):
            return truncated(ids._replace(unread=reckon(text)), cut)
        name = f"{field.removesuffix('.prompt')}.truncate_prompt_tokens"
        try:
            return Ids(cut_between(found.ids, plain.ids, cut), found.covered_chars)
        except NoRoomError:
            raise BadRequestError(
                name, f"is {cut.tokens}; the tokenizer's special tokens alone are as many"
            ) from None
        except ValueError as error:
            raise BadRequestError(name, f"cannot be honoured: {error}") from error

    async def chat(self, content: ChatBody, asked: Asked) -> Ids:
        """Return a chat's tokens: the engine's own where it is asked, else through the template."""
        model, field = asked.model, "prompt.chat_body"
        if model.tokenizer:
            tokenizer = await self._tokenizer(asked)
            if tokenizer is None:
                return Ids(b"", unread=reckon(chat_text(content.request())))
            if isinstance(tokenizer, ChatEncoder):
                if asked.truncation and not asked.truncation.side and content.add_special_tokens:
                    raise BadRequestError(
                        f"{field}.truncate_prompt_tokens",
                        "needs truncation_side beside add_special_tokens: the engine renders the chat",
                    )
                try:
                    # Beside the model's texts, and no text can be taken for a chat.
                    name, text = f"{model.tokenizer}\nchat", chat_text(content.request())
                    found = await self._encode(
                        name, tokenizer.chats, text, field, asked, special=False
                    )
                    asked.tokenised("", found)
                    unread = reckon(text, found.covered_chars)
                    return truncated(Ids(found.ids, 0, found.memo, unread), asked.truncation)
                except InvalidTextError as error:
                    raise BadRequestError(field, str(error)) from error
                except TokenizerUnavailableError as error:
                    if not self._renderer.knows(model.name):
                        raise self._unavailable(model, error) from error
        text = await self._render(content, asked)
        asked.step("render the chat")
        return await self.text(text, field, asked, special=content.add_special_tokens)

    async def _render(self, content: ChatBody, asked: Asked) -> str:
        name = asked.model.name
        try:
            return await self._renderer.render(name, content.chat, asked.left.seconds())
        except KeyError as error:
            raise NoTokenizerError(
                "prompt.chat_body", f"model {name!r} has no chat template; send token ids"
            ) from error
        except (RenderCrashedError, RenderTimeoutError):
            raise
        except BrokenTemplateError as error:
            # Whatever is in the chat.
            raise NoTokenizerError("prompt.chat_body.messages", error.problem) from error
        except TemplateError as error:
            field = f"prompt.chat_body.{error.field or 'messages'}"
            raise BadRequestError(field, error.problem) from error

    async def _tokenizer(self, asked: Asked) -> Tokenizer | None:
        """Return a model's tokenizer, None where it is not loaded in time."""
        try:
            # The load is not the caller's to end: the cache goes on with it.
            async with asyncio.timeout(asked.left.seconds()):
                tokenizer = await self._tokenizers.get(asked.model.tokenizer)
        except TimeoutError:
            return None
        except TokenizerUnavailableError as error:
            raise self._unavailable(asked.model, error) from error
        asked.step("have the tokenizer")
        return tokenizer

    async def _encode(
        self,
        tokenizer_id: str,
        tokenizer: Tokenizer,
        text: str,
        field: str,
        asked: Asked,
        *,
        special: bool,
    ) -> Tokens:
        found = await self._pool.encode(
            tokenizer_id,
            tokenizer,
            text,
            add_special_tokens=special,
            timeout=asked.left.seconds(),
        )
        asked.step("tokenise")
        self._troubles.pop(asked.model.name, None)
        self._count(len(found.ids) // TOKEN_BYTES, field)
        return found

    def _unavailable(
        self, model: Model, error: TokenizerUnavailableError
    ) -> TokenizerUnavailableError:
        self._troubles[model.name] = str(error)
        return TokenizerUnavailableError(
            f"model {model.name!r}: its tokenizer cannot be had: {error}; token ids need none"
        )


def truncated(ids: Ids, truncation: Truncation | None) -> Ids:
    """Return what the engine leaves of a prompt."""
    if truncation is None or (not ids.unread and _fits(ids.packed, truncation)):
        return ids
    if not ids.unread:
        return Ids(cut(ids.packed, truncation), ids.covered_chars)
    # Its end is not known, and so neither what is before what is left.
    most = min(len(ids.packed) // TOKEN_BYTES + ids.unread, truncation.tokens)
    return Ids(b"", unread=most)


def _fits(packed: bytes, truncation: Truncation) -> bool:
    return len(packed) <= truncation.tokens * TOKEN_BYTES


def reckon(text: str, covered_chars: int = 0) -> int:
    """Return about how many tokens the rest of a text has."""
    return -(-(len(text) - covered_chars) // CHARS_PER_TOKEN)
