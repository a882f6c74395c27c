"""Tokenises one text or chat within a caller's deadline: renders a chat first, then asks the pool."""

import asyncio
from typing import NamedTuple

import msgspec

from warmpath.indexer.keys.key import TOKEN_BYTES
from warmpath.prefixstore.chats.render_worker import RenderCrashedError, RenderTimeoutError
from warmpath.prefixstore.chats.renderer import BrokenTemplateError, ProcessRenderer
from warmpath.prefixstore.chats.template import TemplateError
from warmpath.prefixstore.pool import TokenizerPool, Tokens
from warmpath.prefixstore.store.memo import KeyMemo
from warmpath.prefixstore.tokenizers.cache import TokenizerCache
from warmpath.prefixstore.tokenizers.remote import EngineTokenizer, chat_text
from warmpath.prefixstore.tokenizers.tokenizer import (
    InvalidTextError,
    LongPieceError,
    Tokenizer,
    TokenizerUnavailableError,
)
from warmpath.router.prompt.bad_request import BadRequestError, NoTokenizerError
from warmpath.router.prompt.bodies.openai import ChatBody, Text
from warmpath.router.prompt.limits import (
    NoRoomError,
    PromptLimits,
    TimeLeft,
    Truncation,
    cut,
    cut_between,
)
from warmpath.router.prompt.models import Model
from warmpath.router.prompt.prompt import CheckedPrompt
from warmpath.router.prompt.trace import Trace


class Ids(NamedTuple):
    """A prompt's tokens."""

    packed: bytes
    covered_chars: int = 0
    """Characters of the text that the tokens cover; 0 if the router has no text."""
    memo: KeyMemo | None = None
    unread: int = 0
    """Estimated tokens of the rest of the text, if the time was over before its end."""


CHARS_PER_TOKEN = 4
"""About the average of English text; a text that was not tokenised is estimated by its length."""


class PromptTask(msgspec.Struct, frozen=True):
    """A prompt, the time left for it, and the trace of its steps."""

    prompt: CheckedPrompt
    left: TimeLeft
    trace: Trace | None

    def step(self, name: str) -> None:
        """Record the end of a step."""
        if self.trace:
            self.trace.step(name)

    def refused(self, problem: str) -> BadRequestError:
        """Return the error for a `truncate_prompt_tokens` that cannot be honoured."""
        body = self.prompt.field.removesuffix(".prompt")
        return BadRequestError(f"{body}.truncate_prompt_tokens", problem)

    def tokenised(self, text: str, tokens: Tokens) -> None:
        """Record a text and its tokens; the text is empty if an engine rendered it."""
        if self.trace:
            self.trace.tokenised(text, tokens)


