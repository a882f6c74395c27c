"""/v1/messages and /v1/responses: chats in other forms."""

import secrets
from collections.abc import Callable
from typing import Any

from aiohttp import web

from warmpath.lab.simworker.api.fields import Endpoints, Fields, read_body
from warmpath.lab.simworker.api.inference.answer import Answer
from warmpath.lab.simworker.api.inference.generate import generate
from warmpath.lab.simworker.api.inference.messages import MessageAnswer, message_chat
from warmpath.lab.simworker.api.inference.request_options import read_options
from warmpath.lab.simworker.api.inference.responses import ResponseAnswer, response_chat


class ChatForms(Endpoints):
    """The endpoints that make a chat of their body, as vLLM does."""

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
        asks = [options.ask(ids, worker.identity)]
        return await generate(request, worker, options, asks, new_answer)
