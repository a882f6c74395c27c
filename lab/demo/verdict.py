"""The demo's conclusions, and the times on which there is none since the machine was too busy."""

from collections.abc import Mapping

from warmpath.lab.local.measure import RunFigures, Times
from warmpath.lab.simulate.study import BEST_PUBLISHED
from warmpath.scorer.policy import DEFAULT

NAMES = ("round-robin", "least-load", BEST_PUBLISHED, DEFAULT)
"""The policies of the router that are compared."""
SPEEDS = (8.0, 4.0, 2.0)
"""Modelled seconds in each real second, the fastest first."""
DELAY_SECONDS = 0.25
"""Delay of nine in ten requests, in modelled seconds, up to which choices come in time."""
TRIAL_SECONDS = 20.0
"""Modelled seconds of traffic that is sent at SPEEDS[0] to see how fast this machine is."""


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


def conclusions(runs: Mapping[str, RunFigures]) -> list[str]:
    """Return what warmpath gains over each of the other policies."""
    warm = runs.get(DEFAULT)
    others = {name: one for name, one in runs.items() if name != DEFAULT}
    if not warm or not others:
        return ["Nothing to compare: run warmpath and another policy."]
    sentences = [
        f"{DEFAULT} beside {name}: sessions {gain(warm.sessions, one.sessions)}; first tokens of "
        f"agents {gain(warm.agents_ttft, one.agents_ttft)}, of chats "
        f"{gain(warm.chats_ttft, one.chats_ttft)}."
        for name, one in others.items()
    ]
    if any(NO_VERDICT in one for one in sentences):
        sentences.append(
            "Choices took that long in both runs together: this machine's time, times the speed."
        )
    return sentences


def gain(ours: Times, theirs: Times) -> str:
    """Return how much faster, or slower, sessions or first tokens were.

    There is no verdict on a percentile at which the two differ by no more than choosing pods took in
    both together.
    """
    found, unclear = [], []
    for label, our_time, their_time, delay in (
        ("p50", ours.p50, theirs.p50, ours.delay_p50 + theirs.delay_p50),
        ("p90", ours.p90, theirs.p90, ours.delay_p90 + theirs.delay_p90),
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
    busy = {name: one for name, one in runs.items() if not in_time(one.delay)}
    if busy:
        delays = ", ".join(f"{name} {one.delay:.2f} s" for name, one in busy.items())
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
