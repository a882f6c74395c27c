"""The worker's HTTP application: every path with its handler."""

from collections.abc import Callable
from typing import Any

from aiohttp import web

from warmpath.lab.simworker.api.admin import Cache
from warmpath.lab.simworker.api.errors import refusals
from warmpath.lab.simworker.api.faults import Faults
from warmpath.lab.simworker.api.health import Health
from warmpath.lab.simworker.api.inference.chat_forms import ChatForms
from warmpath.lab.simworker.api.inference.completions import Completions
from warmpath.lab.simworker.api.inference.sglang_api import SglangApi
from warmpath.lab.simworker.api.inference.token_api import TokenApi
from warmpath.lab.simworker.api.kv_cache_events import KvCacheEvents
from warmpath.lab.simworker.api.models import Models
from warmpath.lab.simworker.api.tokens import Tokens
from warmpath.lab.simworker.server.worker import Worker

MOST_BODY_BYTES = 64 << 20

OWN = {"vllm": (ChatForms, TokenApi), "sglang": (SglangApi,)}
"""Endpoints that are served as one engine serves them, by its name."""


def application(
    worker: Worker,
    *,
    allow_faults: bool,
    fetch_events: Callable[[Any], list[dict[str, Any]]] | None,
) -> web.Application:
    """Return the application over one worker.

    `fetch_events` returns the events of a rank's engine; with None there is no /kv_cache_events.
    """
    app = web.Application(client_max_size=MOST_BODY_BYTES, middlewares=[refusals])
    own = OWN.get(worker.identity.engine, ())
    for kind in (Completions, Tokens, Models, Health, Cache, *own):
        app.add_routes(kind(worker).routes())
    if fetch_events is not None:
        app.add_routes(KvCacheEvents(worker, fetch_events).routes())
    if allow_faults:
        app.add_routes(Faults(worker).routes())
    return app
