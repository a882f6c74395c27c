"""The demo's speed: the highest at which this machine chooses pods in time."""

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
