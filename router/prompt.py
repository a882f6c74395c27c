"""From a request's prompt to the tokens that engines cache."""

from dataclasses import dataclass

import msgspec

from indexer.token import TOKEN_BYTES, highest_token, pack_tokens
from router.body import (
    BadPromptError,
    Body,
    ChatBody,
    CompletionBody,
    parse_chat,
    parse_completions,
)
from router.items import read_items
from router.models import Model
from router.pb.warmpath.v1 import router_pb2 as pb
from router.pb.warmpath.wire.v1 import score_request_pb2 as wire
from router.texts import Texts
from router.time_left import TimeLeft
from router.token_prompt import TokenPrompt
from router.tokenise import Asked, Ids, Tokeniser
from router.trace import Trace
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
    """Characters of the text that the tokens cover; 0 for token ids, and for a chat that the engine
    rendered."""
    unread: int = 0
    """Tokens, as estimated, of what is left of a text that was not tokenised in time."""


class PromptReader:
    """Reads prompts of all forms."""

    def __init__(
        self,
        texts: Texts,
        limits: Limits,
    ) -> None:
        self._models = texts.models
        self._limits = limits
        self._tokeniser = Tokeniser(texts.tokenizers, texts.renderer, texts.pool, self._count)

    @staticmethod
    def waits(message: AnyPrompt) -> bool:
        """Whether reading a prompt may take a tokenizer, and so time."""
        return not message.HasField("token_ids_packed") and not message.HasField("token_ids")

    async def read(
        self, message: AnyPrompt, timeout: float, trace: Trace | None = None
    ) -> ReadPrompt:
        """Read a prompt; a chat is rendered and text tokenised for at most `timeout` seconds.

        Raises BadPromptError and UnknownModelError, TokenizerUnavailableError where the model's
        tokenizer cannot be had, what the pool and the renderer raise where they are full or closed, and
        RenderTimeoutError and RenderCrashedError. A tokenizer that is still being loaded when the time
        is over is as one that has not come to the text: no token is known.
        """
        form = self._form(message)
        body: Body | None = None
        if form == "chat_body":
            body = parse_chat(message.chat_body, "prompt.chat_body")
        elif form == "completions_body":
            body = parse_completions(message.completions_body, "prompt.completions_body")
        model, lora = self._model(message, body)
        asked = Asked(model, TimeLeft(timeout), trace)
        asked.step("read the request")
        found = await self._tokens(message, form, body, asked)
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
            found.unread,
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

    async def _tokens(self, message: AnyPrompt, form: str, body: Body | None, asked: Asked) -> Ids:
        model, tokeniser = asked.model, self._tokeniser
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
            return await tokeniser.text(message.text, "prompt.text", asked, special=True)
        content = body.content
        if isinstance(content, ChatBody):
            return await tokeniser.chat(content, asked)
        field = "prompt.completions_body.prompt"
        if isinstance(content.prompt, str):
            special = content.add_special_tokens
            return await tokeniser.text(content.prompt, field, asked, special=special)
        self._count(len(content.prompt), field)
        try:
            packed = pack_tokens(content.prompt)
        except ValueError as error:
            raise BadPromptError(field, str(error)) from error
        return Ids(self._checked(packed, model, field))

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
        vocab_size = self._tokeniser.vocab_size(model)
        if vocab_size:
            highest = highest_token(packed)
            if highest >= vocab_size:
                raise BadPromptError(
                    field,
                    f"holds token id {highest}; the vocabulary of {model.name!r} "
                    f"has {vocab_size}, from 0",
                )
        return packed


def _gives_ids(form: str, body: Body | None) -> bool:
    if body is None:
        return form != "text"
    return isinstance(body.content, CompletionBody) and not isinstance(body.content.prompt, str)


def _salt(message: AnyPrompt, body: Body | None) -> str:
    in_body = body.cache_salt if body else ""
    if message.cache_salt and in_body and message.cache_salt != in_body:
        raise BadPromptError("prompt.cache_salt", "differs from the body's cache_salt")
    return message.cache_salt or in_body
