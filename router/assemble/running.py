"""The router's composition root: builds every part, wires them, and closes them in reverse.

It is one function, however long, since nearly every part takes another one; it decides nothing.
"""

import asyncio
import contextlib
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import grpc
from prometheus_client import CollectorRegistry

from warmpath.indexer.embedded import embedded_index
from warmpath.indexer.ranks import Ingest
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.prefixstore.tokenizers.cache import TokenizerCache
from warmpath.prefixstore.tokenizers.tokenizer import TokenizerUnavailableError
from warmpath.process.grpc_tls import channel_credentials
from warmpath.process.health import HealthService
from warmpath.process.lag import watch_lag
from warmpath.process.loop import LoopThread
from warmpath.process.reread import keep_current
from warmpath.process.tasks import Work, kept
from warmpath.process.version import version
from warmpath.process.wall_offset import WallOffset
from warmpath.router import state_file
from warmpath.router.access.entrance import entrance
from warmpath.router.admission.admission import Admission
from warmpath.router.admission.in_flight import InFlight
from warmpath.router.calls import llmd
from warmpath.router.calls.holdings import Holdings
from warmpath.router.calls.intake import STANDARD, STREAMS, Intake
from warmpath.router.calls.llmd import PodScores
from warmpath.router.calls.pick import PickAnswerer
from warmpath.router.calls.score import Answerer
from warmpath.router.calls.server import limit_of_connections, serving
from warmpath.router.calls.service import SERVICE, RouterService
from warmpath.router.calls.standard import standard_handlers
from warmpath.router.calls.traced import TracedCalls
from warmpath.router.config.files import engine_credentials, publisher_credentials
from warmpath.router.config.schema import Config
from warmpath.router.diagnosis.attribution import Attribution
from warmpath.router.diagnosis.decision_log import DecisionLog, write_decisions, write_now
from warmpath.router.diagnosis.decisions import Decisions
from warmpath.router.diagnosis.facts import RouterFacts
from warmpath.router.ending import Drain, Ending
from warmpath.router.endpoint_picker.addresses import engine_of
from warmpath.router.endpoint_picker.pick import EndpointPicks
from warmpath.router.endpoint_picker.protocol import ANSWERING, HEALTH_NAMES, LIVENESS
from warmpath.router.endpoint_picker.protocol import SERVICE as EXTERNAL_PROCESSOR
from warmpath.router.endpoint_picker.service import EndpointPickerService
from warmpath.router.inference_api.reader import InferenceReader
from warmpath.router.inference_api.request import ModelTraits
from warmpath.router.match.match import Scorer
from warmpath.router.metrics.calls import Metrics
from warmpath.router.metrics.parts import Parts
from warmpath.router.metrics.scrape import MetricsPage
from warmpath.router.pages.dynamo import Overlaps, pages
from warmpath.router.pages.files import file_pages
from warmpath.router.pages.json_calls import json_calls
from warmpath.router.pages.listener import Pages, serving_http
from warmpath.router.pages.live_stream import LIVE, LiveStream
from warmpath.router.pages.live_view import Views
from warmpath.router.peers import booking_id
from warmpath.router.peers.exchange import PeerBookings
from warmpath.router.peers.run import sharing
from warmpath.router.pick.doubted_models import DoubtedModels
from warmpath.router.pick.group_window import GroupWindow
from warmpath.router.pick.pick import Witness
from warmpath.router.pick.picker import Picker
from warmpath.router.pick.picking import Picking, believed_bytes, prefill_model
from warmpath.router.pods.follow import Follower, follow_configured, following, saved_ranks
from warmpath.router.pods.look import sources
from warmpath.router.pods.shared_index import (
    SharedPods,
    asking,
    is_asked_by_answers,
    reached,
    shared_pods,
)
from warmpath.router.pods.table import Pod, PodTable
from warmpath.router.prompt.limits import PromptLimits
from warmpath.router.prompt.reader import PromptReader
from warmpath.router.prompt.texts import texts
from warmpath.router.queue.queueing import held_picks
from warmpath.router.readiness import (
    COVERAGE,
    INDEX,
    PODS,
    TOKENIZERS,
    Condition,
    Readiness,
    a_pod_is_well,
    pods_are_covered,
    tokenizers_are_loaded,
)
from warmpath.router.refusal_log import RefusalLog, Refusals
from warmpath.router.reload import ReloadableParts
from warmpath.router.tracing.steps import Steps
from warmpath.router.tracing.tracer import NO_TRACER, Tracer

