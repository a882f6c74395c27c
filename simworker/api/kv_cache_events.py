"""POST /kv_cache_events: events that are fetched and not sent, as from `trtllm-serve`.

Source: `shared/engine-events.md`, 6.2. The read is destructive: two readers take each other's events.
"""

from collections.abc import Callable
from typing import Any

from aiohttp import web

from simworker.api.errors import json_response
from simworker.server.worker import Worker


class KvCacheEvents:
    """Served only where the engine keeps its events for whoever fetches them."""

    def __init__(self, worker: Worker, fetch: Callable[[Any], list[dict[str, Any]]]) -> None:
        self._worker = worker
        self._fetch = fetch

    def routes(self) -> list[web.RouteDef]:
        """Return what is served."""
        return [web.post("/kv_cache_events", self.fetch)]

    async def fetch(self, _: web.Request) -> web.Response:
        """Serve every rank's events since the last call, with the rank where there are several."""
        ranks = self._worker.ranks
        told = []
        for rank in ranks:
            events = self._fetch(rank.engine)
            if len(ranks) > 1:
                events = [event | {"attention_dp_rank": rank.number} for event in events]
            told += events
        return json_response(told)
