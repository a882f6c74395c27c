"""/tokenize and /detokenize."""

from aiohttp import web

from warmpath.lab.simworker.api.errors import ApiError, bad, json_response
from warmpath.lab.simworker.api.fields import read_body
from warmpath.lab.simworker.api.inference.request_options import find_model
from warmpath.lab.simworker.server.worker import Worker


class Tokens:
    """Endpoints that turn text to ids and back with the worker's own tokenizer."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.post("/tokenize", self.tokenize),
            web.post("/detokenize", self.detokenize),
        ]

    async def tokenize(self, request: web.Request) -> web.Response:
        """Answer with the ids of a prompt, special tokens added, or of a chat in its template."""
        worker = self._worker
        fields = await read_body(request)
        find_model(fields, worker.identity, worker.adapters)
        if isinstance(fields.get("prompt"), str):
            special = fields.flag("add_special_tokens", default=True)
            ids = worker.text.encode(fields.text("prompt"), special=special)
        elif isinstance(fields.get("messages"), list):
            ids = worker.text.render(fields.get("messages"), fields.body)
        else:
            raise ApiError("prompt or messages: one of them is needed", field="prompt")
        strings = worker.text.pieces(ids) if fields.flag("return_token_strs") else None
        length = worker.identity.max_model_len
        return json_response(
            {"count": len(ids), "max_model_len": length, "tokens": ids, "token_strs": strings}
        )

    async def detokenize(self, request: web.Request) -> web.Response:
        """Answer with the text of ids."""
        worker = self._worker
        fields = await read_body(request)
        find_model(fields, worker.identity, worker.adapters)
        ids = fields.get("tokens")
        if not isinstance(ids, list) or set(map(type, ids)) - {int}:
            raise bad("tokens", "a list of token ids is needed")
        if ids and (min(ids) < 0 or max(ids) >= worker.identity.vocab_size):
            raise bad("tokens", f"token ids must be 0 to {worker.identity.vocab_size - 1}")
        return json_response({"prompt": worker.text.detokenize(ids)})
