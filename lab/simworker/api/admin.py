"""Endpoints that reset the cache, and put the worker to sleep, wake it and drain it."""

from aiohttp import web

from warmpath.lab.simworker.api.errors import bad, json_response
from warmpath.lab.simworker.api.fields import query_flag
from warmpath.lab.simworker.server.sleep_state import LEVELS, MODES
from warmpath.lab.simworker.server.worker import Worker


class Cache:
    """vLLM's development endpoints. Source: `vllm/entrypoints/serve/dev` of 0.32."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.post("/reset_prefix_cache", self.reset),
            web.post("/sleep", self.sleep),
            web.post("/wake_up", self.wake),
            web.get("/is_sleeping", self.is_sleeping),
            web.post("/drain", self.drain),
        ]

    async def reset(self, request: web.Request) -> web.Response:
        """Forget all cached content; the clear is announced with the next step."""
        done = self._worker.reset_prefix_cache(
            reset_running_requests=query_flag(request, "reset_running_requests"),
            reset_external=query_flag(request, "reset_external"),
        )
        return json_response({"success": done})

    async def sleep(self, request: web.Request) -> web.Response:
        """Pause; from level 1 on discard the cache. New requests wait until the worker wakes."""
        level = request.query.get("level", "1")
        if not level.isdecimal() or int(level) not in LEVELS:
            raise bad("level", "0, 1 or 2")
        asked = request.query.get("mode", MODES[0])
        mode = next((mode for mode in MODES if mode == asked), None)
        if mode is None:
            raise bad("mode", f"one of {', '.join(MODES)}")
        await self._worker.sleep(int(level), mode)
        return json_response({"status": "sleeping", "level": int(level)})

    async def wake(self, request: web.Request) -> web.Response:
        """Wake the worker, or only its parts that the tags name."""
        tags = request.query.getall("tags", []) or None
        awake = self._worker.wake(tags)
        return json_response({"status": "awake" if awake else "sleeping", "tags": tags})

    async def is_sleeping(self, _: web.Request) -> web.Response:
        """Answer whether the worker sleeps."""
        return json_response({"is_sleeping": self._worker.sleeping})

    async def drain(self, request: web.Request) -> web.Response:
        """Refuse new requests from now on; with `wait`, answer when no request is under way."""
        self._worker.draining = True
        if query_flag(request, "wait"):
            await self._worker.drained()
        return json_response({"draining": True, "in_flight": self._worker.in_flight})
