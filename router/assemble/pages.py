"""Builds what is served over HTTP: the live page, metrics, JSON calls, Dynamo's queries."""

import socket
import time
from functools import partial

from warmpath.process.command_line import version
from warmpath.process.http_listener import http_listener
from warmpath.router.assemble.calls import Calls
from warmpath.router.assemble.index import Indexed
from warmpath.router.assemble.means import Means
from warmpath.router.assemble.picks import Picks
from warmpath.router.assemble.scraped import scraped
from warmpath.router.pages import dynamo
from warmpath.router.pages.json_calls import json_calls
from warmpath.router.pages.listener import MetricsPage, Pages, file_pages, http_app
from warmpath.router.pages.live_stream import LIVE, LiveStream, Views
from warmpath.router.prompt.texts import Texts


async def pages(
    means: Means, indexed: Indexed, *, texts: Texts, chosen: Picks, calls: Calls
) -> str:
    """Serve HTTP until `means.stack` closes; return host:port, empty if none is configured."""
    views = Views(
        indexed.pods,
        chosen.picking.loads,
        chosen.attribution,
        means.readiness,
        calls.service.picks.blindness,
        held=calls.service.picks.held,
        version=version(),
        host=socket.gethostname(),
        clock=time.monotonic,
        wall_offset=chosen.wall_offset,
        begun=time.monotonic(),
        is_shadow=means.shadow is not None,
        log=calls.feed.view if calls.feed else lambda: None,
    )
    live = LiveStream(views, calls.service.picks.list_decisions)
    means.keep("remembering the last hour", live.remember)
    limits = means.config.limits
    most, tracer = limits.max_prompt_bytes, means.tracer
    overlaps = dynamo.Overlaps(calls.service.answerer, limits.max_prompt_tokens)
    steps = partial(scraped, means, indexed, texts, chosen, calls)
    metrics = MetricsPage(steps, clock=time.monotonic)
    served = Pages(
        posts={
            **dynamo.pages(calls.service, overlaps, most, tracer),
            **json_calls(calls.service, most, tracer),
        },
        gets={LIVE: live.page, "/metrics": metrics.page},
        files=file_pages(),
    )
    listen, enter = means.config.server.metrics_listen, means.enter
    if not listen:
        return ""
    app = http_app(means.readiness, enter, means.metrics, pages=served, sources=indexed.states)
    tls = enter.tls.http_context if enter.tls is not None else None
    http = http_listener(app, listen, named="server.metrics-listen", tls=tls)
    address = await means.stack.enter_async_context(http)
    means.stack.callback(live.end)
    return address