EXPIRE_SECONDS = 1.0
TRYING = 0.2
"""Share of `endpoint-picker.pick-seconds` in which a request waits until its template is tried out."""


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
    config: Config, folder: Path, tracer: Tracer = NO_TRACER
) -> AsyncIterator[Running]:
    """Serve for as long as the context is open; `folder` is where relative paths begin.

    The caller closes the `tracer` afterwards.

    Raises OSError if an address cannot be bound, if a file of [watch] or [probe] cannot be used, or if
    the state file's path must not be written to (`router.state_file`). If a tokenizer cannot be loaded,
    this is logged and affects only texts of its model: Score refuses them, Pick estimates their tokens
    by their length. On leaving, the router ends step by step (`router.ending`); then OSError is
    raised if the state cannot be saved.
    """
    table = config.index
    if table.state_file and (problem := state_file.foreign(folder / table.state_file)):
        raise OSError(f"index.state-file: {problem}")
    async with AsyncExitStack() as stack:
        server = config.server
        readiness = Readiness(server.ready)
        enter = entrance(config, folder)
        publishers = publisher_credentials(config.watch, folder)
        engines = engine_credentials(config.probe, folder)
        read = await stack.enter_async_context(texts(config, folder, engines, tracer.request))
        shared = config.shared_index
        names = KeyNames(shared.prefix)
        redis = remote = None
        if shared.url and is_asked_by_answers(shared):
            redis = await stack.enter_async_context(reached(shared, folder))
            if shared.mode == "shared":
                remote = await stack.enter_async_context(asking(shared, redis))
        ingest = Ingest(
            embedded_index(config.index.max_bytes),
            hash_seed=config.index.hash_seed,
            pending_bytes=config.events.pending_bytes,
            orphan_bytes=config.events.orphan_bytes,
            stale_after=config.events.stale_seconds,
            lag_seconds=config.events.lag_seconds,
            clock=time.monotonic,
            remote=remote,
        )
        pods = PodTable()
        found_by = sources(config, folder)
        states = [source.state for source in found_by]
        readiness.look(PODS, partial(a_pod_is_well, pods, states))
        readiness.look(COVERAGE, partial(pods_are_covered, pods, states, server.ready_coverage))
        readiness.look(TOKENIZERS, partial(_tokenizers, read.tokenizers))
        readiness.set(INDEX, holds=True, reason="this router copies no index")
        thread = await stack.enter_async_context(LoopThread("following"))
        through = None
        if shared.url:
            pods_of_index = _shared_pods(config, folder, ingest, readiness)
            through = await thread.enter(pods_of_index, stack)
        wall_offset = WallOffset()
        decisions = Decisions(config.pick.kept_decisions, wall_offset=wall_offset)
        attribution = Attribution()
        witnesses: list[Witness] = [decisions, attribution]
        logged: DecisionLog | None = None
        if file := config.pick.decision_log:
            rng = Random(secrets.randbits(64))  # noqa: S311  draws samples, guards nothing
            logged = DecisionLog(config.pick.decision_log_share, rng, wall_offset=wall_offset)
            witnesses.append(logged)
            stack.push_async_callback(write_now, logged, file, folder)
            writing = Work("logging decisions", partial(write_decisions, logged, file, folder))
            stack.callback(kept(writing).cancel)
        router = booking_id.new_router()
        picking = Picking(
            config.pick,
            config.booking,
            config.queue,
            index=embedded_index(believed_bytes(config.pick)),
            new_id=partial(booking_id.new_id, router),
            rng=Random(secrets.randbits(64)),  # noqa: S311  breaks ties, guards nothing
            witnesses=witnesses,
            share=partial(PeerBookings, router, names, hash_seed=config.index.hash_seed)
            if shared.share_bookings
            else None,
            batch=ingest.batch,
        )
        loop = asyncio.get_running_loop()

        def forget(pod: Pod) -> None:
            picking.forget(pod)
            attribution.forget(pod.id)
            answerer.forget(pod)

        def listed() -> None:
            read.models.engines_adapters = pods.found_by_name()

        follower = Follower(
            ingest,
            pods,
            hash_seed=config.index.hash_seed,
            folder=folder,
            events=config.events,
            probe=config.probe,
            credentials=channel_credentials(publishers) if publishers else None,
            tls=engines,
            shared=through,
            observed=lambda *seen: _call_in(loop, picking.observe, *seen),
            ended=lambda pod: _call_in(loop, picking.engine_ended, pod),
            gone=lambda pod: _call_in(loop, forget, pod),
            listed=listed,
            answered=lambda pod: picking.bookings.answered_at(pod.id, len(pod.ranks)),
            saved=saved_ranks(config.index, folder),
        )
        follows = following(config, folder, ingest, follower, found_by)
        reconciler = await thread.enter(follows, stack)
        registry = CollectorRegistry()
        metrics = Metrics(registry, tracer)
        steps = Steps(metrics, tracer)
        loading = kept(
            Work(
                "loading required tokenizers",
                partial(
                    _load_required, read.tokenizers, readiness, config.tokenizers.retry_seconds
                ),
            )
        )
        stack.callback(loading.cancel)
        lag = kept(Work("watching the loop", partial(watch_lag, metrics.lagged, time.monotonic)))
        stack.callback(lag.cancel)
        bounds = PromptLimits(config.limits.max_prompt_bytes, config.limits.max_prompt_tokens)
        reader = PromptReader(read, bounds, steps)
        scorer = Scorer(
            ingest,
            config.index.hash_seed,
            believed=picking.believed,
            elsewhere=picking.elsewhere,
            shared_tiers={model.name: frozenset(model.shared_tiers) for model in config.models},
            steps=steps,
        )
        picker = picking.picker(scorer, steps)
        picker.add_witness(DoubtedModels(partial(thread.soon, follower.doubt_models)))
        expiring = kept(Work("ending picks that nobody reports on", partial(_expire, picker)))
        stack.callback(expiring.cancel)
        limits = config.limits
        largest = limits.largest_message
        room = partial(
            InFlight, largest=largest, seconds=limits.message_seconds, clock=time.monotonic
        )
        calls, streams = room(limits.max_in_flight_bytes), room(STREAMS * largest)
        admission = Admission(
            wait_seconds=limits.wait_seconds,
            overload_seconds=limits.overload_wait_seconds,
            soon=loop.call_soon,
            clock=time.monotonic,
            chance=Random(secrets.randbits(64)).random,  # noqa: S311  shares room, guards nothing
        )
        answerer = Answerer(
            reader,
            scorer,
            pods,
            clock=time.monotonic,
            wall_offset=wall_offset,
            load=picking.loads.load,
            steps=steps,
        )
        held = held_picks(
            config,
            picking,
            picker,
            pods,
            meter=metrics,
            may=enter.classes_of,
            who=enter.caller_of,
            steps=steps,
        )
        picks = PickAnswerer(
            reader,
            pods,
            ingest,
            picker=picker,
            window=GroupWindow(
                picker,
                seconds=config.pick.group_seconds,
                size=config.pick.group_size,
                clock=time.monotonic,
                steps=steps,
            ),
            loads=picking.loads,
            decisions=decisions,
            attribution=attribution,
            clock=time.monotonic,
            wall_offset=wall_offset,
            held=held,
            peers=picking.peers,
            steps=steps,
            router=RouterFacts(readiness, states, picking.peers),
        )
        if picking.peers is not None and redis is not None:
            await stack.enter_async_context(
                sharing(
                    picking.peers,
                    picking.loads,
                    redis,
                    reported=picks.reports.handed_on,
                    read=picking.on_room,
                    rng=Random(secrets.randbits(64)),  # noqa: S311  spreads rounds, guards nothing
                )
            )
        refusals = RefusalLog(
            {
                "limits.wait-seconds or limits.overload-wait-seconds": Refusals(
                    lambda: admission.refused, "a-router-is-overloaded"
                ),
                "limits.max-in-flight-bytes": Refusals(
                    lambda: calls.refused + streams.refused, "a-router-is-overloaded"
                ),
                "queue.max-requests or queue.max-bytes": Refusals(
                    lambda: held.queue.refused if held else 0, "the-queue-is-long"
                ),
                limit_of_connections(config): Refusals(
                    lambda: metrics.refused_connections,
                    "a-router-is-overloaded",
                    "connections",
                    lambda: metrics.last_refused,
                ),
            }
        )
        telling = kept(Work("telling the log of refused calls", refusals.keep_looking))
        stack.callback(telling.cancel)
        drain = Drain(time.monotonic)
        intake = Intake(
            calls, streams, metrics, seconds=limits.message_seconds, admission=admission
        )
        service = RouterService(
            answerer,
            picks,
            metrics,
            drain,
            intake,
            tokenize_seconds=limits.tokenize_seconds,
            tracer=tracer,
        )
        # A template is tried out once, within the time for a pick.
        seconds = TRYING * config.endpoint_picker.pick_seconds
        traits = ModelTraits(read.models, read.renderer, seconds)
        endpoint_picks = EndpointPicks(
            picks,
            InferenceReader(bounds, partial(engine_of, read.models, pods), traits),
            pods,
            read.models,
            config.endpoint_picker,
            prefill=prefill_model(config.pick),
            tokenize_seconds=limits.tokenize_seconds,
            steps=steps,
        )
        endpoint_picker = EndpointPickerService(
            endpoint_picks,
            picks.reports,
            config.endpoint_picker,
            meter=metrics,
            drain=drain,
            intake=intake,
            admission=admission,
            most_body_bytes=limits.max_prompt_bytes,
            tracer=tracer,
        )
        kept_by_parts = Parts(
            ingest,
            read,
            picking,
            attribution,
            (calls, streams),
            readiness=readiness,
            pods=pods,
            admission=admission,
            endpoint_picker=endpoint_picker,
            decision_log=logged,
            held=held,
            shared=through,
            sources=states,
            tls={
                table: tls
                for table, tls in (
                    ("server.tls", enter.tls),
                    ("watch", publishers),
                    ("probe", engines.tls),
                )
                if tls is not None
            },
        )
        # Health checks have room of their own, so that they wait for no other call or stream.
        few = STANDARD * largest
        standard = Intake(room(few), room(few), metrics, seconds=limits.message_seconds)
        files = [*enter.files, engines.tls.files, *read.sources.files]
        if publishers is not None:
            files.append(publishers.files)
        current = kept(Work("reading certificates and tokens", partial(keep_current, files)))
        stack.callback(current.cancel)
        holdings = Holdings(reader, scorer, pods)
        overlaps = Overlaps(holdings, limits.max_prompt_tokens)
        views = Views(
            pods,
            picking.loads,
            attribution,
            readiness,
            held=held,
            version=version(),
            host=socket.gethostname(),
            clock=time.monotonic,
            wall_offset=wall_offset,
        )
        live = LiveStream(views, picks.list_decisions, clock=time.monotonic)
        remembering = kept(Work("remembering the last hour", live.remember))
        stack.callback(remembering.cancel)
        http = serving_http(
            server.metrics_listen,
            readiness,
            enter,
            metrics,
            pages=Pages(
                posts={
                    **pages(service, overlaps, limits.max_prompt_bytes, tracer),
                    **json_calls(service, limits.max_prompt_bytes, tracer),
                },
                gets={
                    LIVE: live.page,
                    "/metrics": MetricsPage(
                        registry, kept_by_parts.steps, clock=time.monotonic
                    ).page,
                },
                files=file_pages(),
            ),
            sources=states,
        )
        http_address = await stack.enter_async_context(http)
        stack.callback(live.end)
        services = SERVICE.full_name, llmd.SERVICE.full_name, EXTERNAL_PROCESSOR
        answers = {ANSWERING: partial(readiness.ready, besides=PODS)}
        of_pods = ("", *services, *HEALTH_NAMES)
        checks = HealthService(readiness.ready, of_pods, (LIVENESS,), answers)
        calls_of: tuple[grpc.GenericRpcHandler, ...] = (
            service.handlers(),
            llmd.handlers(service, PodScores(holdings, config.llmd)),
        )
        if tracer.is_on:
            calls_of = tuple(TracedCalls(one, tracer) for one in calls_of)
        handlers = (
            *calls_of,
            endpoint_picker.handlers(),
            *standard_handlers(checks, services, (SERVICE.file, llmd.SERVICE.file), standard),
        )
        ending = Ending(
            readiness,
            drain,
            delay_seconds=server.drain_delay_seconds,
            drain_seconds=server.drain_seconds,
            release=held.drain if held is not None else _nothing,
        )
        guarded = enter.guarded(handlers, metrics)
        gate = service.gate(admission, llmd.SERVICE)
        address = await stack.enter_async_context(
            serving(
                config,
                guarded,
                checks,
                readiness,
                ending,
                gate=gate,
                full=metrics.refused_connection,
                tls=enter.tls,
            )
        )
        parts = ReloadableParts(
            readiness=readiness,
            pods=pods,
            sources=states,
            admission=admission,
            calls=calls,
            service=service,
            endpoint_picks=endpoint_picks,
            picks=picks,
            picker=picker,
            held=held,
            follow=lambda specs: thread.call(follow_configured(reconciler, specs)),
        )
        yield Running(address, http_address, readiness, ingest, parts.apply)


