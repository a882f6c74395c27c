"""Parses OpenAI request bodies: the fields that decide which cached blocks a request can use.

Bodies are taken as a gateway received them. The fields that matter to the cache are checked; all others
are ignored. Formats: OpenAI's completions and chat API as vLLM serves them (`vllm/entrypoints/openai`,
0.32).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from warmpath.prefixstore.chats.chat import Chat
from warmpath.prefixstore.chats.chat_request import chat_of, optional
from warmpath.prefixstore.chats.jinja_template import TemplateError
from warmpath.router.prompt.bodies.fields import (
    MOST_VALUES,
    FieldError,
    RawFields,
    packed_ids,
    raw_fields,
)
from warmpath.router.prompt.bodies.session import OF_SESSIONS, session_of
from warmpath.router.prompt.limits import BadRequestError
from warmpath.router.prompt.truncate import Truncation

CHAT = (
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "chat_template_kwargs",
    "reasoning_effort",
    "system",
)
"""The fields that `prefixstore.chats.chat_request` reads."""
COMMON = (
    "add_special_tokens",
    "model",
    "cache_salt",
    "extra_key",
    "lora_path",
    "prompt_logprobs",
    "echo",
    "logprobs",
    "truncate_prompt_tokens",
    "truncation_side",
)
"""The fields that are read from bodies of chats and of completions."""
APART = ("cache_salt", "extra_key", "lora_path")
"""Those that keep prompts apart."""
OF_CHATS = CHAT + COMMON + OF_SESSIONS
OF_COMPLETIONS = ("prompt", *COMMON, *OF_SESSIONS)
BY_THEMSELVES = frozenset(("prompt", *OF_SESSIONS))
"""The fields that are read by themselves."""


class ChatBody(msgspec.Struct, frozen=True):
    """A chat request: the template's input, and whether special tokens are added to its text."""

    chat: Chat
    add_special_tokens: bool

    def request(self) -> dict[str, Any]:
        """Return the fields that decide the tokens, as vLLM's /tokenize takes them."""
        chat = self.chat
        request: dict[str, Any] = {
            "messages": chat.messages,
            "add_generation_prompt": chat.add_generation_prompt,
            "continue_final_message": chat.continue_final_message,
            "add_special_tokens": self.add_special_tokens,
        }
        if chat.tools:
            request["tools"] = chat.tools
        kwargs = chat.kwargs
        if chat.documents:
            # When an engine completes a chat, it merges the documents into these arguments itself.
            kwargs = kwargs | {"documents": chat.documents}
        if kwargs:
            request["chat_template_kwargs"] = kwargs
        return request


class Text(msgspec.Struct, frozen=True):
    """A text, and whether special tokens are added to it."""

    text: str
    add_special_tokens: bool


class PromptBody(msgspec.Struct, frozen=True):
    """The parts of a request body that decide which cached blocks it can use."""

    content: bytes | Text | ChatBody = b""
    """Token ids (4 bytes each, little-endian: `pack_tokens`), a text or a chat."""
    model: str = ""
    """The model's name; empty if the body names none."""
    cache_salt: str = ""
    extra_key: str = ""
    """SGLang's `extra_key`: requests with different ones share no cached blocks."""
    lora_path: str = ""
    """The adapter in SGLang's field `lora_path`."""
    reads_cache: bool = True
    truncation: Truncation | None = None
    session: str = ""
    """The session that the body names; empty if it names none."""


def reads_cache(body: Mapping[str, Any]) -> bool:
    """Return whether the engine looks for this request's prompt in its cache.

    Logprobs of the prompt need every position computed, so vLLM then skips the look-up
    (`vllm/sampling_params.py`, `skip_reading_prefix_cache`); an echoed completion with logprobs needs
    them too.
    """
    if body.get("prompt_logprobs") is not None:
        return False
    return not (body.get("echo") and body.get("logprobs") is not None)


