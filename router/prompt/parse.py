"""Parses the prompt of a request's message, and checks all limits that need no tokenizer."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
from google.protobuf.unknown_fields import UnknownFieldSet

from warmpath.indexer.keys.key import TOKEN_BYTES, Item, pack_tokens
from warmpath.process.loop import in_turns
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.wire.v1 import score_request_pb2 as wire
from warmpath.router.prompt.bodies.fields import RawFields
from warmpath.router.prompt.bodies.openai import (
    ChatBody,
    PromptBody,
    Text,
    parse_chat,
    parse_completions,
)
from warmpath.router.prompt.limits import BadRequestError, PromptLimits, check_item, check_name
from warmpath.router.prompt.models import Model, ModelTable
from warmpath.router.prompt.plain import PlainPrompt, highest_token, unpacked
from warmpath.router.prompt.token_prompt import Form
from warmpath.router.prompt.truncate import Truncation

AnyPrompt = pb.Prompt | wire.Prompt
"""A prompt of the contract, or of Score's own schema, which leaves a list of ids packed."""

FIELDS = {
    "text": "prompt.text",
    "chat_body": "prompt.chat_body",
    "completions_body": "prompt.completions_body.prompt",
    "token_ids_packed": "prompt.token_ids_packed",
    "token_ids": "prompt.token_ids.ids",
}
"""For each form of a prompt, the field of the request that has its content."""

ITEMS_AT_ONCE = 256
"""Multimodal items that are read without a pause: about a millisecond's work."""
LONG = 256 << 10
"""Bytes of packed ids, or characters of a text: other tasks run while a longer prompt is read."""
MOST_CHARACTER_BYTES = 4
"""Most bytes that a character takes in UTF-8."""


class CheckedPrompt(msgspec.Struct, frozen=True):
    """A prompt that has passed all checks that need no tokenizer."""

    model: Model
    adapter: str
    """The adapter, by the request's name of the model; empty for none."""
    field: str
    """The request's field that holds the content, for errors about it: `prompt.text`, say."""
    content: bytes | Text | ChatBody
    """Token ids (4 bytes each, little-endian: `pack_tokens`), a text or a chat."""
    cache_salt: str
    extra_key: str
    """SGLang's `extra_key`: requests with different ones share no cached blocks."""
    items: tuple[Item, ...]
    lora_path: str
    """The adapter that a body names in SGLang's field `lora_path`."""
    reads_cache: bool
    truncation: Truncation | None
    session: str = ""
    """The session that its body names; empty if it names none."""

    @property
    def form(self) -> Form:
        """The kind of its content, whichever field it came in."""
        if isinstance(self.content, bytes):
            return "ids"
        return "text" if isinstance(self.content, Text) else "chat"


def gives_ids(message: AnyPrompt) -> bool:
    """Return whether a prompt is given as token ids, so that reading it waits for no tokenizer."""
    return message.HasField("token_ids_packed") or message.HasField("token_ids")


