"""Builds what chooses pods, and what remembers and judges the choices."""

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from warmpath.indexer.embedded import embedded_index
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.router.assemble.index import Indexed
from warmpath.router.assemble.means import Means
from warmpath.router.diagnosis.attribution import Attribution
from warmpath.router.diagnosis.decisions import (
    DecisionLog,
    Decisions,
    wall_offset_of,
    write_decisions,
    write_now,
)
from warmpath.router.match.match import Scorer
from warmpath.router.peers import booking_id
from warmpath.router.peers.exchange import PeerBookings
from warmpath.router.peers.passed_on import PassedOn
from warmpath.router.pick.pick import DoubtedModels, Witness
from warmpath.router.pick.picker import Picker
from warmpath.router.pick.picking import Picking, believed_bytes, prefill_model

EXPIRE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Picks:
    """The parts that choose pods, and that remember and judge the choices."""

    picking: Picking
    decisions: Decisions
    attribution: Attribution
    logged: DecisionLog | None
    wall_offset: Callable[[], float]
    passed_on: PassedOn | None
    """None: no report may be passed on, since the other routers would ask who calls."""


def random() -> Random:
    """Return a source of randomness that differs in each process."""
    return Random(secrets.randbits(64))  # noqa: S311  breaks ties and shares room, guards nothing


def picks(means: Means, indexed: Indexed) -> Picks:
    """Build what chooses pods; `means.stack` closes it."""
    config, folder, steps = means.config, means.folder, means.steps
    wall_offset = wall_offset_of()
    decisions = Decisions(config.pick.kept_decisions, wall_offset=wall_offset)
    attribution = Attribution(prefill=prefill_model(config.pick))
    witnesses: list[Witness] = [decisions, attribution, DoubtedModels(indexed.doubt_models)]
    logged: DecisionLog | None = None
    if file := config.pick.decision_log:
        logged = DecisionLog(config.pick.decision_log_share, random(), wall_offset=wall_offset)
        witnesses.append(logged)
        means.stack.push_async_callback(write_now, logged, file, folder)
        means.keep("logging decisions", partial(write_decisions, logged, file, folder))
    router = booking_id.new_router()
    table, hash_seed = config.shared_index, config.index.hash_seed
    names = KeyNames(table.prefix)
    picking = Picking(
        config.pick,
        config.booking,
        config.queue,
        index=embedded_index(believed_bytes(config.pick)),
        scorer=partial(
            Scorer,
            indexed.ingest,
            hash_seed,
            shared_tiers={model.name: frozenset(model.shared_tiers) for model in config.models},
            steps=steps,
        ),
        new_id=partial(booking_id.new_id, router),
        rng=random(),
        witnesses=witnesses,
        share=partial(PeerBookings, router, names, hash_seed=hash_seed)
        if table.share_bookings or means.siblings is not None
        else None,
        batch=indexed.ingest.batch,
        steps=steps,
    )
    passed_on = None
    if means.enter.is_open and means.enter.tls is None:
        passed_on = PassedOn(router)
        means.stack.push_async_callback(passed_on.close)
    means.keep("ending picks that nobody reports on", partial(_expire, picking.picker))
    return Picks(picking, decisions, attribution, logged, wall_offset, passed_on)


async def _expire(picker: Picker) -> None:
    """Expire picks, bookings and beliefs; without this only the next pick would expire them."""
    while True:
        picker.expire(time.monotonic())
        await asyncio.sleep(EXPIRE_SECONDS)
