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
        yield from _shared_index(config.shared_index, has_events=_has_events(config))
    yield from unused(config)


def _limits(limits: LimitsTable) -> Iterator[Problem]:
    most, largest = limits.max_in_flight_bytes, limits.largest_message
    if most < largest:
        doubt = (
            f"is {most}, less than one of the largest messages ({largest} bytes, by "
            "limits.max-prompt-bytes and limits.max-prompt-tokens): messages are read one at a time"
        )
        yield ("limits", "max-in-flight-bytes"), doubt


def _shared_index(table: SharedIndexTable, *, has_events: bool) -> Iterator[Problem]:
    if table.write and not has_events:
        doubt = "is true, and there is nothing to write: no pod is followed by its events"
        yield ("shared-index", "write"), doubt
    if table.mode == "replica" and table.stale_seconds < table.poll_seconds:
        doubt = (
            f"is {table.stale_seconds:g}, less than poll-seconds ({table.poll_seconds:g}): the first "
            "reading of Redis that fails makes every pod stale"
        )
        yield ("shared-index", "stale-seconds"), doubt


def _has_events(config: Config) -> bool:
    """Return whether a pod is followed by its events, or may be, since a file names it."""
    return (
        bool(config.pods_file)
        or any(pod.events for pod in config.pods)
        or any(one.events_port and not one.watch_port for one in config.pod_sets)
    )
