"""`POST /kv_cache_events`, as `trtllm-serve` answers it: all events since the last call, once."""

from aiohttp import web

from simworker.trtllm.engine import TrtllmEngine

PATH = "/kv_cache_events"


def events_route(engine: TrtllmEngine) -> web.RouteDef:
    """Return the route for one engine, to be added to an application.

    The read is destructive: two readers take each other's events. Block hashes are unsigned 64-bit
    numbers in the JSON.
    """

    async def answer(_: web.Request) -> web.Response:
        return web.json_response(engine.latest_events())

    return web.post(PATH, answer)
