"""/faults: switches for faults that happen in production."""

from typing import Any

from aiohttp import web

from warmpath.lab.simworker.api.errors import ApiError, bad, json_response
from warmpath.lab.simworker.api.fields import Endpoints, Fields, read_body
from warmpath.lab.simworker.events.faulty_outlet import EventFaults

MOST_SLOW = 1e6
SWITCHES = ("crash", "restart", "hang", "slow", "events")


class Faults(Endpoints):
    """The endpoint, which exists only if the worker was started with --allow-faults."""

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/faults", self.show), web.post("/faults", self.switch)]

    async def show(self, _: web.Request) -> web.Response:
        """Answer with the present faults, and the number of batches that each has met."""
        return json_response(self._worker.faults())

    async def switch(self, request: web.Request) -> web.Response:
        """Switch some faults; the others stay. Every value is checked before any fault is switched.

        `events`: rates `drop`, `duplicate`, `delay`, `reorder`, counts `drop_next`, …,
        `delay_seconds`, `seed`. `slow`: how many times longer steps take. `hang`: whether steps end.
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
