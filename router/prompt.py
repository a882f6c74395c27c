"""From a request's prompt to the tokens that engines cache."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from indexer.extra import Item
from indexer.token import TOKEN_BYTES, highest_token, pack_tokens
from prefixstore.pool import TokenizerPool
from prefixstore.renderer import RenderCrashedError, Renderer, RenderTimeoutError
from prefixstore.template import TemplateError
from prefixstore.tokenizer import InvalidTextError
from router.body import BadPromptError, Body, ChatBody, parse_chat, parse_completions
from router.models import Model, ModelTable
from router.pb.warmpath.v1 import router_pb2 as pb
from router.pb.warmpath.wire.v1 import score_request_pb2 as wire
from router.score import TokenPrompt
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
    """Characters of the text that the tokens cover; 0 for token ids."""


class PromptReader:
    """Reads prompts of all forms."""

    def __init__(
        self,
        models: ModelTable,
        renderer: Renderer,
        pool: TokenizerPool,
        limits: Limits,
    ) -> None:
        self._models = models
        self._renderer = renderer
        self._pool = pool
        self._limits = limits

    @staticmethod
    def waits(message: AnyPrompt) -> bool:
        """Whether reading a prompt may take a tokenizer, and so time."""
        return not message.HasField("token_ids_packed") and not message.HasField("token_ids")

    async def read(self, message: AnyPrompt, timeout: float) -> ReadPrompt:
        """Read a prompt; a chat is rendered and text tokenised for at most `timeout` seconds.

        Raises BadPromptError and UnknownModelError, what the pool and the renderer raise where they
        are full or closed, and RenderTimeoutError and RenderCrashedError.
        """
        form = self._form(message)
        body: Body | None = None
        if form == "chat_body":
            body = parse_chat(message.chat_body, "prompt.chat_body")
        elif form == "completions_body":
            body = parse_completions(message.completions_body, "prompt.completions_body")
        model, lora = self._model(message, body)
        ids, covered = await self._tokens(message, form, body, model, timeout)
        return ReadPrompt(
            TokenPrompt(
                model=model.name,
                ids=ids,
                lora=lora,
                cache_salt=_salt(message, body),
                items=_items(message, len(ids) // TOKEN_BYTES if not covered else None),
                reads_cache=body is None or body.reads_cache,
            ),
            covered,
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
    ) -> tuple[bytes, int]:
        if form == "token_ids_packed":
            return self._checked(message.token_ids_packed, model, "prompt.token_ids_packed"), 0
        if form == "token_ids":
            field = "prompt.token_ids.ids"
            if isinstance(message, wire.Prompt):
                packed = listed_ids(message.token_ids, field)
            else:
                self._count(len(message.token_ids.ids), field)
                packed = pack_tokens(message.token_ids.ids)
            return self._checked(packed, model, field), 0
        if body is None:
            return await self._encode(message.text, "prompt.text", model, timeout, special=True)
        content = body.content
        if isinstance(content, ChatBody):
            clock = asyncio.get_running_loop().time
            end = clock() + timeout
            text = await self._render(content, model, timeout)
            timeout = max(0.0, end - clock())
            field, special = "prompt.chat_body", content.add_special_tokens
        elif isinstance(content.prompt, str):
            text = content.prompt
            field, special = "prompt.completions_body.prompt", content.add_special_tokens
        else:
            field = "prompt.completions_body.prompt"
            self._count(len(content.prompt), field)
            try:
                packed = pack_tokens(content.prompt)
            except ValueError as error:
                raise BadPromptError(field, str(error)) from error
            return self._checked(packed, model, field), 0
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
        if model.vocab_size:
            highest = highest_token(packed)
            if highest >= model.vocab_size:
                raise BadPromptError(
                    field,
                    f"holds token id {highest}; the vocabulary of {model.name!r} "
                    f"has {model.vocab_size}, from 0",
                )
        return packed

    async def _render(self, content: ChatBody, model: Model, timeout: float) -> str:
        try:
            return await self._renderer.render(model.name, content.chat, timeout)
        except KeyError as error:
            raise BadPromptError(
                "prompt.chat_body", f"model {model.name!r} has no chat template; send token ids"
            ) from error
        except (RenderCrashedError, RenderTimeoutError):
            raise
        except TemplateError as error:
            field = f"prompt.chat_body.{error.field or 'messages'}"
            raise BadPromptError(field, error.problem) from error

    async def _encode(
        self, text: str, field: str, model: Model, timeout: float, *, special: bool
    ) -> tuple[bytes, int]:
        if not text:
            raise BadPromptError(field, "is empty; at least one character is needed")
        if not model.tokenizer:
            raise BadPromptError(
                field, f"model {model.name!r} has no tokenizer configured; send token ids"
            )
        try:
            found = await self._pool.encode(
                model.tokenizer, text, add_special_tokens=special, timeout=timeout
            )
        except InvalidTextError as error:
            raise BadPromptError(field, str(error)) from error
        self._count(len(found.ids) // TOKEN_BYTES, field)
        return found.ids, found.covered_chars


def _salt(message: AnyPrompt, body: Body | None) -> str:
    in_body = body.cache_salt if body else ""
    if message.cache_salt and in_body and message.cache_salt != in_body:
        raise BadPromptError("prompt.cache_salt", "differs from the body's cache_salt")
    return message.cache_salt or in_body


def _items(message: AnyPrompt, tokens: int | None) -> tuple[Item, ...]:
    """Return the multimodal items; `tokens` is None where a text may not be wholly tokenised."""
    items = []
    end = 0
    given: Sequence[pb.MultimodalItem | wire.MultimodalItem] = message.multimodal
    for position, item in enumerate(given):
        field = f"prompt.multimodal[{position}]"
        if not item.hash:
            raise BadPromptError(f"{field}.hash", "is empty")
        if not item.length:
            raise BadPromptError(f"{field}.length", "is 0; an item has at least one token")
        if item.offset < end:
            raise BadPromptError(f"{field}.offset", f"is {item.offset}, before the last item's end")
        end = item.offset + item.length
        if tokens is not None and end > tokens:
            raise BadPromptError(field, f"ends at token {end}; the prompt has {tokens}")
        items.append(Item(item.hash, item.offset, item.length))
    return tuple(items)
