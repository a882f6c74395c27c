"""The worker's HTTP application: every path with its handler."""

import time
from collections.abc import Callable, Collection
from typing import Any

from aiohttp import web

from warmpath.lab.simworker.api.admin import Cache, Faults, Health, KvCacheEvents
from warmpath.lab.simworker.api.errors import ApiError, bad, guard, json_response, refusals
from warmpath.lab.simworker.api.fields import Endpoints, read_body
from warmpath.lab.simworker.api.inference.completions import ChatForms, Completions, Rendering
from warmpath.lab.simworker.api.inference.request_options import find_model
from warmpath.lab.simworker.api.inference.sglang_api import SglangApi
from warmpath.lab.simworker.api.inference.token_api import TokenApi
from warmpath.lab.simworker.server.worker import Worker


class Tokens(Endpoints):
    """Endpoints that turn text to ids and back with the worker's own tokenizer."""

    def __init__(self, worker: Worker, *, takes_chats: bool) -> None:
        super().__init__(worker)
        self._takes_chats = takes_chats

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/tokenize", self.tokenize), web.post("/detokenize", self.detokenize)]

    async def tokenize(self, request: web.Request) -> web.Response:
        """Answer with the ids of a prompt, special tokens added, or of a chat in its template."""
        worker = self._worker
        fields = await read_body(request)
        find_model(fields, worker.identity, worker.adapters)
        if isinstance(fields.get("prompt"), str):
            special = fields.flag("add_special_tokens", default=True)
            ids = worker.text.encode(fields.text("prompt"), special=special)
        elif isinstance(fields.get("messages"), list) and self._takes_chats:
            ids = worker.text.render(fields.get("messages"), fields.body)
        else:
            raise ApiError("prompt or messages: one of them is needed", field="prompt")
        strings = worker.text.pieces(ids) if fields.flag("return_token_strs") else None
        length = worker.identity.max_model_len
        return json_response(
            {"count": len(ids), "max_model_len": length, "tokens": ids, "token_strs": strings}
        )

    async def detokenize(self, request: web.Request) -> web.Response:
        worker = self._worker
        fields = await read_body(request)
        find_model(fields, worker.identity, worker.adapters)
        ids = fields.get("tokens")
        if not isinstance(ids, list) or set(map(type, ids)) - {int}:
            raise bad("tokens", "a list of token ids is needed")
        if ids and (min(ids) < 0 or max(ids) >= worker.identity.vocab_size):
            raise bad("tokens", f"token ids must be 0 to {worker.identity.vocab_size - 1}")
        return json_response({"prompt": worker.text.detokenize(ids)})


class Models(Endpoints):
    """Endpoints that list the base model and its adapters, and load and unload adapters."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self._created = int(time.time())

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/models", self.models),
            web.post("/v1/load_lora_adapter", self.load),
            web.post("/v1/unload_lora_adapter", self.unload),
        ]

    async def models(self, _: web.Request) -> web.Response:
        """Answer with the base model, and the adapters as its children."""
        identity = self._worker.identity
        kit = {"object": "model", "created": self._created, "owned_by": identity.engine}
        base = {"root": identity.model, "parent": None, "max_model_len": identity.max_model_len}
        cards = [{"id": identity.model} | kit | base]
        cards += [
            {"id": adapter.name} | kit
            | {"root": adapter.path, "parent": identity.model, "max_model_len": None}
            for adapter in self._worker.adapters.all()
        ]  # fmt: skip
        return json_response({"object": "list", "data": cards})

    async def load(self, request: web.Request) -> web.Response:
        fields = await read_body(request)
        name = fields.text("lora_name")
        in_place = fields.flag("load_inplace")
        self._worker.adapters.load(name, fields.text("lora_path"), in_place=in_place)
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def unload(self, request: web.Request) -> web.Response:
        name = (await read_body(request)).text("lora_name")
        self._worker.adapters.unload(name)
        return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")


MOST_BODY_BYTES = 64 << 20

OWN = {"vllm": (ChatForms, Rendering, TokenApi), "sglang": (SglangApi,)}
"""Engine's name -> the endpoints that only workers of this engine serve."""


def application(
    worker: Worker,
    *,
    allow_faults: bool,
    fetch_events: Callable[[Any], list[dict[str, Any]]] | None,
    api_key: str = "",
    without: Collection[str] = (),
) -> web.Application:
    """Return the application over one worker.

    `fetch_events` returns the events of a rank's engine; with None there is no /kv_cache_events.
    `api_key` and `without` are as in `Settings`.
    """
    guards = [guard(api_key)] if api_key else []
    app = web.Application(client_max_size=MOST_BODY_BYTES, middlewares=[refusals, *guards])
    own = OWN.get(worker.identity.engine, ())
    tokens = Tokens(worker, takes_chats="tokenize-chats" not in without)
    kinds = (kind(worker) for kind in (Completions, Models, Health, Cache, *own))
    lacking = {f"/{one}" for one in without}
    for served in (tokens, *kinds):
        app.add_routes([one for one in served.routes() if one.path not in lacking])
    if fetch_events is not None:
        app.add_routes(KvCacheEvents(worker, fetch_events).routes())
    if allow_faults:
        app.add_routes(Faults(worker).routes())
    return app
