"""Events from a ZeroMQ socket to the index: the whole router against the peer's indexer."""

import statistics
import time
from collections.abc import Callable

from warmpath.lab.bench import peer
from warmpath.lab.bench.figure import Figure
from warmpath.lab.bench.stand import kinds
from warmpath.lab.bench.stand.made_up_fleet import MODEL, prompt_of
from warmpath.lab.bench.stand.servers import Fleet, Python, order, release, until

SHAPES = ((16, 8, 1.5), (1, 64, 1.2), (1, 8, 0.9))
"""Events a batch, blocks an event, and the goal."""
PROMPT = 16 * 8 * 8
"""Blocks of one stored prompt."""
POLL_SECONDS = 0.02


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
    return [*figures, *kinds.measure_time(quick=quick)]


def _seconds(flood: Python, is_known: Callable[[], bool]) -> float:
    begun = time.perf_counter()
    release(flood)
    until(is_known, "the events become known", POLL_SECONDS)
    taken = time.perf_counter() - begun
    assert flood.hear() == "sent\n"
    return taken
