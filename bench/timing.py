"""Timing two ways of doing the same work, side by side.

Machines are noisy and drift, so the ways take turns and what is reported is the ratio of their
medians: whatever slows the machine slows both.
"""

import statistics
import time
from collections.abc import Callable, Mapping


def take_turns(ways: Mapping[str, Callable[[], object]], *, rounds: int) -> dict[str, float]:
    """Run each way once a round, in turn; return each one's median seconds.

    A first round is run and not counted, so that what is done once is not measured.
    """
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            begun = time.perf_counter()
            way()
            taken = time.perf_counter() - begun
            if number:
                seconds[name].append(taken)
    return {name: statistics.median(taken) for name, taken in seconds.items()}