def _shared_pods(
    config: Config, folder: Path, ingest: Ingest, readiness: Readiness
) -> AbstractAsyncContextManager[SharedPods]:
    """Return a context that follows pods through the shared index.

    In replica mode the router becomes ready when all pods are copied, or the first attempt has failed.
    """
    if config.shared_index.mode == "replica":
        reason = "the pods' blocks are being copied for the first time"
        readiness.set(INDEX, holds=False, reason=reason)

    def settled(reason: str) -> None:
        readiness.set(INDEX, holds=True, reason=reason)

    return shared_pods(config, folder, ingest, settled)


def _nothing() -> None:
    """Do nothing: without a queue no request waits for a pod."""


def _tokenizers(cache: TokenizerCache) -> Condition:
    return tokenizers_are_loaded(cache.registered, cache.lacking())


async def _load_required(cache: TokenizerCache, readiness: Readiness, pause: float) -> None:
    """Try to load missing tokenizers every `pause` seconds while readiness requires them.

    Without this a router would stay unready for ever: only calls load tokenizers, and none would come.
    """
    while True:
        await asyncio.sleep(pause)
        if readiness.requires(TOKENIZERS):
            for model in cache.lacking():
                with contextlib.suppress(TokenizerUnavailableError):
                    await cache.get(model)


def _call_in(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: object) -> None:
    """Call `function` with `args` in the thread of `loop`, which answers picks."""
    # The loop may be closed already, when the process is about to end.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *args)


async def _expire(picker: Picker) -> None:
    """Expire picks, bookings and beliefs; without this only the next pick would expire them."""
    while True:
        picker.expire(time.monotonic())
        await asyncio.sleep(EXPIRE_SECONDS)
