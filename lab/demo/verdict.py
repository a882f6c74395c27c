"""The demo's conclusions, and the times on which there is none since the machine was too busy."""

from collections.abc import Mapping

from warmpath.lab.local.measure import RunFigures
from warmpath.lab.local.rules import QUEUED, TITLES, WARMPATH

SPEEDS = (12.0, 6.0, 3.0, 2.0)
"""Modelled seconds in each real second, the fastest first."""
DELAY_SECONDS = 0.25
"""Delay of nine in ten requests, in modelled seconds, up to which choices come in time."""
TRIAL_REQUESTS = 40
"""Number of requests that are sent at SPEEDS[0] to see how fast this machine is."""


def in_time(delay: float) -> bool:
    """Say whether choices come in time; `delay` is that of nine in ten requests, in modelled seconds."""
    return delay <= DELAY_SECONDS


def slower(speed: float, delay: float) -> float:
    """Return the highest speed below `speed` at which choices should come in time.

    `delay` is that of nine in ten requests at `speed`, in modelled seconds; the same delay of the clock
    is fewer modelled seconds at a lower speed. Returns the lowest speed where none is low enough.
    """
    lower = [one for one in SPEEDS if one < speed]
    return next((one for one in lower if in_time(delay / speed * one)), SPEEDS[-1])


NO_VERDICT = "no verdict on"

OURS = (WARMPATH, TITLES[QUEUED])


def conclusions(runs: Mapping[str, RunFigures]) -> list[str]:
    """Return what warmpath gains over the best of the other policies, and its queue over none."""
    others = {name: one for name, one in runs.items() if name not in OURS}
    warm, queued = (runs.get(name) for name in OURS)
    sentences = []
    if (first := warm or queued) and others:
        name, best = max(others.items(), key=lambda item: item[1].hit_ratio)
        sentences.append(
            f"warmpath found {first.hit_ratio:.0%} of all prompt tokens cached, {name} "
            f"{best.hit_ratio:.0%}; that saved pods {first.saved_tokens:,} and "
            f"{best.saved_tokens:,} tokens."
        )
        name, best = min(others.items(), key=lambda item: item[1].ttft_p90)
        sentences.append(f"Time to first token, beside {name}: {gain(first, best)}.")
    if warm and queued:
        compared = gain(queued, warm)
        sentences.append(f"With picks that wait in the queue, beside warmpath without: {compared}.")
    if any(NO_VERDICT in one for one in sentences):
        sentences.append(
            "Choices took that long in both runs together: this machine's time, times the speed."
        )
    return sentences or ["Nothing to compare: run warmpath and another policy."]


def gain(ours: RunFigures, theirs: RunFigures) -> str:
    """Return how much faster, or slower, first tokens came.

    There is no verdict on a percentile at which the two differ by no more than choosing a pod took in
    both together.
    """
    found, unclear = [], []
    for label, our_time, their_time, delay in (
        ("p50", ours.ttft_p50, theirs.ttft_p50, ours.delay_p50 + theirs.delay_p50),
        ("p90", ours.ttft_p90, theirs.ttft_p90, ours.delay_p90 + theirs.delay_p90),
        ("p99", ours.ttft_p99, theirs.ttft_p99, ours.delay_p99 + theirs.delay_p99),
    ):
        effect = abs(our_time - their_time)
        if delay >= effect:
            unclear.append(f"{label} (differs by {effect:.2f} s, choices took {delay:.2f} s)")
        else:
            less, more = sorted((our_time, their_time))
            ratio = f"{more / max(less, 1e-9):.1f}"
            word = "faster" if our_time == less else "SLOWER"
            found.append(f"{label} alike" if ratio == "1.0" else f"{label} {ratio} x {word}")
    if unclear:
        found.append(f"{NO_VERDICT} {', '.join(unclear)}")
    return ", ".join(found)


def warnings(runs: Mapping[str, RunFigures], problems: Mapping[str, str]) -> list[str]:
    """Return sentences on late choices, fall-backs and failures; `problems` are the last errors."""
    told = []
    busy = {name: one for name, one in runs.items() if not in_time(one.delay_p90)}
    if busy:
        delays = ", ".join(f"{name} {one.delay_p90:.2f} s" for name, one in busy.items())
        told.append(
            "This machine was too busy. One request in ten waited longer than this for the choice of "
            f"its pod: {delays} (modelled). So times are not exact. Hit ratios and saved tokens are, "
            "since engines count them. A lower --speed helps (make demo SPEED=2)."
        )
    moved = [f"{name} {one.fell_back}" for name, one in runs.items() if one.fell_back]
    if moved:
        told.append(f"Requests that went to a fall-back: {', '.join(moved)}.")
    for name, one in runs.items():
        if one.failed:
            told.append(f"{name}: {one.failed} requests failed, the last one: {problems[name]}")
    return told
