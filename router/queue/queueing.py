"""Builds the queue from its configuration, for the service and for `warmpath simulate`."""

import time
from collections.abc import Callable, Collection
from typing import Any

from warmpath.router.config.schema import Config, QueueTable
from warmpath.router.metrics.calls import Metrics
from warmpath.router.pick.eligible import Eligible, Field, Wanted
from warmpath.router.pick.picker import Picker
from warmpath.router.pick.picking import Picking
from warmpath.router.pods.table import PodTable
from warmpath.router.queue.held_picks import HeldPicks
from warmpath.router.queue.lag import FirstTokenLag
from warmpath.router.queue.queue import Queue
from warmpath.router.queue.request import Classes
from warmpath.router.tracing.steps import NO_STEPS, Steps


def held_picks(
    config: Config,
    picking: Picking,
    picker: Picker,
    pods: PodTable,
    *,
    meter: Metrics,
    may: Callable[[Any], Collection[str] | None],
    who: Callable[[Any], str],
    clock: Callable[[], float] = time.monotonic,
    steps: Steps = NO_STEPS,
) -> HeldPicks | None:
    """Return the picks that wait, with their queue; None without a queue.

    `may` takes a call's context and returns the classes that its caller may name, None: all; `who`
    returns who its caller is.
    """
    if config.pick.queue == "off":
        return None
    table = config.queue
    queue = new_queue(
        table,
        picking,
        picker,
        Eligible(pods),
    )
    held = HeldPicks(
        queue,
        picker,
        classes=Classes(table.classes, table.usual_class),
        may=may,
        who=who,
        clock=clock,
        meter=meter,
        # The other half of a connection's calls is for reports.
        most_of_client=max(1, config.server.http2.max_streams // 2),
        steps=steps,
    )
    picking.on_room = held.news
    return held


def new_queue(
    table: QueueTable,
    picking: Picking,
    picker: Picker,
    field_for: Callable[[Wanted], Field],
) -> Queue:
    """Return a queue, and let it witness picks; `field_for` as `Queue`'s `eligible`."""
    lag = FirstTokenLag()
    picker.add_witness(lag)
    return Queue(
        picker,
        picking.loads,
        eligible=field_for,
        hears=lambda: picking.bookings.hears_first_tokens,
        lag=lag,
        settings=table,
    )
