"""From a request's prompt to the tokens that engines cache."""

from dataclasses import dataclass
from typing import Literal

import msgspec

from indexer.keys.token import TOKEN_BYTES, highest_token, pack_tokens
from prefixstore.chats.renderer import RenderCrashedError, RendererFullError, RenderTimeoutError
from prefixstore.pool import PoolFullError
from prefixstore.tokenizers.remote import chat_text
from prefixstore.tokenizers.tokenizer import TokenizerUnavailableError
from router.pb.warmpath.v1 import router_pb2 as pb
from router.pb.warmpath.wire.v1 import score_request_pb2 as wire
from router.prompt.assemble import Texts
from router.prompt.bad_request import BadRequestError, NoTokenizerError
from router.prompt.body import Body, ChatBody, CompletionBody, parse_chat, parse_completions
from router.prompt.bounds import check_name
from router.prompt.deadline import TimeLeft
from router.prompt.items import read_items
from router.prompt.models import Model
from router.prompt.token_ids import listed_ids
from router.prompt.token_prompt import TokenPrompt
from router.prompt.tokenise import Asked, Ids, Tokeniser, reckon, truncated
from router.prompt.trace import Trace

AnyPrompt = pb.Prompt | wire.Prompt
"""A prompt of the contract, or of Score's own schema, which leaves a list of ids packed."""

UNREAD = (
    NoTokenizerError,
    PoolFullError,
    RenderCrashedError,
    RenderTimeoutError,
    RendererFullError,
    TokenizerUnavailableError,
)
"""What says that a text cannot be tokenised now, whatever is in it."""

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
    lora_path: str = ""
    """The adapter that a body names as SGLang takes it."""
    unread: int = 0
    """Tokens, as reckoned, of what is left of a text that was not tokenised."""
    unread_because: str = ""


