"""Builds what answers calls: Score, Pick and the others, llm-d's, and Envoy's exchanges."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from warmpath.h2grpc.method import Method
from warmpath.process.health import HealthService
from warmpath.router.admission.admission import Admission
from warmpath.router.admission.in_flight import InFlight
from warmpath.router.assemble.index import Indexed
from warmpath.router.assemble.means import Means
from warmpath.router.assemble.picks import Picks, random
from warmpath.router.calls import llmd
from warmpath.router.calls.intake import MESSAGE_SECONDS, STANDARD, STREAMS, Intake
from warmpath.router.calls.llmd import PodScores
from warmpath.router.calls.pick import PickAnswerer
from warmpath.router.calls.score import Answerer
from warmpath.router.calls.server import limit_of_connections, traced_methods
from warmpath.router.calls.service import SERVICE, RouterService
from warmpath.router.calls.standard import standard_methods
from warmpath.router.config.schema import Config
from warmpath.router.diagnosis.blindness import Blindness
from warmpath.router.diagnosis.findings import RouterFacts
from warmpath.router.ending import Drain
from warmpath.router.endpoint_picker.access_log import AnswerLog
from warmpath.router.endpoint_picker.pick import EndpointPicks, engine_of
from warmpath.router.endpoint_picker.protocol import ANSWERING, HEALTH_NAMES, LIVENESS
from warmpath.router.endpoint_picker.protocol import SERVICE as EXTERNAL_PROCESSOR
from warmpath.router.endpoint_picker.service import EndpointPickerService
from warmpath.router.inference_api.reader import InferenceReader
from warmpath.router.inference_api.request import traits_of
from warmpath.router.peers.run import INTERVALS, sharing
from warmpath.router.peers.siblings import INTERVALS as AMONG_SIBLINGS
from warmpath.router.pick.eligible import Eligible
from warmpath.router.pick.picking import prefill_model
from warmpath.router.prompt.limits import PromptLimits
from warmpath.router.prompt.reader import PromptReader
from warmpath.router.prompt.texts import Texts
from warmpath.router.queue.cold_starts import ColdStarts
from warmpath.router.queue.demand import Demand
from warmpath.router.queue.held_picks import HeldPicks
from warmpath.router.queue.request import ClientWaits
from warmpath.router.readiness import PODS
from warmpath.router.shadow.log_feed import LogFeed

log = logging.getLogger(__name__)

TRYING = 0.2
"""Share of `endpoint-picker.pick-seconds` that a request may wait until its template is tried out."""

DEMAND_SECONDS = 1.0
"""Pause between two looks at the demand for pods: short beside its averages."""

LOOK_SECONDS = 10.0
"""Pause between two looks, for the log, at the numbers of refusals and for blind spots."""


class Refused(NamedTuple):
    """How many calls or connections some limits have refused since the start."""

    limits: str
    """The keys of the limits."""
    number: int
    runbook: str
    """The anchor of the section of docs/guides/operate.md about such refusals."""
    what: str = "calls"
    last: str = ""
    """The address of the last one's client; empty if it is not known."""


@dataclass(frozen=True, slots=True)
class Calls:
    """The parts that answer calls."""

    service: RouterService
    endpoint_picker: EndpointPickerService
    answers: AnswerLog
    admission: Admission
    cold_starts: ColdStarts
    demand: Demand
    feed: LogFeed | None
    """Takes the lines of another gateway's access log; None: no log is followed."""


