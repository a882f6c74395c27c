"""The worker's HTTP application: what is served where."""

from aiohttp import web

from simworker.api.cache import Cache
from simworker.api.completions import Completions
from simworker.api.errors import refusals
from simworker.api.faults import Faults
from simworker.api.health import Health
from simworker.api.models import Models
from simworker.api.tokens import Tokens
from simworker.worker import Worker

MOST_BODY_BYTES = 64 << 20


def application(worker: Worker, *, allow_faults: bool) -> web.Application:
    """Return the application over one worker."""
    app = web.Application(client_max_size=MOST_BODY_BYTES, middlewares=[refusals])
    for kind in (Completions, Tokens, Models, Health, Cache):
        app.add_routes(kind(worker).routes())
    if allow_faults:
        app.add_routes(Faults(worker).routes())
    return app
