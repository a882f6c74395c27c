"""From a request's prompt to the tokens that engines cache."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from indexer.token import TOKEN_BYTES, highest_token, pack_tokens
from prefixstore.memo import KeyMemo
from prefixstore.pool import TokenizerPool
from prefixstore.remote import ChatEncoder, chat_text
from prefixstore.template import ChatTemplate, TemplateError
from prefixstore.tokenizer import InvalidTextError, Tokenizer, TokenizerUnavailableError
from prefixstore.tokenizer_cache import TokenizerCache
from router.body import (
    BadPromptError,
    Body,
    ChatBody,
    CompletionBody,
    parse_chat,
    parse_completions,
)
from router.items import read_items
from router.models import Model, ModelTable
from router.pb.warmpath.v1 import router_pb2 as pb
from router.pb.warmpath.wire.v1 import score_request_pb2 as wire
from router.score import TokenPrompt
from router.time_left import TimeLeft
from router.wire import listed_ids

AnyPrompt = pb.Prompt | wire.Prompt
"""A prompt as protobuf reads it, or as `router.wire` does."""

FORMS = ("text", "chat_body", "completions_body", "token_ids_packed", "token_ids")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a prompt may be at most."""

    max_prompt_bytes: int
    max_prompt_tokens: int


class ReadPrompt(msgspec.Struct, frozen=True):
    """A prompt, read."""

    prompt: TokenPrompt
    covered_chars: int
    """Characters of the text that the tokens cover; 0 for token ids. A chat that the engine rendered
    counts as the JSON that it was asked with."""


class Ids(NamedTuple):
    """A prompt's tokens."""

    packed: bytes
    covered_chars: int = 0
    """As in `ReadPrompt`."""
    memo: KeyMemo | None = None


