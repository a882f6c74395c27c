"""Connects to the sockets from which a pod's events and replays come, and leaves again.

No event is taken from another reader: a subscription has its own copy, and the replay that is asked for
begins after every batch. TensorRT-LLM's events are not asked for, as each is given to one reader only.
"""

import asyncio
from collections.abc import AsyncIterator
from socket import gaierror

import zmq
import zmq.asyncio

from warmpath.cli.deployment.check import Check, Placed
from warmpath.indexer.engines.table import ENGINES
from warmpath.indexer.follow.endpoint import rank_endpoint
from warmpath.indexer.follow.tap import Tap
from warmpath.process.command_line import in_words

AFTER_ALL = (2**63 - 1).to_bytes(8, "big")
"""A batch's number that is never reached: its replay has no batch, only the end."""


async def check_events(
    pod: Placed, context: zmq.asyncio.Context, seconds: float
) -> AsyncIterator[Check]:
    """Yield whether the events, the replay or the publisher of each rank answer in so many seconds."""
    spec = pod.spec
    option = ENGINES[spec.engine].events_option
    if spec.watch:
        yield await _publisher(pod, seconds)
        return
    if ENGINES[spec.engine].is_polled or not spec.events:
        return
    for number in range(spec.first_rank, spec.first_rank + spec.ranks):
        for key, of_ranks, done in (
            ("events", spec.events, "is connected"),
            ("replay", spec.replay, "answers"),
        ):
            if not of_ranks:
                continue
            endpoint = rank_endpoint(of_ranks, number)
            try:
                async with asyncio.timeout(seconds):
                    await _ask(context, key, endpoint)
                yield pod.ok(key, f"{endpoint} {done}")
            except (OSError, zmq.ZMQError) as error:
                other = f"the engine's {option}, or {pod.key(key)}"
                if isinstance(error, gaierror):
                    other = pod.key(key)
                yield pod.wrong(key, _silent(endpoint, error, seconds), other)
    if not spec.replay:
        yield pod.wrong(
            "replay",
            "there is none, so that a gap in the events stays open",
            f"{pod.key('replay')}, and replay_endpoint in the engine's {option}",
        )


def _silent(endpoint: str, error: Exception, seconds: float) -> str:
    if isinstance(error, TimeoutError):
        return f"nothing answers at {endpoint} within {seconds:g} s"
    return f"{endpoint}: {in_words(error)}"


async def _ask(context: zmq.asyncio.Context, key: str, endpoint: str) -> None:
    """Return once a subscription is connected, or once the end of an empty replay has come."""
    tap = Tap(context)
    try:
        if key == "events":
            await tap.connected(endpoint)
            return
        async for _ in tap.replayed(endpoint, AFTER_ALL):
            pass
    finally:
        tap.close()


async def _publisher(pod: Placed, seconds: float) -> Check:
    """Return whether a publisher listens; whether it serves this router is in the router's findings."""
    host, _, port = pod.spec.watch.rpartition(":")
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        writer.close()
    except (TimeoutError, OSError) as error:
        said = (
            in_words(error) if isinstance(error, OSError) and error.errno else "no answer in time"
        )
        return pod.wrong(
            "publisher",
            f"{pod.spec.watch}: {said}",
            f"start 'warmpath publish', or {pod.key('watch')}",
        )
    return pod.ok("publisher", f"listens at {pod.spec.watch}")
