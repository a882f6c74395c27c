"""Builds the router: texts, index, picks, calls and pages; closes them in reverse."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from prometheus_client.core import Metric

from warmpath.indexer.compiled.memory import File
from warmpath.indexer.ranks import Ingest
from warmpath.prefixstore.tokenizers.cache import TokenizerCache
from warmpath.prefixstore.tokenizers.tokenizer import TokenizerUnavailableError
from warmpath.process.command_line import version
from warmpath.process.http_listener import http_listener
from warmpath.process.loop import watch_lag
from warmpath.process.reread import keep_current
from warmpath.router.access.entrance import entrance
from warmpath.router.assemble.calls import Calls, calls, methods
from warmpath.router.assemble.index import Indexed, index
from warmpath.router.assemble.means import Means, OneOfSeveral, ShadowMode
from warmpath.router.assemble.picks import Picks, picks
from warmpath.router.assemble.scraped import scraped
from warmpath.router.calls import llmd
from warmpath.router.calls.server import limits_of, serving
from warmpath.router.calls.service import SERVICE, AdmissionGate
from warmpath.router.config.files import engine_credentials, publisher_credentials
from warmpath.router.config.schema import Config
from warmpath.router.ending import end_router
from warmpath.router.endpoint_picker.plain_calls import PlainCalls
from warmpath.router.metrics.calls import Metrics
from warmpath.router.metrics.llmd import with_llmd_names
from warmpath.router.pages import dynamo
from warmpath.router.pages.json_calls import json_calls
from warmpath.router.pages.listener import MetricsPage, Pages, file_pages, http_app
from warmpath.router.pages.live_stream import LIVE, LiveStream, Views
from warmpath.router.peers.siblings import siblings
from warmpath.router.pods.llmd_lists import keep_listed
from warmpath.router.pods.probe import Links
from warmpath.router.pods.table import Pod
from warmpath.router.pods.tokenize import Tokenizing
from warmpath.router.prompt.texts import Texts, texts
from warmpath.router.prompt.tokenizer_sources import TokenizingPods
from warmpath.router.readiness import (
    COVERAGE,
    PODS,
    TOKENIZERS,
    Condition,
    Readiness,
    a_pod_is_well,
    pods_are_covered,
    tokenizers_are_loaded,
)
from warmpath.router.tracing.steps import NO_TRACER, Steps, Tracer


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

    def families() -> Iterator[Metric | None]:
        own = scraped(means, indexed, texts, chosen, calls)
        pool = means.config.llmd.pool
        return with_llmd_names(own, pool) if pool else own

    metrics = MetricsPage(families, clock=time.monotonic)
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


@dataclass(frozen=True, slots=True)
class Running:
    """A router that serves."""

    address: str
    """host:port of gRPC, the port that was really bound."""
    http_address: str
    """host:port of HTTP; empty if `server.metrics-listen` is empty."""
    readiness: Readiness
    ingest: Ingest
    reload: Callable[[Config], Awaitable[None]]
    """Takes over the reloadable keys of a configuration that was checked."""


@asynccontextmanager
async def running(
    config: Config,
    folder: Path,
    tracer: Tracer = NO_TRACER,
    shadow: ShadowMode | None = None,
    *,
    process: OneOfSeveral | None = None,
) -> AsyncIterator[Running]:
    """Serve for as long as the context is open; `folder` is where relative paths begin.

    With `shadow` no pick decides. `process` says which of several processes this is; None: the only one.

    The caller closes the `tracer` afterwards.

    Raises OSError if an address cannot be bound, or if a file of [watch] or [probe] cannot be used. If a
    tokenizer cannot be loaded, this is logged and affects only texts of its model: Score refuses them,
    Pick estimates their tokens by their length. On leaving, the router ends step by step
    (`router.ending`); then OSError is raised if the state cannot be saved.
    """
    async with AsyncExitStack() as stack:
        metrics = Metrics(tracer)
        readiness = Readiness(config.server.ready)
        enter, steps = entrance(config, folder), Steps(metrics.stepped, tracer)
        means = Means(stack, config, folder, readiness, enter, metrics, steps, tracer, shadow)
        if process is not None:
            means = replace(
                means,
                siblings=await stack.enter_async_context(siblings(process.siblings)),
                memory=File(process.memory),
                follows=process.follows,
            )
        publishers = publisher_credentials(config.watch, folder)
        engines = engine_credentials(config.probe, folder)
        indexed = await index(means, publishers, engines)
        tokenizing = Tokenizing(indexed.pods)
        pods = TokenizingPods(tokenizing.urls, tokenizing.key)
        of_texts = texts(config, folder, engines, pods, tracer.request)
        read = await stack.enter_async_context(of_texts)
        chosen = picks(means, indexed)
        made = await calls(means, indexed, read, chosen)
        _tend(means, indexed, read, made)

        def gone(pod: Pod) -> None:
            chosen.picking.forget(pod)
            chosen.attribution.forget(pod.id)

        def listed() -> None:
            read.models.engines_adapters = indexed.pods.found_by_name()

        bookings = chosen.picking.bookings
        links = Links(
            observed=chosen.picking.observe,
            ended=chosen.picking.engine_ended,
            gone=gone,
            listed=listed,
            answered=lambda pod: bookings.answered_at(pod.id, len(pod.ranks)),
        )
        await indexed.follow(links)
        if made.feed is not None:
            means.keep("following the gateway's log", made.feed.run)
        http_address = await pages(means, indexed, texts=read, chosen=chosen, calls=made)
        guarded, checks = methods(means, made)
        service, held = made.service, made.service.picks.held

        def release() -> None:
            if held is not None:
                held.drain()
            made.cold_starts.end()

        plain = PlainCalls(made.endpoint_picker, enter, checks, limits_of(config))
        means.keep("looking at connections over HTTP/1.1", plain.keep_looking)
        stack.callback(plain.close)
        serves = serving(
            config,
            guarded,
            checks,
            readiness,
            partial(end_router, service.drain, readiness, config.server, release=release),
            gate=AdmissionGate(made.admission, (SERVICE, llmd.SERVICE), metrics, service.drain),
            full=metrics.refused_connection,
            http1=plain.connection,
            tls=enter.tls,
        )
        address = await stack.enter_async_context(serves)
        reload = partial(_reload, means, indexed, chosen, made)
        yield Running(address, http_address, readiness, indexed.ingest, reload)


async def _reload(
    means: Means, indexed: Indexed, chosen: Picks, made: Calls, config: Config
) -> None:
    limits = config.limits
    _require_coverage(means.readiness, indexed, config)
    means.readiness.require(config.server.ready)
    made.service.intake.calls.limit_to(limits.max_in_flight_bytes)
    made.service.tokenize_seconds = limits.tokenize_seconds
    made.endpoint_picker.picks.tokenize_seconds = limits.tokenize_seconds
    chosen.picking.use(config.pick, config.queue)
    if (held := made.service.picks.held) is not None:
        held.use(config.queue)
    made.cold_starts.use(config.queue)
    await indexed.follow_configured(config.pods)


def _require_coverage(readiness: Readiness, indexed: Indexed, config: Config) -> None:
    least = config.server.ready_coverage
    readiness.look(COVERAGE, partial(pods_are_covered, indexed.pods, indexed.states, least))


def _tend(means: Means, indexed: Indexed, read: Texts, made: Calls) -> None:
    config, readiness, pods, states = means.config, means.readiness, indexed.pods, indexed.states

    def look_at_pods() -> Condition:
        found = a_pod_is_well(pods, states)
        if found.holds or not made.cold_starts.seconds:
            return found
        return Condition(holds=True, reason=f"{found.reason}; requests wait for a pod")

    readiness.look(PODS, look_at_pods)
    _require_coverage(readiness, indexed, config)
    cache = read.tokenizers
    readiness.look(TOKENIZERS, lambda: tokenizers_are_loaded(cache.registered, cache.lacking()))
    files = [*means.enter.files, indexed.engines.tls.files, *read.sources.files]
    if indexed.publishers is not None:
        files.append(indexed.publishers.files)
    means.keep("reading certificates and tokens", partial(keep_current, files))
    means.keep("loading required tokenizers", partial(_load_required, cache, readiness))
    if config.llmd.objects:
        listing = partial(keep_listed, made.endpoint_picker.picks.objects, config.llmd)
        means.keep("listing llm-d's objects", listing)
    means.keep("watching the loop", partial(watch_lag, means.metrics.lagged, time.monotonic))


async def _load_required(cache: TokenizerCache, readiness: Readiness) -> None:
    """Try again to load missing tokenizers while readiness requires them.

    Without this a router would stay unready for ever: only calls load tokenizers, and none would come.
    """
    while True:
        await asyncio.sleep(cache.retry_after)
        if readiness.requires(TOKENIZERS):
            for model in cache.lacking():
                with contextlib.suppress(TokenizerUnavailableError):
                    await cache.get(model)