class PromptReader:
    """Reads prompts of all forms."""

    def __init__(
        self,
        texts: Texts,
        limits: Limits,
    ) -> None:
        self._models = texts.models
        self._limits = limits
        self._untokenised: dict[tuple[str, str], str] = {}
        """By model and form: that nothing is configured which could tokenise what was asked last."""
        self._tokeniser = Tokeniser(texts.tokenizers, texts.renderer, texts.pool, self._count)

    @staticmethod
    def waits(message: AnyPrompt) -> bool:
        """Whether reading a prompt may take a tokenizer, and so time."""
        return not message.HasField("token_ids_packed") and not message.HasField("token_ids")

    def troubles(self) -> dict[str, str]:
        """Return by model why its texts or chats cannot be tokenised, as it was last time."""
        asked = {model: reason for (model, _), reason in self._untokenised.items()}
        return asked | self._tokeniser.troubles()

    async def read(
        self,
        message: AnyPrompt,
        timeout: float,
        trace: Trace | None = None,
        *,
        may_reckon: bool = False,
    ) -> ReadPrompt:
        """Read a prompt; a chat is rendered and text tokenised for at most `timeout` seconds.

        Raises BadRequestError and UnknownModelError, TokenizerUnavailableError where the model's
        tokenizer cannot be had, what the pool and the renderer raise where they are full or closed, and
        RenderTimeoutError and RenderCrashedError. A tokenizer that is still being loaded when the time
        is over is as one that has not come to the text: no token is known. With `may_reckon` that is so
        too wherever a text cannot be tokenised now, instead of the errors that say so.
        """
        form = self._form(message)
        body: Body | None = None
        if form == "chat_body":
            body = await parse_chat(message.chat_body, "prompt.chat_body")
        elif form == "completions_body":
            most = self._limits.max_prompt_tokens
            body = await parse_completions(message.completions_body, f"prompt.{form}", most)
        model, lora = self._model(message, body)
        truncation = body.truncation if body else None
        if truncation and message.multimodal:
            raise BadRequestError(
                f"prompt.{form}.truncate_prompt_tokens", "is not supported beside multimodal items"
            )
        asked = Asked(model, TimeLeft(timeout), trace, truncation)
        asked.step("read the request")
        because = ""
        try:
            found = await self._tokens(message, form, body, asked)
            self._untokenised.pop((model.name, form), None)
        except UNREAD as error:
            if isinstance(error, NoTokenizerError):
                self._untokenised[model.name, form] = str(error)
            if not may_reckon:
                raise
            unread = Ids(b"", unread=reckon(_text(message, body)))
            found, because = truncated(unread, truncation), str(error)
        if found.unread and not because:
            because = "the text was not tokenised in time"
        ids = found.packed
        return ReadPrompt(
            TokenPrompt(
                model=model.name,
                ids=ids,
                lora=lora,
                cache_salt=_either(message, body, "cache_salt"),
                extra_key=_either(message, body, "extra_key"),
                items=read_items(
                    message, len(ids) // TOKEN_BYTES if _gives_ids(form, body) else None
                ),
                reads_cache=body is None or body.reads_cache,
                memo=found.memo,
            ),
            found.covered_chars,
            lora_path=_lora_path(body),
            unread=found.unread,
            unread_because=because,
        )

    def _form(self, message: AnyPrompt) -> str:
        given = [form for form in FORMS if message.HasField(form)]  # type: ignore[arg-type]
        if not given:
            raise BadRequestError("prompt", f"is missing; give one of {', '.join(FORMS)}")
        if len(given) > 1:
            raise BadRequestError("prompt", f"is given as {' and '.join(given)}; give one of them")
        form = given[0]
        limit = self._limits.max_prompt_bytes
        if form in ("text", "chat_body", "completions_body"):
            value = getattr(message, form)
            # A plain text has as many bytes as characters; to encode megabytes takes milliseconds.
            plain = isinstance(value, bytes) or value.isascii()
            size = len(value) if plain else len(value.encode())
            if size > limit:
                raise BadRequestError(
                    f"prompt.{form}", f"has {size} bytes; limits.max-prompt-bytes is {limit}"
                )
        return form

    def _model(self, message: AnyPrompt, body: Body | None) -> tuple[Model, str]:
        in_body = body.model if body else ""
        if message.model and in_body and message.model != in_body:
            raise BadRequestError(
                "prompt.model", f"is {message.model!r}, but the body's is {in_body!r}"
            )
        name = message.model or in_body
        if not name:
            raise BadRequestError("prompt.model", "is missing")
        check_name("prompt.model", name)
        check_name("prompt.lora", message.lora)
        model, lora = self._models.resolve(name)
        if lora and message.lora and message.lora != lora:
            raise BadRequestError("prompt.lora", f"is {message.lora!r}, but {name!r} is an adapter")
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
        packed = self._checked(content.prompt, model, field)
        return truncated(Ids(packed), asked.truncation)

    def _count(self, tokens: int, field: str) -> None:
        limit = self._limits.max_prompt_tokens
        if tokens > limit:
            raise BadRequestError(
                field, f"has {tokens} tokens; limits.max-prompt-tokens is {limit}"
            )

    def _checked(self, packed: bytes, model: Model, field: str) -> bytes:
        if len(packed) % TOKEN_BYTES:
            raise BadRequestError(
                field, f"has {len(packed)} bytes; packed token ids take {TOKEN_BYTES} each"
            )
        if not packed:
            raise BadRequestError(field, "is empty; at least one token is needed")
        self._count(len(packed) // TOKEN_BYTES, field)
        vocab_size = self._tokeniser.vocab_size(model)
        if vocab_size:
            highest = highest_token(packed)
            if highest >= vocab_size:
                raise BadRequestError(
                    field,
                    f"holds token id {highest}; the vocabulary of {model.name!r} "
                    f"has {vocab_size}, from 0",
                )
        return packed


def _gives_ids(form: str, body: Body | None) -> bool:
    if body is None:
        return form != "text"
    return isinstance(body.content, CompletionBody) and not isinstance(body.content.prompt, str)


def _text(message: AnyPrompt, body: Body | None) -> str:
    """Return the text that a prompt would have to be tokenised from, or one of about its length."""
    if body is None:
        return message.text
    if isinstance(body.content, ChatBody):
        return chat_text(body.content.request())
    return body.content.prompt if isinstance(body.content.prompt, str) else ""


def _lora_path(body: Body | None) -> str:
    path = body.lora_path if body else ""
    check_name("prompt.lora_path", path)
    return path


def _either(message: AnyPrompt, body: Body | None, name: Literal["cache_salt", "extra_key"]) -> str:
    """Return a field of the prompt or of its body. Raises BadRequestError where the two differ."""
    given: str = getattr(message, name)
    in_body: str = getattr(body, name) if body else ""
    if given and in_body and given != in_body:
        raise BadRequestError(f"prompt.{name}", f"differs from the body's {name}")
    check_name(f"prompt.{name}", given or in_body)
    return given or in_body
