"""The time of a pick in process, beside Score of the same prompt, and in a very large fleet."""

import statistics
import time
from collections.abc import Iterator

from warmpath.lab.bench.figure import Figure
from warmpath.lab.bench.stand.asked import PROMPTS, Asked
from warmpath.lab.bench.stand.look_up import TOKENS, no_collector

IN_FLIGHT = 8
"""Picks of a pod that have not ended."""
MANY_PODS = 2000


def measure(*, quick: bool) -> list[Figure]:
    """Measure picks in a small fleet, in a larger one, and in a very large one."""
    figures = [figure for pods in (8, 64) for figure in _cost(pods, quick=quick)]
    return [*figures, _of_many(quick=quick)]


def _cost(pods: int, *, quick: bool) -> Iterator[Figure]:
    """Measure the processor time of a pick with its reports and of Score of the same prompt, in turn."""
    rounds = 300 if quick else 2000
    asked = Asked(pods)
    for call in range(PROMPTS + pods * IN_FLIGHT):
        asked.pick(call)
    taken: dict[str, list[float]] = {"Pick": [], "with reports": [], "Score": []}
    with no_collector():
        for call in range(rounds):
            begun = time.process_time()
            asked.score(call)
            scored = time.process_time()
            asked.pick(call)
            picked = time.process_time()
            asked.report()
            ended = time.process_time()
            for name, seconds in (
                ("Score", scored - begun),
                ("Pick", picked - scored),
                ("with reports", ended - scored),
            ):
                taken[name].append(seconds * 1e6)
    p50 = {name: statistics.median(times) for name, times in taken.items()}
    for name, what in (("Pick", "Pick"), ("with reports", "Pick and its three reports")):
        yield Figure(
            f"{what} in process, {TOKENS:,} ids, {pods} pods: p50",
            p50[name], "us", p50["Score"], "Score of the same prompt",
        )  # fmt: skip


def _of_many(*, quick: bool) -> Figure:
    """Measure the processor time of a pick among very many pods, from the eligible pods to the answer.

    The load of each pod's engine is known.
    """
    asked = Asked(MANY_PODS, prompts=20)
    asked.load()
    p50 = asked.answer_seconds(20 if quick else 200) * 1e3
    name = f"Pick in process with its answer, {TOKENS:,} ids, {MANY_PODS:,} pods: p50"
    return Figure(name, p50, "ms", 1.0, "1 ms", goal=10.0)
