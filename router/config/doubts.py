"""Settings that are allowed and hardly meant; `check-config` and the router's log warn of them."""

from collections.abc import Iterator

from warmpath.router.config.form import Problem
from warmpath.router.config.mistakes import dotted
from warmpath.router.config.schema import Config, LimitsTable, SharedIndexTable
from warmpath.router.config.unused import unused


def warnings(config: Config) -> list[str]:
    """Return a line for each doubtful setting, with its key."""
    return [f"{dotted(at)}: {doubt}" for at, doubt in doubts(config)]


def doubts(config: Config) -> Iterator[Problem]:
    """Yield each doubtful setting: the path of a key, and why."""
    yield from _limits(config.limits)
    if config.shared_index.url:
        yield from _shared_index(config.shared_index)
    yield from unused(config)


def _limits(limits: LimitsTable) -> Iterator[Problem]:
    most, largest = limits.max_in_flight_bytes, limits.largest_message
    if most < largest:
        doubt = (
            f"is {most}, less than one of the largest messages ({largest} bytes, by "
            "limits.max-prompt-bytes and limits.max-prompt-tokens): messages are read one at a time"
        )
        yield ("limits", "max-in-flight-bytes"), doubt


def _shared_index(table: SharedIndexTable) -> Iterator[Problem]:
    if table.mode == "replica" and table.stale_seconds < table.poll_seconds:
        doubt = (
            f"is {table.stale_seconds:g}, less than poll-seconds ({table.poll_seconds:g}): the first "
            "reading of Redis that fails makes every pod stale"
        )
        yield ("shared-index", "stale-seconds"), doubt
