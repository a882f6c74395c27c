"""Builds one worker: its engines, event streams, and the parts that its handlers use."""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import zmq.asyncio

from warmpath.lab.simworker.build_engine import ENGINES
from warmpath.lab.simworker.events.dialect import Dialect, dialect_named
from warmpath.lab.simworker.events.faulty_outlet import FaultyOutlet
from warmpath.lab.simworker.events.from_v1 import KeptOnce
from warmpath.lab.simworker.events.publisher import Journal, Publisher, rank_endpoint
from warmpath.lab.simworker.events.wire_event import WireEvent
from warmpath.lab.simworker.host import Host
from warmpath.lab.simworker.options import Settings
from warmpath.lab.simworker.server.adapters import Adapters
from warmpath.lab.simworker.server.metrics import NAMES, WorkerMetrics
from warmpath.lab.simworker.server.rank import Rank
from warmpath.lab.simworker.server.shell import Pace
from warmpath.lab.simworker.server.text import FolderText, TextCodec
from warmpath.lab.simworker.server.worker import Identity, Worker

CRASH_STATUS = 139
"""The exit status that a shell shows for a process that a segmentation fault ended."""


def load_text(settings: Settings) -> tuple[TextCodec, Settings]:
    """Load the tokenizer, and set the vocabulary's size to its own. Raises OSError or ValueError."""
    if settings.tokenizer is None:
        return TextCodec(), settings
    text = FolderText(settings.tokenizer)
    engine = replace(settings.engine, vocab_size=text.vocab_size)
    return text, replace(settings, engine=engine)


def build_host(
    settings: Settings, number: int, text: TextCodec, context: zmq.asyncio.Context
) -> Host:
    """Build worker `number` of the process. Raises EndpointError."""

    def build(host: Host) -> tuple[Worker, Sequence[Publisher]]:
        return _build(host, settings, number, text, context)

    alone = settings.workers == 1
    return Host(
        build,
        listen=(settings.host, settings.port + number if settings.port else 0),
        settings=settings,
        fetch_events=ENGINES[settings.engine.engine].fetch_events,
        exit_process=partial(os._exit, CRASH_STATUS) if alone else None,
    )


def _build(
    host: Host, settings: Settings, number: int, text: TextCodec, context: zmq.asyncio.Context
) -> tuple[Worker, Sequence[Publisher]]:
    dialect = dialect_named(settings.dialect, byte_hashes=settings.byte_hashes)
    publishers: list[Publisher] = []
    with ExitStack() as opened:
        for rank in range(settings.ranks):
            publishers.append(_publisher(settings, number, rank, dialect, context))
            opened.callback(publishers[-1].close)
        worker = _worker(host, settings, text, dialect, publishers)
        # All sockets are open: from now on the host closes them.
        opened.pop_all()
    return worker, publishers


def _worker(
    host: Host,
    settings: Settings,
    text: TextCodec,
    dialect: Dialect,
    publishers: Sequence[Publisher],
) -> Worker:
    def build_ranks(worker: Worker) -> list[Rank[Any]]:
        return [
            _rank(settings, rank, publisher=publisher, dialect=dialect, worker=worker, host=host)
            for rank, publisher in enumerate(publishers)
        ]

    identity = Identity(
        settings.model,
        ENGINES[settings.engine.engine].metrics or dialect.engine,
        settings.engine.vocab_size,
        settings.engine.max_model_len,
        settings.stream_interval,
        priorities=settings.engine.scheduling_policy == "priority",
        streams=ENGINES[settings.engine.engine].streams,
    )
    return Worker(
        identity,
        text,
        ENGINES[settings.engine.engine].version or dialect.version,
        new_adapters=lambda: _adapters(settings),
        new_metrics=lambda worker: _metrics(settings, worker),
        build_ranks=build_ranks,
        publishers=publishers,
        reset_connections=host.reset_connections,
        crash=host.crash,
        start_task=host.tasks.start,
    )


def _adapters(settings: Settings) -> Adapters:
    adapters = Adapters(settings.model)
    for name, path in settings.lora_modules:
        adapters.load(name, path)
    return adapters


def _metrics(settings: Settings, worker: Worker) -> WorkerMetrics:
    engine = settings.engine
    return WorkerMetrics(
        NAMES[settings.metrics],
        settings.model,
        cache_config={
            "block_size": str(engine.block_size),
            "num_gpu_blocks": str(engine.blocks),
            "enable_prefix_caching": str(engine.enable_prefix_caching),
            "prefix_caching_hash_algo": engine.hash_algo,
        },
        sleep_level=lambda: worker.sleep_level,
        started=time.time(),
    )


def _publisher(
    settings: Settings, number: int, rank: int, dialect: Dialect, context: zmq.asyncio.Context
) -> Publisher:
    offset = number * settings.ranks + rank
    ends = (
        rank_endpoint(settings.events_endpoint, offset),
        rank_endpoint(settings.replay_endpoint, offset),
    )
    if not ENGINES[settings.engine.engine].streams:
        # Nothing is ever published, so no port is taken.
        ends = (f"inproc://events-{offset}", f"inproc://replay-{offset}")
    return Publisher(
        context,
        *ends,
        topic=settings.topic.replace("{worker}", str(number)),
        journal=Journal(settings.buffer_steps),
        outlet=FaultyOutlet(settings.faults.events),
        replays_topic=dialect.replays_topic,
        clock=time.monotonic,
    )


def _rank(
    settings: Settings,
    number: int,
    *,
    publisher: Publisher,
    dialect: Dialect,
    worker: Worker,
    host: Host,
) -> Rank[Any]:
    kind = ENGINES[settings.engine.engine]
    once = KeptOnce() if dialect.keeps_once else None

    def publish(events: Sequence[WireEvent]) -> None:
        announced = once.announced(events) if once else events
        if announced:
            publisher.publish(dialect.batch(time.time(), announced, number))

    def announce(events: Sequence[Any]) -> None:
        wire_events = kind.wire_events(events, worker.adapters.number_of)
        if wire_events:
            publish(wire_events)

    def begin_stream() -> None:
        publisher.begin_life()
        if dialect.opening:
            publish(dialect.opening)

    def modelled() -> float:
        return time.monotonic() * settings.speed

    new_engine: Callable[[], Any] = partial(kind.build, settings.engine, modelled)
    return Rank(
        number,
        new_engine,
        announce,
        begin_stream,
        lambda: worker.metrics.observer(number),
        clock=time.monotonic,
        pace=Pace(asyncio.sleep, speed=settings.speed, factor=settings.faults.slow),
        tasks=host.tasks,
    )
