"""/v1/completions and /v1/chat/completions; /v1/messages and /v1/responses are chats in other forms."""

import asyncio
import itertools
import secrets
from collections.abc import Callable
from typing import Any

from aiohttp import web

from warmpath.lab.simworker.api.errors import bad, json_response
from warmpath.lab.simworker.api.fields import Endpoints, Fields, read_body
from warmpath.lab.simworker.api.inference.answer import CHAT, COMPLETIONS, Answer, refuse
from warmpath.lab.simworker.api.inference.choices import ChatAnswer, CompletionAnswer
from warmpath.lab.simworker.api.inference.generate import generate
from warmpath.lab.simworker.api.inference.messages import MessageAnswer, message_chat
from warmpath.lab.simworker.api.inference.request_options import find_model, read_options
from warmpath.lab.simworker.api.inference.responses import ResponseAnswer, response_chat
from warmpath.lab.simworker.server.worker import Worker

MOST_PROMPTS = 1024
"""The most prompts of one request; vLLM's default."""
DEFAULT_TOKENS = 16


class Completions(Endpoints):
    """The endpoints /v1/completions and /v1/chat/completions."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self._life = secrets.token_hex(4)
        self._numbers = itertools.count(1)

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/completions", self.completions),
            web.post("/v1/chat/completions", self.chat),
        ]

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """Serve one prompt or several, as texts or as token ids."""
        worker = self._worker
        fields = await read_body(request)
        refuse(fields, COMPLETIONS)
        options = read_options(
            request, fields, worker.identity, worker.adapters,
            answer_id=self._answer_id(), default_tokens=DEFAULT_TOKENS,
        )  # fmt: skip
        return await generate(request, worker, options, _ids(worker, fields), CompletionAnswer)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        worker = self._worker
        fields = await read_body(request)
        refuse(fields, CHAT)
        options = read_options(
            request, fields, worker.identity, worker.adapters,
            answer_id=self._answer_id(), default_tokens=None,
        )  # fmt: skip
        ids = _chat_ids(worker, fields)
        return await generate(request, worker, options, [ids], ChatAnswer)

    def _answer_id(self) -> str:
        return f"{self._life}-{next(self._numbers)}"


class Rendering(Endpoints):
    """vLLM's endpoints that make the tokens of a request in a thread, and do not answer it."""

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/completions/render", self.completions),
            web.post("/v1/chat/completions/render", self.chat),
        ]

    async def completions(self, request: web.Request) -> web.Response:
        fields = await self._fields(request)
        made = await asyncio.to_thread(_ids, self._worker, fields)
        return json_response([_rendered(ids) for ids in made])

    async def chat(self, request: web.Request) -> web.Response:
        fields = await self._fields(request)
        return json_response(_rendered(await asyncio.to_thread(_chat_ids, self._worker, fields)))

    async def _fields(self, request: web.Request) -> Fields:
        fields = await read_body(request)
        find_model(fields, self._worker.identity, self._worker.adapters)
        return fields


class ChatForms(Endpoints):
    """The endpoints /v1/messages and /v1/responses, which make a chat of a body, as vLLM does."""

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/messages", self.message), web.post("/v1/responses", self.response)]

    async def message(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(request, message_chat, MessageAnswer, "max_tokens")

    async def response(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(request, response_chat, ResponseAnswer, "max_output_tokens")

    async def _serve(
        self,
        request: web.Request,
        chat_of: Callable[[Fields], dict[str, Any]],
        new_answer: type[Answer],
        max_tokens_field: str,
    ) -> web.StreamResponse:
        worker = self._worker
        chat = chat_of(await read_body(request))
        options = read_options(
            request, Fields(chat), worker.identity, worker.adapters,
            answer_id=secrets.token_hex(8), default_tokens=None,
            max_tokens_field=max_tokens_field,
        )  # fmt: skip
        ids = worker.text.render(chat["messages"], chat)
        return await generate(request, worker, options, [ids], new_answer)


def _rendered(ids: list[int]) -> dict[str, Any]:
    return {"request_id": secrets.token_hex(8), "token_ids": ids}


def _ids(worker: Worker, fields: Fields) -> list[list[int]]:
    """Return the token ids of each of a completion's prompts."""
    special = fields.flag("add_special_tokens", default=True)
    return [
        worker.text.encode(prompt, special=special) if isinstance(prompt, str) else prompt
        for prompt in _prompts(fields.get("prompt"))
    ]


def _chat_ids(worker: Worker, fields: Fields) -> list[int]:
    """Return the token ids of a chat."""
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise bad("messages", "a list with at least one message is needed")
    return worker.text.render(messages, fields.body)


def _prompts(value: Any) -> list[str | list[int]]:
    """Return the prompts of a body: a text, ids, or a list of either."""
    wanted = "a text, token ids, or a list of one of them is needed"
    if isinstance(value, str) and value:
        return [value]
    if not isinstance(value, list) or not value:
        raise bad("prompt", wanted)
    if isinstance(value[0], int):
        value = [value]
    if len(value) > MOST_PROMPTS:
        raise bad("prompt", f"at most {MOST_PROMPTS} prompts")
    kinds = {type(prompt) for prompt in value}
    if kinds == {str} or (kinds == {list} and all(set(map(type, ids)) == {int} for ids in value)):
        return list(value)
    raise bad("prompt", wanted)
