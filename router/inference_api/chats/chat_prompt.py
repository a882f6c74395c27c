"""Makes the prompt of a request from the chat that it becomes in its engine."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import msgspec

from warmpath.prefixstore.chats.chat import TemplateTraits
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.inference_api.body import Body
from warmpath.router.inference_api.request import not_exact
from warmpath.router.prompt.bodies.json_strings import LARGE_BYTES

Chat: TypeAlias = Callable[
    [Mapping[str, Any], TemplateTraits | None], tuple[list[dict[str, Any]], dict[str, Any]]
]
"""Returns the chat's messages and the other fields of its body. Raises UnreadError."""

_encode = msgspec.json.Encoder().encode


async def chat_prompt(body: Body, chats: Mapping[str, Chat], fields: Iterable[str]) -> pb.Prompt:
    """Return the prompt that the engine's kind of `chats` makes of a body's `fields`.

    Raises UnreadError and FieldError.
    """
    chat = chats.get(body.engine)
    if chat is None:
        raise not_exact(f"how {body.engine or 'the engine'} reads this API")
    model = await body.name("model")
    given = {name: await body.value(name) for name in fields}
    messages, others = chat(given, await body.traits_of(model))
    return pb.Prompt(model=model, chat_body=await _body(messages, others))


async def _body(messages: Iterable[Any], fields: Mapping[str, Any]) -> bytes:
    parts = [b'{"messages":[']
    pending = 0
    for number, message in enumerate(messages):
        part = _encode(message)
        parts += [b"," if number else b"", part]
        pending += len(part)
        if pending > LARGE_BYTES:
            pending = 0
            await asyncio.sleep(0)
    parts.append(b"]")
    for name, value in fields.items():
        if value is not None:
            parts += [b",", _encode(name), b":", _encode(value)]
    return b"".join([*parts, b"}"])
