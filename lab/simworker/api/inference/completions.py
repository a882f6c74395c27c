"""/v1/completions and /v1/chat/completions."""

import itertools
import secrets
from typing import Any

from aiohttp import web

from warmpath.lab.simworker.api.errors import bad
from warmpath.lab.simworker.api.fields import Endpoints, read_body
from warmpath.lab.simworker.api.inference.answer import CHAT, COMPLETIONS, refuse
from warmpath.lab.simworker.api.inference.choices import ChatAnswer, CompletionAnswer
from warmpath.lab.simworker.api.inference.generate import generate
from warmpath.lab.simworker.api.inference.request_options import read_options
from warmpath.lab.simworker.server.worker import Worker

MOST_PROMPTS = 1024
"""The most prompts of one request; vLLM's default."""
DEFAULT_TOKENS = 16


class Completions(Endpoints):
    """The endpoints that generate tokens."""

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
        special = fields.flag("add_special_tokens", default=True)
        prompts = [
            worker.text.encode(prompt, special=special) if isinstance(prompt, str) else prompt
            for prompt in _prompts(fields.get("prompt"))
        ]
        asks = [options.ask(prompt, worker.identity) for prompt in prompts]
        return await generate(request, worker, options, asks, CompletionAnswer)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        worker = self._worker
        fields = await read_body(request)
        refuse(fields, CHAT)
        messages = fields.get("messages")
        if not isinstance(messages, list) or not messages:
            raise bad("messages", "a list with at least one message is needed")
        options = read_options(
            request, fields, worker.identity, worker.adapters,
            answer_id=self._answer_id(), default_tokens=None,
        )  # fmt: skip
        ids = worker.text.render(messages, fields.body)
        asks = [options.ask(ids, worker.identity)]
        return await generate(request, worker, options, asks, ChatAnswer)

    def _answer_id(self) -> str:
        return f"{self._life}-{next(self._numbers)}"


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