async def parse_chat(raw: bytes, field: str, fields: RawFields | None = None) -> PromptBody:
    """Parse a chat body; `fields` are those of OF_CHATS, if they are known. Raises BadRequestError."""
    try:
        fields = fields or await raw_fields(raw, OF_CHATS)
        body = await _decoded(fields)
        chat = chat_of(body)
        _check_roles(chat.messages)
        special = optional(body, "add_special_tokens", bool)
        return _body(fields, body, ChatBody(chat, add_special_tokens=bool(special)))
    except (FieldError, TemplateError) as error:
        raise _within(field, error) from error


def _check_roles(messages: Sequence[object]) -> None:
    for position, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise FieldError("is not an object with a role", f"messages[{position}]")


async def parse_completions(
    raw: bytes, field: str, most_tokens: int, fields: RawFields | None = None
) -> PromptBody:
    """Parse a completions body with one prompt of at most `most_tokens` token ids.

    `fields` are those of OF_COMPLETIONS, if they are known. Raises BadRequestError.
    """
    part = field
    try:
        fields = fields or await raw_fields(raw, OF_COMPLETIONS, MOST_VALUES + most_tokens)
        part = f"{field}.prompt"
        prompt = await _prompt(fields, most_tokens)
        part = field
        body = await _decoded(fields)
        special = optional(body, "add_special_tokens", bool) is not False
        if isinstance(prompt, str):
            return _body(fields, body, Text(prompt, add_special_tokens=special))
        return _body(fields, body, prompt)
    except (FieldError, TemplateError) as error:
        raise _within(part, error) from error


def prompts(raw: msgspec.Raw) -> list[msgspec.Raw]:
    """Return the prompts in a completions body's field `prompt`: one, or those that it lists."""
    view = memoryview(raw)
    # The first bytes show whether a list has prompts or token ids, of which there may be a million.
    if view[0] == ord("[") and bytes(view[1:1024]).lstrip()[:1] in (b"[", b'"'):
        return msgspec.json.decode(raw, type=list[msgspec.Raw])
    return [raw]


async def _prompt(fields: RawFields, most_tokens: int) -> str | bytes:
    if not fields.has("prompt"):
        raise FieldError("is missing")
    raw, *others = prompts(fields.fields["prompt"])
    if others:
        raise FieldError("holds several prompts; a request may have one")
    view = memoryview(raw)
    prompt: str | bytes | None = None
    if view[0] == ord("["):
        prompt = await packed_ids(raw, "", most_tokens)
    elif view[0] == ord('"'):
        prompt = await fields.value(raw, "")
    if prompt is None:
        raise FieldError("is neither a text nor a list of token ids")
    return prompt


async def _decoded(fields: RawFields) -> dict[str, Any]:
    given = fields.fields.items()
    return {name: await fields.value(one, name) for name, one in given if name not in BY_THEMSELVES}


def _body(fields: RawFields, body: dict[str, Any], content: bytes | Text | ChatBody) -> PromptBody:
    salt = extra = lora = ""
    if not body.keys().isdisjoint(APART):
        salt, extra, lora = (_one_text(body, name) for name in APART)
    return PromptBody(
        content=content,
        model=optional(body, "model", str) or "",
        cache_salt=salt,
        extra_key=extra,
        lora_path=lora,
        reads_cache=reads_cache(body),
        truncation=_truncation(body),
        session=session_of(fields),
    )


def _within(field: str, error: FieldError | TemplateError) -> BadRequestError:
    """Return the error about a part of `field` with the part's whole path."""
    return BadRequestError(f"{field}.{error.field}" if error.field else field, error.problem)


def _truncation(body: dict[str, Any]) -> Truncation | None:
    name = "truncate_prompt_tokens"
    tokens, side = body.get(name), body.get("truncation_side")
    if side not in (None, "left", "right"):
        raise FieldError("is neither left nor right", "truncation_side")
    if tokens is None:
        return None
    if type(tokens) is not int:
        raise FieldError("is not an integer", name)
    if tokens == -1:
        problem = "is -1, the engine's longest prompt, which is not known here; send that number"
        raise FieldError(problem, name)
    if tokens < 1:
        raise FieldError(f"is {tokens}; at least one token has to be left", name)
    return Truncation(tokens, side)


def _one_text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, str | None):
        raise FieldError("is neither a string nor a list of one string", name)
    return value or ""