class Tokeniser:
    """Turns texts and chats into token ids, by the tokenizer and chat template of their model."""

    def __init__(
        self,
        tokenizers: TokenizerCache,
        renderer: ProcessRenderer,
        pool: TokenizerPool,
        limits: PromptLimits,
    ) -> None:
        self._tokenizers = tokenizers
        self._renderer = renderer
        self._pool = pool
        self._limits = limits
        self._troubles: dict[str, str] = {}
        """By model, why its tokenizer was unavailable at the last attempt; traced ones aside."""

    def troubles(self) -> dict[str, str]:
        """Return the models whose tokenizer was unavailable at the last attempt, with the reasons."""
        return self._tokenizers.failures() | self._troubles

    def vocab_size(self, model: Model) -> int:
        """Return one more than a model's highest token id; 0 if it is not known."""
        return model.vocab_size or self._tokenizers.vocab_size(model.tokenizer)

    async def tokens(
        self, prompt: CheckedPrompt, timeout: float, trace: Trace | None = None
    ) -> Ids:
        """Return a prompt's tokens within `timeout` seconds."""
        content = prompt.content
        if isinstance(content, bytes):
            return truncated(Ids(content), prompt.truncation)
        task = PromptTask(prompt, TimeLeft(timeout), trace)
        if isinstance(content, ChatBody):
            return await self._chat(content, task)
        return await self._text(content.text, task, special=content.add_special_tokens)

    async def _text(self, text: str, task: PromptTask, *, special: bool) -> Ids:
        """Return a text's tokens; `special` says whether special tokens are added around them."""
        model, field = task.prompt.model, task.prompt.field
        if not text:
            raise BadRequestError(field, "is empty; at least one character is needed")
        if not model.tokenizer:
            raise NoTokenizerError(
                field, f"model {model.name!r} has no tokenizer configured; send token ids"
            )
        tokenizer = await self._tokenizer(task)
        if tokenizer is None:
            return Ids(b"", unread=reckon(text))
        try:
            found = await self._encode(model.tokenizer, tokenizer, text, task, special=special)
        except LongPieceError as error:
            raise NoTokenizerError(field, str(error)) from error
        except InvalidTextError as error:
            raise BadRequestError(field, str(error)) from error
        except TokenizerUnavailableError as error:
            raise self._unavailable(task, error) from error
        task.tokenised(text, found)
        if task.trace:
            await task.trace.find_ends(tokenizer)
        ids = Ids(found.ids, found.covered_chars, found.memo, reckon(text, found.covered_chars))
        cut = task.prompt.truncation
        if not special or ids.unread or cut is None or cut.side or _fits(found.ids, cut):
            return truncated(ids, cut)
        plain = await self._encode(model.tokenizer, tokenizer, text, task, special=False)
        if plain.covered_chars < len(text):
            return truncated(ids._replace(unread=reckon(text)), cut)
        try:
            return Ids(cut_between(found.ids, plain.ids, cut), found.covered_chars)
        except NoRoomError:
            problem = f"is {cut.tokens}; the tokenizer's special tokens alone are as many"
            raise task.refused(problem) from None
        except ValueError as error:
            raise task.refused(f"cannot be honoured: {error}") from error

    async def _chat(self, content: ChatBody, task: PromptTask) -> Ids:
        """Return a chat's tokens: from an engine if one tokenises for the model, else by the template.

        If the engine fails, a chat template of the router's own is the fall-back.
        """
        model, field, cut = task.prompt.model, task.prompt.field, task.prompt.truncation
        if model.tokenizer:
            tokenizer = await self._tokenizer(task)
            if tokenizer is None:
                return Ids(b"", unread=reckon(_text_of(content, field)))
            if isinstance(tokenizer, EngineTokenizer):
                if cut and not cut.side and content.add_special_tokens:
                    raise task.refused(
                        "needs truncation_side beside add_special_tokens: the engine renders the chat"
                    )
                try:
                    # Chats have a store beside that of texts, so no text can be taken for a chat.
                    name, text = f"{model.tokenizer}\nchat", _text_of(content, field)
                    found = await self._encode(name, tokenizer.chats, text, task, special=False)
                    task.tokenised("", found)
                    unread = reckon(text, found.covered_chars)
                    return truncated(Ids(found.ids, 0, found.memo, unread), cut)
                except InvalidTextError as error:
                    raise BadRequestError(field, str(error)) from error
                except TokenizerUnavailableError as error:
                    if not self._renderer.knows(model.name):
                        raise self._unavailable(task, error) from error
        text = await self._render(content, task)
        task.step("render the chat")
        return await self._text(text, task, special=content.add_special_tokens)

    async def _render(self, content: ChatBody, task: PromptTask) -> str:
        name = task.prompt.model.name
        try:
            return await self._renderer.render(name, content.chat, task.left.seconds())
        except KeyError as error:
            raise NoTokenizerError(
                "prompt.chat_body", f"model {name!r} has no chat template; send token ids"
            ) from error
        except (RenderCrashedError, RenderTimeoutError):
            raise
        except BrokenTemplateError as error:
            # This template fails for every chat, so the request is not at fault.
            raise NoTokenizerError("prompt.chat_body.messages", error.problem) from error
        except TemplateError as error:
            field = f"prompt.chat_body.{error.field or 'messages'}"
            raise BadRequestError(field, error.problem) from error

    async def _tokenizer(self, task: PromptTask) -> Tokenizer | None:
        name = task.prompt.model.tokenizer
        tokenizer = self._tokenizers.held(name)
        try:
            if tokenizer is None:
                # The timeout ends only the wait: the cache goes on loading.
                async with asyncio.timeout(task.left.seconds()):
                    tokenizer = await self._tokenizers.get(name)
        except TimeoutError:
            return None
        except TokenizerUnavailableError as error:
            raise self._unavailable(task, error) from error
        task.step("have the tokenizer")
        return tokenizer

    async def _encode(
        self,
        tokenizer_id: str,
        tokenizer: Tokenizer,
        text: str,
        task: PromptTask,
        *,
        special: bool,
    ) -> Tokens:
        found = await self._pool.encode(
            tokenizer_id,
            tokenizer,
            text,
            add_special_tokens=special,
            timeout=task.left.seconds(),
        )
        task.step("tokenise")
        self._troubles.pop(task.prompt.model.name, None)
        self._limits.check_tokens(task.prompt.field, len(found.ids) // TOKEN_BYTES)
        return found

    def _unavailable(
        self, task: PromptTask, error: TokenizerUnavailableError
    ) -> TokenizerUnavailableError:
        model = task.prompt.model
        # A traced request is somebody's look, whose failure says nothing of the traffic.
        if task.trace is None:
            self._troubles[model.name] = str(error)
        return TokenizerUnavailableError(
            f"model {model.name!r}: its tokenizer is unavailable: {error}; token ids need none"
        )


def truncated(ids: Ids, truncation: Truncation | None) -> Ids:
    """Return a prompt's tokens, truncated as by the engine."""
    if truncation is None or (not ids.unread and _fits(ids.packed, truncation)):
        return ids
    if not ids.unread:
        return Ids(cut(ids.packed, truncation), ids.covered_chars)
    # The prompt's last tokens are not known, so neither are those that the engine would keep.
    most = min(len(ids.packed) // TOKEN_BYTES + ids.unread, truncation.tokens)
    return Ids(b"", unread=most)


def _fits(packed: bytes, truncation: Truncation) -> bool:
    return len(packed) <= truncation.tokens * TOKEN_BYTES


def reckoned(prompt: CheckedPrompt) -> Ids:
    """Return a prompt's tokens without a tokenizer; for a text or chat, only an estimated number.

    Raises BadRequestError for a chat that cannot be written as JSON.
    """
    content = prompt.content
    if isinstance(content, bytes):
        return truncated(Ids(content), prompt.truncation)
    text = content.text if isinstance(content, Text) else _text_of(content, prompt.field)
    return truncated(Ids(b"", unread=reckon(text)), prompt.truncation)


def _text_of(chat: ChatBody, field: str) -> str:
    try:
        return chat_text(chat.request())
    except InvalidTextError as error:
        raise BadRequestError(field, str(error)) from error


def reckon(text: str, covered_chars: int = 0) -> int:
    """Return the estimated number of tokens of a text after its first `covered_chars` characters."""
    return -(-(len(text) - covered_chars) // CHARS_PER_TOKEN)