async def calls(means: Means, indexed: Indexed, texts: Texts, chosen: Picks) -> Calls:
    """Build what answers calls; `means.stack` closes it. Nothing listens yet."""
    config, limits, metrics = means.config, means.config.limits, means.metrics
    admission = Admission(
        wait_seconds=limits.wait_seconds,
        soon=asyncio.get_running_loop().call_soon,
        clock=time.monotonic,
    )
    messages = _room(config, limits.max_in_flight_bytes)
    streams = _room(config, STREAMS * limits.largest_message)
    reader = PromptReader(
        texts, PromptLimits(limits.max_prompt_bytes, limits.max_prompt_tokens), means.steps
    )
    answerer = Answerer(
        reader,
        chosen.picking.scorer,
        indexed.pods,
        clock=time.monotonic,
        wall_offset=chosen.wall_offset,
        load=chosen.picking.loads.load,
        steps=means.steps,
    )
    # The other half of a connection's calls is for reports, and for picks that wait for nothing.
    waits = ClientWaits(max(1, config.server.http2.max_streams // 2))
    cold_starts = ColdStarts(
        config.queue,
        eligible=Eligible(indexed.pods),
        may=means.enter.classes_of,
        who=means.enter.caller_of,
        waited=metrics.waited,
        waits=waits,
        clock=time.monotonic,
    )
    held = None
    if config.pick.queue != "off":
        held = HeldPicks(
            config,
            chosen.picking,
            indexed.pods,
            may=means.enter.classes_of,
            who=means.enter.caller_of,
            waited=metrics.waited,
            waits=waits,
            steps=means.steps,
        )
    peers = chosen.picking.peers
    picks = PickAnswerer(
        reader,
        indexed.pods,
        indexed.ingest,
        chosen.picking,
        decisions=chosen.decisions,
        attribution=chosen.attribution,
        clock=time.monotonic,
        wall_offset=chosen.wall_offset,
        held=held,
        cold_starts=cold_starts,
        steps=means.steps,
        router=RouterFacts(
            means.readiness, indexed.states, peers, texts.pool.rechecks.disagreements
        ),
        is_shadow=means.shadow is not None,
        passed_on=chosen.passed_on,
        session_in_body=config.endpoint_picker.session_in_body,
    )
    # Routers that share bookings share them with all processes of each.
    shares_all = config.shared_index.share_bookings
    board = indexed.redis if shares_all else means.siblings
    if peers is not None and board is not None:
        shares = sharing(
            peers,
            chosen.picking.loads,
            board,
            reported=picks.reports.handed_on,
            read=chosen.picking.on_room,
            rng=random(),
            pause=INTERVALS if shares_all else AMONG_SIBLINGS,
        )
        await means.stack.enter_async_context(shares)
    drain = Drain(time.monotonic)
    intake = Intake(messages, streams, metrics, admission=admission)
    service = RouterService(
        answerer,
        picks,
        metrics,
        drain,
        intake,
        tokenize_seconds=limits.tokenize_seconds,
        tracer=means.tracer,
    )
    means.keep("warning of blind spots", partial(_keep_warning, picks.blindness))
    telling = partial(_keep_telling, partial(_refused, means, service, admission, cold_starts))
    means.keep("telling the log of refused calls", telling)
    picker = _endpoint_picker(means, indexed, texts, service, admission)
    feed = None
    if means.shadow is not None and means.shadow.log is not None:
        feed = LogFeed(
            means.shadow.log,
            picker.picks,
            chosen.picking.picker,
            clock=time.monotonic,
            wall_offset=chosen.wall_offset,
        )
        means.stack.callback(feed.close)
    kinds = {(one.model, one.role) for one in config.pods}
    kinds |= {(one.model, one.role) for one in config.pod_sets}
    loads = chosen.picking.loads
    demand = Demand(kinds, indexed.pods, loads, cold_starts.counts)
    means.keep("looking at the demand for pods", partial(_keep_looking, demand))
    answers = AnswerLog(picks.reports, drain)
    return Calls(service, picker, answers, admission, cold_starts, demand, feed)


async def _keep_looking(demand: Demand) -> None:
    while True:
        demand.look(time.monotonic())
        await asyncio.sleep(DEMAND_SECONDS)


def _room(config: Config, most: int) -> InFlight:
    limits = config.limits
    return InFlight(
        most, largest=limits.largest_message, seconds=MESSAGE_SECONDS, clock=time.monotonic
    )


def _endpoint_picker(
    means: Means, indexed: Indexed, texts: Texts, service: RouterService, admission: Admission
) -> EndpointPickerService:
    config, limits = means.config, means.config.limits
    table = config.endpoint_picker
    # A template is tried out once, within the time for a pick.
    seconds = TRYING * table.pick_seconds
    traits = partial(traits_of, texts.models, texts.renderer, seconds)
    bounds = PromptLimits(limits.max_prompt_bytes, limits.max_prompt_tokens)
    endpoint_picks = EndpointPicks(
        service.picks,
        InferenceReader(bounds, partial(engine_of, texts.models, indexed.pods), traits),
        indexed.pods,
        texts.models,
        table,
        prefill=prefill_model(config.pick),
        tokenize_seconds=limits.tokenize_seconds,
        steps=means.steps,
    )
    return EndpointPickerService(
        endpoint_picks,
        service.picks.reports,
        table,
        meter=means.metrics,
        drain=service.drain,
        admission=admission,
        most_body_bytes=limits.max_prompt_bytes,
        tracer=means.tracer,
    )


def _refused(
    means: Means, service: RouterService, admission: Admission, cold_starts: ColdStarts
) -> list[Refused]:
    metrics, intake, held = means.metrics, service.intake, service.picks.held
    overloaded = "a-router-is-overloaded"
    without_room = intake.calls.refused + intake.streams.refused
    queue = "queue.max-requests or queue.max-bytes"
    of_queue = cold_starts.refused + (held.queue.refused if held else 0)
    connections, limit = metrics.refused_connections, limit_of_connections(means.config)
    return [
        Refused("limits.wait-seconds", admission.refused, overloaded),
        Refused("limits.max-in-flight-bytes", without_room, overloaded),
        Refused(queue, of_queue, "the-queue-is-long"),
        Refused(limit, connections, overloaded, "connections", metrics.last_refused),
    ]


async def _keep_warning(blindness: Blindness) -> None:
    """Log each blind spot when it is found, and each hour while it is there, until cancelled."""
    while True:
        for spot in blindness.news(time.monotonic()):
            log.warning("model %r: %s", spot.model, spot.text)
        await asyncio.sleep(LOOK_SECONDS)


async def _keep_telling(look: Callable[[], Sequence[Refused]]) -> None:
    """Log how many were refused since the last look, if any were, until cancelled.

    A line for each of them would cost what their early refusal saves.
    """
    before = look()
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        now = look()
        for earlier, one in zip(before, now, strict=True):
            if refused := one.number - earlier.number:
                log.warning(
                    "%d %s were refused by %s%s: docs/guides/operate.md#%s",
                    refused,
                    one.what,
                    one.limits,
                    one.last and f", the last one from {one.last}",
                    one.runbook,
                )
        before = now


def methods(means: Means, made: Calls) -> tuple[Mapping[str, Method], HealthService]:
    """Return the methods of all calls, with the check of who calls, and the health checks."""
    config, readiness, tracer = means.config, means.readiness, means.tracer
    services = SERVICE.full_name, llmd.SERVICE.full_name, EXTERNAL_PROCESSOR
    looks: dict[str, Callable[[], bool]] = {
        **dict.fromkeys(("", *services, *HEALTH_NAMES), readiness.ready),
        ANSWERING: partial(readiness.ready, besides=PODS),
        LIVENESS: lambda: True,
    }
    checks = HealthService(looks)
    of_all = {
        **made.service.methods(),
        **llmd.methods(made.service, PodScores(made.service.answerer, config.llmd)),
    }
    if tracer.is_on:
        of_all = traced_methods(of_all, tracer)
    # Health checks have room of their own, so that they wait for no other call or stream.
    few = STANDARD * config.limits.largest_message
    standard = Intake(_room(config, few), _room(config, few), means.metrics)
    of_all |= {
        **made.endpoint_picker.methods(),
        **made.answers.methods(),
        **standard_methods(checks, services, (SERVICE.file, llmd.SERVICE.file), standard),
    }
    return means.enter.guarded(of_all, means.metrics), checks