class PromptParser:
    """Parses prompts of all forms.

    `vocab_size` returns one more than a model's highest token id, or 0 if that is not known.
    """

    def __init__(
        self, models: ModelTable, limits: PromptLimits, vocab_size: Callable[[Model], int]
    ) -> None:
        self._models = models
        self._limits = limits
        self._vocab_size = vocab_size

    async def parse(
        self, message: AnyPrompt, *, may_lack: bool = False, fields: RawFields | None = None
    ) -> CheckedPrompt:
        """Parse a prompt; `fields` are those of its body, if they are known.

        Raises BadRequestError and UnknownModelError.

        With `may_lack` a prompt without content is accepted: it has no token ids, and its model's name
        may be empty.
        """
        form = self._form(message, may_lack=may_lack)
        body = PromptBody()
        if form == "chat_body":
            body = await parse_chat(message.chat_body, "prompt.chat_body", fields)
        elif form == "completions_body":
            most = self._limits.max_prompt_tokens
            raw = message.completions_body
            body = await parse_completions(raw, f"prompt.{form}", most, fields)
        elif form == "text":
            body = PromptBody(await self._text(message))
        model, adapter = self._model(message, body, may_lack=not form)
        if body.truncation and message.multimodal:
            raise BadRequestError(
                f"prompt.{form}.truncate_prompt_tokens", "is not supported beside multimodal items"
            )
        field = FIELDS.get(form, "prompt")
        content = self._content(message, form, body)
        if not form and message.multimodal:
            raise BadRequestError("prompt.multimodal", "is given without a prompt")
        if form and isinstance(content, bytes):
            self._check_ids(content, model, field)
            if len(content) > LONG:
                # Matching the prompt may take as long as reading it, so other tasks may run between.
                await asyncio.sleep(0)
        return CheckedPrompt(
            model=model,
            adapter=adapter,
            field=field,
            content=content,
            cache_salt=_either(message, body, "cache_salt"),
            extra_key=_either(message, body, "extra_key"),
            items=await _items(message, content) if message.multimodal else (),
            lora_path=check_name("prompt.lora_path", body.lora_path),
            reads_cache=body.reads_cache,
            truncation=body.truncation,
            session=body.session,
        )

    def plain(self, prompt: PlainPrompt) -> tuple[Model, str]:
        """Check a plain prompt; return its model and adapter.

        Raises BadRequestError and UnknownModelError.
        """
        name, packed, is_listed = prompt
        check_name("prompt.model", name)
        if not name:
            raise BadRequestError("prompt.model", "is missing")
        model, adapter = self._models.resolve(name)
        self._check_ids(packed, model, FIELDS["token_ids" if is_listed else "token_ids_packed"])
        return model, adapter or self._models.shadow(name)

    def _form(self, message: AnyPrompt, *, may_lack: bool) -> str:
        given = [form for form in FIELDS if message.HasField(form)]  # type: ignore[arg-type]
        if not given and may_lack:
            return ""
        if not given:
            raise BadRequestError("prompt", f"is missing; give one of {', '.join(FIELDS)}")
        if len(given) > 1:
            raise BadRequestError("prompt", f"is given as {' and '.join(given)}; give one of them")
        form = given[0]
        if form in ("chat_body", "completions_body"):
            self._check_bytes(form, len(getattr(message, form)))
        return form

    def _check_bytes(self, form: str, size: int) -> None:
        limit = self._limits.max_prompt_bytes
        if size > limit:
            raise BadRequestError(
                f"prompt.{form}", f"has {size} bytes; limits.max-prompt-bytes is {limit}"
            )

    async def _text(self, message: AnyPrompt) -> Text:
        # Protobuf decodes the text again at each access.
        text = message.text
        size = len(text)
        if size > LONG:
            await asyncio.sleep(0)
        limit = self._limits.max_prompt_bytes
        if size * MOST_CHARACTER_BYTES > limit and not text.isascii():
            parts = in_turns(range(0, size, LONG), 1)
            size = sum([len(text[at : at + LONG].encode()) async for at in parts])
        self._check_bytes("text", size)
        return Text(text, add_special_tokens=True)

    def _model(self, message: AnyPrompt, body: PromptBody, *, may_lack: bool) -> tuple[Model, str]:
        """Return the model and the adapter. Raises BadRequestError and UnknownModelError.

        With `may_lack`, a request may name no model; the model's name is empty then.
        """
        if message.model and body.model and message.model != body.model:
            raise BadRequestError(
                "prompt.model", f"is {message.model!r}, but the body's is {body.model!r}"
            )
        name = message.model or body.model
        check_name("prompt.model", name)
        if message.lora:
            check_name("prompt.lora", message.lora)
        if not name and may_lack:
            return Model(""), message.lora
        if not name:
            raise BadRequestError("prompt.model", "is missing")
        model, lora = self._models.resolve(name)
        if lora and message.lora and message.lora != lora:
            raise BadRequestError("prompt.lora", f"is {message.lora!r}, but {name!r} is an adapter")
        return model, lora or message.lora or self._models.shadow(name)

    def _content(self, message: AnyPrompt, form: str, body: PromptBody) -> bytes | Text | ChatBody:
        if form == "token_ids_packed":
            return message.token_ids_packed
        if form != "token_ids":
            return body.content
        if isinstance(message, wire.Prompt):
            return listed_ids(message.token_ids, FIELDS[form])
        self._limits.check_tokens(FIELDS[form], len(message.token_ids.ids))
        return pack_tokens(message.token_ids.ids)

    def _check_ids(self, packed: bytes, model: Model, field: str) -> None:
        if len(packed) % TOKEN_BYTES:
            raise BadRequestError(
                field, f"has {len(packed)} bytes; packed token ids take {TOKEN_BYTES} each"
            )
        if not packed:
            raise BadRequestError(field, "is empty; at least one token is needed")
        self._limits.check_tokens(field, len(packed) // TOKEN_BYTES)
        vocab_size = self._vocab_size(model)
        if vocab_size:
            highest = highest_token(packed)
            if highest >= vocab_size:
                raise BadRequestError(
                    field,
                    f"holds token id {highest}; those of {model.name!r} are 0 to {vocab_size - 1}",
                )


def listed_ids(message: wire.TokenIds, field: str) -> bytes:
    """Return listed token ids, packed as 4 bytes each. Raises BadRequestError for `field`."""
    # Protobuf allows a sender to write each id as a field of its own.
    is_packed = not len(UnknownFieldSet(message))
    try:
        found = unpacked(b"".join(message.ids)) if is_packed else None
    except ValueError as error:
        raise BadRequestError(field, str(error)) from error
    if found is None:
        found = pack_tokens(pb.TokenIds.FromString(message.SerializeToString()).ids)
    return found


def _either(message: AnyPrompt, body: PromptBody, name: Literal["cache_salt", "extra_key"]) -> str:
    given: str = getattr(message, name)
    in_body: str = getattr(body, name)
    if not given and not in_body:
        return ""
    if given and in_body and given != in_body:
        raise BadRequestError(f"prompt.{name}", f"differs from the body's {name}")
    return check_name(f"prompt.{name}", given or in_body)


async def _items(message: AnyPrompt, content: bytes | Text | ChatBody) -> tuple[Item, ...]:
    """Return the multimodal items; in token ids, none may end after the prompt's end."""
    tokens = len(content) // TOKEN_BYTES if isinstance(content, bytes) else None
    items = []
    end = 0
    given: Sequence[pb.MultimodalItem | wire.MultimodalItem] = message.multimodal
    async for position, item in in_turns(enumerate(given), ITEMS_AT_ONCE):
        field = f"prompt.multimodal[{position}]"
        read = Item(item.hash, item.offset, item.length)
        end = check_item(field, read, begin=end, tokens=tokens)
        items.append(read)
    return tuple(items)