class PromptReader:
    """Reads prompts of all forms."""

    def __init__(
        self,
        models: ModelTable,
        templates: Mapping[str, ChatTemplate],
        tokenizers: TokenizerCache,
        pool: TokenizerPool,
        limits: Limits,
    ) -> None:
        """`templates` may gain a model's as its tokenizer is loaded."""
        self._models = models
        self._templates = templates
        self._tokenizers = tokenizers
        self._pool = pool
        self._limits = limits

    @staticmethod
    def waits(message: AnyPrompt) -> bool:
        """Whether reading a prompt may take a tokenizer, and so time."""
        return not message.HasField("token_ids_packed") and not message.HasField("token_ids")

    async def read(self, message: AnyPrompt, timeout: float) -> ReadPrompt:
        """Read a prompt; text is tokenised for at most `timeout` seconds.

        Raises BadPromptError and UnknownModelError, TokenizerUnavailableError where the model's
        tokenizer cannot be had, and what the pool raises where it is full. A tokenizer that is still
        being loaded when the time is over is as one that has not come to the text: no token is known.
        """
        form = self._form(message)
        body: Body | None = None
        if form == "chat_body":
            body = parse_chat(message.chat_body, "prompt.chat_body")
        elif form == "completions_body":
            body = parse_completions(message.completions_body, "prompt.completions_body")
        model, lora = self._model(message, body)
        found = await self._tokens(message, form, body, model, timeout)
        ids = found.packed
        return ReadPrompt(
            TokenPrompt(
                model=model.name,
                ids=ids,
                lora=lora,
                cache_salt=_salt(message, body),
                items=read_items(
                    message, len(ids) // TOKEN_BYTES if _gives_ids(form, body) else None
                ),
                reads_cache=body is None or body.reads_cache,
                memo=found.memo,
            ),
            found.covered_chars,
        )

    def _form(self, message: AnyPrompt) -> str:
        given = [form for form in FORMS if message.HasField(form)]  # type: ignore[arg-type]
        if not given:
            raise BadPromptError("prompt", f"is missing; give one of {', '.join(FORMS)}")
        if len(given) > 1:
            raise BadPromptError("prompt", f"is given as {' and '.join(given)}; give one of them")
        form = given[0]
        limit = self._limits.max_prompt_bytes
        if form in ("text", "chat_body", "completions_body"):
            value = getattr(message, form)
            size = len(value.encode()) if isinstance(value, str) else len(value)
            if size > limit:
                raise BadPromptError(
                    f"prompt.{form}", f"has {size} bytes; limits.max-prompt-bytes is {limit}"
                )
        return form

    def _model(self, message: AnyPrompt, body: Body | None) -> tuple[Model, str]:
        in_body = body.model if body else ""
        if message.model and in_body and message.model != in_body:
            raise BadPromptError(
                "prompt.model", f"is {message.model!r}, but the body's is {in_body!r}"
            )
        name = message.model or in_body
        if not name:
            raise BadPromptError("prompt.model", "is missing")
        model, lora = self._models.resolve(name)
        if lora and message.lora and message.lora != lora:
            raise BadPromptError("prompt.lora", f"is {message.lora!r}, but {name!r} is an adapter")
        return model, lora or message.lora

    async def _tokens(
        self, message: AnyPrompt, form: str, body: Body | None, model: Model, timeout: float
    ) -> Ids:
        if form == "token_ids_packed":
            return Ids(self._checked(message.token_ids_packed, model, "prompt.token_ids_packed"))
        if form == "token_ids":
            field = "prompt.token_ids.ids"
            if isinstance(message, wire.Prompt):
                packed = listed_ids(message.token_ids, field)
            else:
                self._count(len(message.token_ids.ids), field)
                packed = pack_tokens(message.token_ids.ids)
            return Ids(self._checked(packed, model, field))
        if body is None:
            return await self._encode(message.text, "prompt.text", model, timeout, special=True)
        content = body.content
        if isinstance(content, ChatBody):
            return await self._chat(content, model, timeout)
        if isinstance(content.prompt, str):
            text = content.prompt
            field, special = "prompt.completions_body.prompt", content.add_special_tokens
        else:
            field = "prompt.completions_body.prompt"
            self._count(len(content.prompt), field)
            try:
                packed = pack_tokens(content.prompt)
            except ValueError as error:
                raise BadPromptError(field, str(error)) from error
            return Ids(self._checked(packed, model, field))
        return await self._encode(text, field, model, timeout, special=special)

    def _count(self, tokens: int, field: str) -> None:
        limit = self._limits.max_prompt_tokens
        if tokens > limit:
            raise BadPromptError(field, f"has {tokens} tokens; limits.max-prompt-tokens is {limit}")

    def _checked(self, packed: bytes, model: Model, field: str) -> bytes:
        if len(packed) % TOKEN_BYTES:
            raise BadPromptError(
                field, f"has {len(packed)} bytes; packed token ids take {TOKEN_BYTES} each"
            )
        if not packed:
            raise BadPromptError(field, "is empty; at least one token is needed")
        self._count(len(packed) // TOKEN_BYTES, field)
        vocab_size = model.vocab_size or self._tokenizers.vocab_size(model.tokenizer)
        if vocab_size:
            highest = highest_token(packed)
            if highest >= vocab_size:
                raise BadPromptError(
                    field,
                    f"holds token id {highest}; the vocabulary of {model.name!r} "
                    f"has {vocab_size}, from 0",
                )
        return packed

    async def _chat(self, content: ChatBody, model: Model, timeout: float) -> Ids:
        """Return a chat's tokens: the engine's own where it is asked, else through the template."""
        field = "prompt.chat_body"
        left = TimeLeft(timeout)
        if model.tokenizer:
            tokenizer = await self._tokenizer(model, timeout)
            if tokenizer is None:
                return Ids(b"")
            if isinstance(tokenizer, ChatEncoder):
                try:
                    # Beside the model's texts, and no text can be taken for a chat.
                    name, text = f"{model.tokenizer}\nchat", chat_text(content.request())
                    return await self._pooled(
                        name, tokenizer.chats, text, field, left.seconds(), special=False
                    )
                except InvalidTextError as error:
                    raise BadPromptError(field, str(error)) from error
                except TokenizerUnavailableError as error:
                    if model.name not in self._templates:
                        raise _unavailable(model, error) from error
        text = self._render(content, model)
        special = content.add_special_tokens
        return await self._encode(text, field, model, left.seconds(), special=special)

    def _render(self, content: ChatBody, model: Model) -> str:
        template = self._templates.get(model.name)
        if template is None:
            raise BadPromptError(
                "prompt.chat_body", f"model {model.name!r} has no chat template; send token ids"
            )
        try:
            return template.render(
                content.messages,
                tools=content.tools,
                add_generation_prompt=content.add_generation_prompt,
                continue_final_message=content.continue_final_message,
                kwargs=content.template_kwargs,
            )
        except TemplateError as error:
            raise BadPromptError("prompt.chat_body.messages", str(error)) from error

    async def _encode(
        self, text: str, field: str, model: Model, timeout: float, *, special: bool
    ) -> Ids:
        if not text:
            raise BadPromptError(field, "is empty; at least one character is needed")
        if not model.tokenizer:
            raise BadPromptError(
                field, f"model {model.name!r} has no tokenizer configured; send token ids"
            )
        left = TimeLeft(timeout)
        tokenizer = await self._tokenizer(model, timeout)
        if tokenizer is None:
            return Ids(b"")
        try:
            return await self._pooled(
                model.tokenizer, tokenizer, text, field, left.seconds(), special=special
            )
        except InvalidTextError as error:
            raise BadPromptError(field, str(error)) from error
        except TokenizerUnavailableError as error:
            raise _unavailable(model, error) from error

    async def _pooled(
        self,
        tokenizer_id: str,
        tokenizer: Tokenizer,
        text: str,
        field: str,
        timeout: float,
        *,
        special: bool,
    ) -> Ids:
        found = await self._pool.encode(
            tokenizer_id, tokenizer, text, add_special_tokens=special, timeout=timeout
        )
        self._count(len(found.ids) // TOKEN_BYTES, field)
        return Ids(found.ids, found.covered_chars, found.memo)

    async def _tokenizer(self, model: Model, timeout: float) -> Tokenizer | None:
        """Return a model's tokenizer, None where it is not loaded in time."""
        try:
            # The load is not the caller's to end: the cache goes on with it.
            async with asyncio.timeout(timeout):
                return await self._tokenizers.get(model.tokenizer)
        except TimeoutError:
            return None
        except TokenizerUnavailableError as error:
            raise _unavailable(model, error) from error


def _unavailable(model: Model, error: TokenizerUnavailableError) -> TokenizerUnavailableError:
    return TokenizerUnavailableError(
        f"model {model.name!r}: its tokenizer cannot be had: {error}; token ids need none"
    )


def _gives_ids(form: str, body: Body | None) -> bool:
    if body is None:
        return form != "text"
    return isinstance(body.content, CompletionBody) and not isinstance(body.content.prompt, str)


def _salt(message: AnyPrompt, body: Body | None) -> str:
    in_body = body.cache_salt if body else ""
    if message.cache_salt and in_body and message.cache_salt != in_body:
        raise BadPromptError("prompt.cache_salt", "differs from the body's cache_salt")
    return message.cache_salt or in_body
