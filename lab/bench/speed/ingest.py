"""Events from a ZeroMQ socket to the index: the whole router against the peer's indexer."""

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from warmpath.lab.bench import peer
from warmpath.lab.bench.figure import Figure
from warmpath.lab.bench.stand import kinds
from warmpath.lab.bench.stand.made_up_fleet import MODEL, prompt_of
from warmpath.lab.bench.stand.servers import Fleet, Python, busy, family, order, release, until

SHAPES = ((16, 8, 1.5), (1, 64, 1.2), (1, 8, 0.9))
"""Events a batch, blocks an event, and the goal."""
PROMPT = 16 * 8 * 8
"""Blocks of one stored prompt."""
POLL_SECONDS = 0.02
ENGINES, PROCESSES = 64, 4
"""Engines, and the processes of a router that follows them."""
PACE, OF_ENGINE = 60_000, 512
"""Blocks a second of all these engines, and blocks of a prompt of one."""
QUIET_SECONDS = 3.0


def measure(*, quick: bool) -> list[Figure]:
    """Measure the blocks a second that become known to the router, then to the peer."""
    prompts, rounds = (20, 1) if quick else (400, 5)
    figures = []
    with Fleet(1, apart=True) as fleet:
        seed = 1
        for events, each, goal in SHAPES:
            ours, theirs = [], []
            for number in range(rounds + 1):
                seed += prompts
                shape = {"events": events, "each": each, "blocks": PROMPT, "prompts": prompts}
                order(fleet.flood, seed=seed, **shape)
                before = fleet.router.stored()
                wanted = before + prompts * PROMPT
                first = _seconds(fleet.flood, lambda wanted=wanted: fleet.router.stored() >= wanted)  # type: ignore[misc]
                if peer.is_installed():
                    last = peer.query_body(prompt_of(seed + prompts - 1, PROMPT), MODEL)
                    order(fleet.peer_flood, seed=seed, **shape)
                    second = _seconds(
                        fleet.peer_flood,
                        lambda last=last: fleet.peer_holds(last, PROMPT),  # type: ignore[misc]
                    )
                if number or quick:
                    ours.append(prompts * PROMPT / first / 1e3)
                    if peer.is_installed():
                        theirs.append(prompts * PROMPT / second / 1e3)
            figures.append(
                Figure(
                    f"ingest batches of {events} x {each} blocks, socket to index",
                    statistics.median(ours),
                    "thousand blocks/s",
                    statistics.median(theirs) if theirs else None,
                    "Dynamo's standalone indexer",
                    goal=goal,
                    least=True,
                )
            )
    return [*figures, _of_processes(quick=quick), *kinds.measure_time(quick=quick)]


def _of_processes(*, quick: bool) -> Figure:
    """Measure the processor time for events in a router of several processes, in turn with one of one.

    The time that the same processes take without events is deducted.
    """
    prompts, rounds = (2, 1) if quick else (12, 5)
    blocks = ENGINES * prompts * OF_ENGINE
    taken: dict[int, list[float]] = {1: [], PROCESSES: []}
    with Fleet(ENGINES) as alone, Fleet(ENGINES, processes=PROCESSES) as shared:
        for seed in range(0, (rounds + 1) * prompts, prompts):
            for processes, fleet in ((1, alone), (PROCESSES, shared)):
                shape = {"events": 2, "each": 8, "blocks": OF_ENGINE, "prompts": prompts}
                order(fleet.flood, seed=seed, pods=ENGINES, pace=PACE, removes=1, **shape)
                of = family(fleet.router.pid)
                idle = _busy(of, lambda: time.sleep(QUIET_SECONDS))
                used = _busy(of, partial(_pour, fleet, blocks))
                if seed or quick:
                    seconds = used.processor - idle.processor / idle.wall * used.wall
                    taken[processes].append(seconds * 1e6 / blocks)
    each = {processes: statistics.median(times) for processes, times in taken.items()}
    return Figure(
        f"processor time a block, {ENGINES} engines, server.processes = {PROCESSES}",
        each[PROCESSES], "us", each[1], "one process", goal=1.2,
    )  # fmt: skip


class _Taken(NamedTuple):
    """Seconds of processor and of the clock."""

    processor: float
    wall: float


def _busy(processes: Sequence[int], work: Callable[[], None]) -> _Taken:
    """Return the time that processes take while `work` runs."""
    processor, wall = sum(map(busy, processes)), time.perf_counter()
    work()
    return _Taken(sum(map(busy, processes)) - processor, time.perf_counter() - wall)


def _pour(fleet: Fleet, blocks: int) -> None:
    """Let engines send the events that they have made, until the router knows all `blocks`."""
    wanted = fleet.router.stored() + blocks
    release(fleet.flood)
    assert fleet.flood.hear() == "sent\n"
    fleet.router.await_stored(wanted)


def _seconds(flood: Python, is_known: Callable[[], bool]) -> float:
    begun = time.perf_counter()
    release(flood)
    until(is_known, "the events become known", POLL_SECONDS)
    taken = time.perf_counter() - begun
    assert flood.hear() == "sent\n"
    return taken
