"""Endpoints for the cache, sleep and draining, for probes and scrapers, fetched events and faults."""

from collections.abc import Callable
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from warmpath.lab.simworker.api.errors import ApiError, bad, error_response, json_response
from warmpath.lab.simworker.api.fields import Endpoints, Fields, query_flag, read_body
from warmpath.lab.simworker.events.faulty_outlet import EventFaults
from warmpath.lab.simworker.server.sleep_state import LEVELS, MODES
from warmpath.lab.simworker.server.worker import Worker


class Cache(Endpoints):
    """vLLM's development endpoints. Source: `vllm/entrypoints/serve/dev` of 0.32."""

    def routes(self) -> list[web.RouteDef]:
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
        return json_response({"is_sleeping": self._worker.sleeping})

    async def drain(self, request: web.Request) -> web.Response:
        """Refuse new requests from now on; with `wait`, answer when no request is under way."""
        self._worker.draining = True
        if query_flag(request, "wait"):
            await self._worker.drained()
        return json_response({"draining": True, "in_flight": self._worker.in_flight})


class Health(Endpoints):
    """Health, version, load, metrics and event sources of one worker."""

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/health", self.health),
            web.get("/ping", self.health),
            web.post("/ping", self.health),
            web.get("/version", self.version),
            web.get("/load", self.load),
            web.get("/metrics", self.metrics),
            web.get("/kv_event_sources", self.event_sources),
        ]

    async def health(self, _: web.Request) -> web.Response:
        """Answer 200, or 503 while draining. As in vLLM, an engine that hangs goes unnoticed."""
        if self._worker.draining:
            return error_response("the worker is draining", 503)
        return web.Response()

    async def version(self, _: web.Request) -> web.Response:
        return json_response({"version": self._worker.version})

    async def load(self, _: web.Request) -> web.Response:
        return json_response({"server_load": self._worker.in_flight})

    async def metrics(self, _: web.Request) -> web.Response:
        body = generate_latest(self._worker.metrics.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def event_sources(self, _: web.Request) -> web.Response:
        """Answer with the addresses of each rank's event publisher."""
        return json_response(self._worker.event_sources())


class KvCacheEvents(Endpoints):
    """The endpoint of an engine that keeps its events until a reader fetches them."""

    def __init__(self, worker: Worker, fetch: Callable[[Any], list[dict[str, Any]]]) -> None:
        super().__init__(worker)
        self._fetch = fetch

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/kv_cache_events", self.fetch)]

    async def fetch(self, _: web.Request) -> web.Response:
        """Answer with all ranks' events since the last call.

        If there are several ranks, each event has its rank as `attention_dp_rank`.
        """
        ranks = self._worker.ranks
        answer = []
        for rank in ranks:
            events = self._fetch(rank.engine)
            if len(ranks) > 1:
                events = [event | {"attention_dp_rank": rank.number} for event in events]
            answer += events
        return json_response(answer)


MOST_SLOW = 1e6
SWITCHES = ("crash", "restart", "hang", "slow", "events")


class Faults(Endpoints):
    """/faults: switches for faults that happen in production; only of a worker with --allow-faults."""

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/faults", self.show), web.post("/faults", self.switch)]

    async def show(self, _: web.Request) -> web.Response:
        """Answer with the present faults, and the number of batches that each has met."""
        return json_response(self._worker.faults())

    async def switch(self, request: web.Request) -> web.Response:
        """Switch some faults; the others stay. Every value is checked before any fault is switched.

        `events`: rates `drop`, `duplicate`, `delay`, `reorder`, counts `drop_next`, …,
        `delay_seconds`, `seed`. `slow`: how many times longer steps take. `hang`: no step ends.
        `restart`: a new life begins, connections are reset. `crash`: the life ends without an answer.
        """
        worker = self._worker
        fields = await read_body(request)
        for name in fields.body:
            if name not in SWITCHES:
                raise bad(name, f"is not a fault; the faults are {', '.join(SWITCHES)}")
        slow = _factor(fields)
        hang = fields.flag("hang", default=worker.hung)
        events = self._events(fields)
        restart = fields.flag("restart")
        if fields.flag("crash"):
            worker.crash()
            raise ApiError("crashed", status=503)
        if events is not None:
            worker.spoil_events(events)
        worker.slow_down(worker.slowness if slow is None else slow)
        worker.hang(hang)
        if restart:
            # Only the client that asked for the restart gets an answer.
            worker.restart(spare=request.transport)
        response = json_response(worker.faults())
        if restart:
            response.force_close()
        return response

    def _events(self, fields: Fields) -> EventFaults | None:
        changes = fields.object("events").body
        return self._worker.event_faults.changed(changes) if changes else None


def _factor(fields: Fields) -> float | None:
    value: Any = fields.get("slow")
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= MOST_SLOW:
        raise bad("slow", f"a number above 0 and up to {MOST_SLOW:.0f}")
    return float(value)
