"""/v1/models, and LoRA adapters loaded and unloaded at run time."""

import time

from aiohttp import web

from warmpath.lab.simworker.api.errors import json_response
from warmpath.lab.simworker.api.fields import read_body
from warmpath.lab.simworker.server.worker import Worker


class Models:
    """The base model and its adapters."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._created = int(time.time())

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.get("/v1/models", self.models),
            web.post("/v1/load_lora_adapter", self.load),
            web.post("/v1/unload_lora_adapter", self.unload),
        ]

    async def models(self, _: web.Request) -> web.Response:
        """Answer with the list; adapters are children of the base model."""
        identity = self._worker.identity
        kit = {"object": "model", "created": self._created, "owned_by": "warmpath"}
        base = {"root": identity.model, "parent": None, "max_model_len": identity.max_model_len}
        cards = [{"id": identity.model} | kit | base]
        cards += [
            {"id": adapter.name} | kit
            | {"root": adapter.path, "parent": identity.model, "max_model_len": None}
            for adapter in self._worker.adapters.all()
        ]  # fmt: skip
        return json_response({"object": "list", "data": cards})

    async def load(self, request: web.Request) -> web.Response:
        """Load an adapter."""
        fields = await read_body(request)
        name = fields.text("lora_name")
        in_place = fields.flag("load_inplace")
        self._worker.adapters.load(name, fields.text("lora_path"), in_place=in_place)
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def unload(self, request: web.Request) -> web.Response:
        """Unload an adapter."""
        name = (await read_body(request)).text("lora_name")
        self._worker.adapters.unload(name)
        return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")
