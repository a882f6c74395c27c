"""The APIs of whose bodies each engine makes a chat in its own way."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeAlias

import msgspec

from warmpath.prefixstore.chats.chat import TemplateTraits
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.inference_api.body import Api, Body
from warmpath.router.inference_api.request import not_exact
from warmpath.router.prompt.bodies.fields import LARGE_BYTES

Chat: TypeAlias = Callable[
    [Mapping[str, Any], TemplateTraits | None], tuple[list[dict[str, Any]], dict[str, Any]]
]
"""Returns the chat's messages and the other fields of its body. Raises UnreadError."""

_encode = msgspec.json.Encoder().encode


def chat_api(*fields: str, **chats: Chat) -> Api:
    """Return the API of whose bodies' `fields` each engine makes a chat; `chats` has it by engine."""
    return Api(fields, partial(_prompt, fields, chats))


async def _prompt(fields: Iterable[str], chats: Mapping[str, Chat], body: Body) -> pb.Prompt:
    model = await body.name("model")
    engine = body.engine_of(model)
    if engine not in chats:
        raise not_exact(f"how {engine or 'the engine'} reads this API")
    given = {name: await body.decoded(name) for name in fields}
    messages, others = chats[engine](given, await body.traits_of(model))
    return pb.Prompt(model=model, chat_body=await _body(messages, others))


async def _body(messages: Iterable[Any], fields: Mapping[str, Any]) -> bytes:
    parts: list[bytes] = []
    pending = 0
    for message in messages:
        parts.append(_encode(message))
        pending += len(parts[-1])
        if pending > LARGE_BYTES:
            pending = 0
            await asyncio.sleep(0)
    fields = {name: value for name, value in fields.items() if value is not None}
    others = b"," + _encode(fields)[1:] if fields else b"}"
    return b'{"messages":[%b]%b' % (b",".join(parts), others)
