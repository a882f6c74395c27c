"""POST /kv_cache_events: events that a reader fetches, as from `trtllm-serve`.

A read takes the events away, so two readers get a part each.
"""

from collections.abc import Callable
from typing import Any

from aiohttp import web

from warmpath.lab.simworker.api.errors import json_response
from warmpath.lab.simworker.server.worker import Worker


class KvCacheEvents:
    """The endpoint of an engine that keeps its events until a reader fetches them."""

    def __init__(self, worker: Worker, fetch: Callable[[Any], list[dict[str, Any]]]) -> None:
        self._worker = worker
        self._fetch = fetch

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [web.post("/kv_cache_events", self.fetch)]

    async def fetch(self, _: web.Request) -> web.Response:
        """Answer with all ranks' events since the last call.

        If there are several ranks, each event names its own.
        """
        ranks = self._worker.ranks
        answer = []
        for rank in ranks:
            events = self._fetch(rank.engine)
            if len(ranks) > 1:
                events = [event | {"attention_dp_rank": rank.number} for event in events]
            answer += events
        return json_response(answer)
