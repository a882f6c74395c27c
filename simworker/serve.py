"""The worker's HTTP server: OpenAI's completions and chat API, as vLLM serves them.

Source: `vllm/entrypoints/openai` of 0.32. What the model does not need is accepted and passed over;
`n` above 1 and prompts in batches are refused.
"""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from simworker.engine import Generation, RefusedError
from simworker.shell import EngineShell
from simworker.text import TextCodec, TextError
from simworker.v1.kv_cache_event import CacheEvent


@dataclass(frozen=True, slots=True)
class Identity:
    """What the worker serves, and as what."""

    model: str
    adapters: frozenset[str]
    vocab_size: int
    max_model_len: int
    stream_interval: int
    """Tokens a chunk of a streamed answer, but for the first, which goes out at once."""


class BadRequestError(Exception):
    """A request that is answered with an error."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class WorkerServer:
    """Handlers over one engine."""

    def __init__(
        self,
        shell: EngineShell[CacheEvent],
        text: TextCodec,
        identity: Identity,
        registry: CollectorRegistry,
    ) -> None:
        self._shell = shell
        self._text = text
        self._identity = identity
        self._registry = registry
        self._numbers = itertools.count(1)

    def app(self) -> web.Application:
        """Return the application."""
        app = web.Application(client_max_size=64 << 20, middlewares=[_errors])
        app.router.add_post("/v1/completions", self.completions)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/tokenize", self.tokenize)
        app.router.add_post("/reset_prefix_cache", self.reset)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/health", self.health)
        app.router.add_get("/metrics", self.metrics)
        return app

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """Serve /v1/completions."""
        body = await _body(request)
        prompt = body.get("prompt")
        if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
            prompt = prompt[0]
        if isinstance(prompt, str):
            ids = self._text.encode(prompt)
        elif isinstance(prompt, list) and prompt and set(map(type, prompt)) == {int}:
            ids = prompt
        else:
            raise BadRequestError("prompt: a text or a list of token ids, one of them, is needed")
        return await self._generate(request, body, ids, chat=False, default_tokens=16)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Serve /v1/chat/completions."""
        body = await _body(request)
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise BadRequestError("messages: a list with at least one message is needed")
        ids = self._text.render(messages, body)
        left = self._identity.max_model_len - len(ids)
        return await self._generate(request, body, ids, chat=True, default_tokens=left)

    async def _generate(
        self,
        request: web.Request,
        body: dict[str, Any],
        ids: list[int],
        *,
        chat: bool,
        default_tokens: int,
    ) -> web.StreamResponse:
        generation, stream = self._start(body, ids, default_tokens)
        answer = _Answer(generation, body, self._text, chat=chat)
        try:
            if not body.get("stream"):
                tokens = [token async for chunk in stream.chunks(1 << 30) for token in chunk]
                return web.json_response(answer.whole(tokens))
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            async for chunk in stream.chunks(self._identity.stream_interval):
                await response.write(_event(answer.chunk(chunk)))
            if (body.get("stream_options") or {}).get("include_usage"):
                await response.write(_event(answer.closing()))
            await response.write(b"data: [DONE]\n\n")
            return response
        finally:
            # The client has gone where this is not done yet.
            self._shell.engine.abort(generation.request_id)

    def _start(
        self, body: dict[str, Any], ids: list[int], default_tokens: int
    ) -> "tuple[Generation, _TokenStream]":
        identity = self._identity
        model = body.get("model", identity.model)
        if not isinstance(model, str):
            raise BadRequestError("model: is no string")
        if not isinstance(body.get("stream_options"), dict | None):
            raise BadRequestError("stream_options: is no object")
        if model != identity.model and model not in identity.adapters:
            raise BadRequestError(f"model: {model!r} is not served here", 404)
        if body.get("n") not in (None, 1):
            raise BadRequestError("n: only 1 is served")
        if min(ids) < 0 or max(ids) >= identity.vocab_size:
            raise BadRequestError(f"prompt: token ids are from 0 to {identity.vocab_size - 1}")
        wanted = body.get("max_completion_tokens", body.get("max_tokens"))
        max_tokens = default_tokens if wanted is None else wanted
        if not isinstance(max_tokens, int) or max_tokens < 1:
            raise BadRequestError("max_tokens: at least 1")
        stream = _TokenStream()
        generation = Generation(
            f"{'lora' if model != identity.model else 'base'}-{next(self._numbers)}",
            ids,
            max_tokens,
            stream.take,
            cache_salt=str(body.get("cache_salt") or ""),
            lora_name=model if model != identity.model else "",
            lora_path=model if model != identity.model else "",
            skip_reading_prefix_cache=body.get("prompt_logprobs") is not None,
        )
        try:
            self._shell.submit(generation)
        except RefusedError as error:
            raise BadRequestError(str(error)) from error
        return generation, stream

    async def tokenize(self, request: web.Request) -> web.Response:
        """Serve /tokenize."""
        body = await _body(request)
        if isinstance(body.get("prompt"), str):
            special = body.get("add_special_tokens") is not False
            ids = self._text.encode(body["prompt"], special=special)
        elif isinstance(body.get("messages"), list):
            ids = self._text.render(body["messages"], body)
        else:
            raise BadRequestError("prompt or messages: one of them is needed")
        length = self._identity.max_model_len
        return web.json_response({"count": len(ids), "max_model_len": length, "tokens": ids})

    async def reset(self, _: web.Request) -> web.Response:
        """Serve /reset_prefix_cache; the clear is announced with the next step."""
        return web.json_response({"success": self._shell.engine.reset_prefix_cache()})

    async def models(self, _: web.Request) -> web.Response:
        """Serve /v1/models."""
        base = self._identity.model
        parents = {base: None} | dict.fromkeys(sorted(self._identity.adapters), base)
        data = [
            {"id": name, "object": "model", "owned_by": "warmpath", "parent": parent}
            for name, parent in parents.items()
        ]
        return web.json_response({"object": "list", "data": data})

    async def health(self, _: web.Request) -> web.Response:
        """Serve /health."""
        return web.Response()

    async def metrics(self, _: web.Request) -> web.Response:
        """Serve /metrics."""
        body = generate_latest(self._registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


class _TokenStream:
    """One request's tokens on their way from the engine to the handler."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._finished = False
        self._first_sent = False
        self._interval = 1
        self._news = asyncio.Event()

    def take(self, tokens: list[int], finished: bool) -> None:
        """Take what the engine generated."""
        self._tokens += tokens
        self._finished |= finished
        if finished or not self._first_sent or len(self._tokens) >= self._interval:
            self._news.set()

    async def chunks(self, interval: int) -> AsyncIterator[list[int]]:
        """Yield the first token, then `interval` tokens at a time, then the rest."""
        self._interval = interval
        self._first_sent = interval > 1 << 20
        while not self._finished or self._tokens:
            await self._news.wait()
            self._news.clear()
            tokens, self._tokens = self._tokens, []
            self._first_sent = True
            if tokens:
                yield tokens


class _Answer:
    """OpenAI's answer objects for one request."""

    def __init__(
        self, generation: Generation, body: dict[str, Any], text: TextCodec, *, chat: bool
    ) -> None:
        self._generation = generation
        self._text = text
        self._chat = chat
        self._with_ids = bool(body.get("return_token_ids"))
        self._head = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{self._generation.request_id}",
            "created": int(time.time()),
            "model": body.get("model"),
        }
        self._sent = 0

    def whole(self, tokens: list[int]) -> dict[str, Any]:
        """Return the answer that is not streamed."""
        text = self._text.decode(tokens)
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length", "logprobs": None}
        if self._chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        answer = self._head | {
            "object": "chat.completion" if self._chat else "text_completion",
            "choices": [choice],
            "usage": self._usage(),
        }
        if self._with_ids:
            choice["token_ids"] = tokens
            self._add_prompt(answer, choice)
        return answer

    def _add_prompt(self, answer: dict[str, Any], choice: dict[str, Any]) -> None:
        """Say the prompt's tokens where vLLM does: a chat's in the answer, else in the choice."""
        prompt = list(self._generation.prompt)
        (answer if self._chat else choice)["prompt_token_ids"] = prompt

    def chunk(self, tokens: list[int]) -> dict[str, Any]:
        """Return one chunk of a streamed answer."""
        text = self._text.decode(tokens)
        last = self._sent + len(tokens) >= self._generation.max_tokens
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length" if last else None}
        if self._chat:
            role = {} if self._sent else {"role": "assistant"}
            choice["delta"] = role | {"content": text}
        else:
            choice["text"] = text
        chunk = self._head | {"object": self._chunk_object(), "choices": [choice]}
        if self._with_ids:
            choice["token_ids"] = tokens
            if not self._sent:
                self._add_prompt(chunk, choice)
        self._sent += len(tokens)
        return chunk

    def closing(self) -> dict[str, Any]:
        """Return the last chunk, which has the usage."""
        usage = {"choices": [], "usage": self._usage()}
        return self._head | {"object": self._chunk_object()} | usage

    def _chunk_object(self) -> str:
        return "chat.completion.chunk" if self._chat else "text_completion"

    def _usage(self) -> dict[str, Any]:
        request = self._generation
        return {
            "prompt_tokens": request.num_prompt_tokens,
            "completion_tokens": request.num_output_tokens,
            "total_tokens": request.num_prompt_tokens + request.num_output_tokens,
            "prompt_tokens_details": {"cached_tokens": max(request.num_cached_tokens, 0)},
        }


def _event(value: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        body = await request.json()
    except (ValueError, UnicodeDecodeError) as error:
        raise BadRequestError(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise BadRequestError("the body is not a JSON object")
    return body


Handler = Callable[[web.Request], Any]


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer refusals in OpenAI's form."""
    try:
        response: web.StreamResponse = await handler(request)
    except (BadRequestError, TextError) as error:
        status = error.status if isinstance(error, BadRequestError) else 400
        kind = "NotFoundError" if status == 404 else "BadRequestError"
        fault = {"message": str(error), "type": kind, "code": status}
        return web.json_response({"error": fault}, status=status)
    return response
