"""Checks events that a caller made itself, with the limits that codecs put on engines' bytes."""

from collections.abc import Sequence

from warmpath.indexer.engines.cache_groups import MOST_BLOCK_SIZE, MOST_NUMBER
from warmpath.indexer.engines.event import (
    UINT64,
    Cleared,
    Event,
    MalformedEventError,
    Moved,
    Removed,
    Stored,
    Tier,
)
from warmpath.indexer.keys.key import TOKEN_BYTES

_TEXTS = ("lora", "cache_salt", "kind")


def check_events(events: Sequence[Event]) -> None:
    """Raise MalformedEventError, which names the event and its field, unless all events are valid."""
    for number, event in enumerate(events):
        try:
            _check(event)
        except MalformedEventError as error:
            raise MalformedEventError(f"events[{number}].{error}") from None


def _check(event: object) -> None:
    if isinstance(event, Stored):
        _check_stored(event)
    elif isinstance(event, Removed):
        _check_names("hashes", event.hashes)
        _check_number("group", event.group, 0, MOST_NUMBER)
        if event.tier is not None:
            _check_tier("tier", event.tier)
    elif isinstance(event, Moved):
        _check_names("hash", (event.hash,))
        _check_tier("source", event.source)
        _check_tier("target", event.target)
        _check_number("group", event.group, 0, MOST_NUMBER)
    elif not isinstance(event, Cleared):
        kinds = "Stored, Removed, Moved or Cleared"
        raise MalformedEventError(f"kind is {type(event).__name__}; it must be {kinds}")


def _check_stored(event: Stored) -> None:
    _check_names("hashes", event.hashes)
    if event.parent is not None:
        _check_names("parent", (event.parent,))
    _check_tier("tier", event.tier)
    for field in _TEXTS:
        if not isinstance(getattr(event, field), str):
            raise MalformedEventError(f"{field} is not a string")
    _check_number("block_size", event.block_size, 0 if event.tokens is None else 1, MOST_BLOCK_SIZE)
    _check_number("group", event.group, 0, MOST_NUMBER)
    _check_number("window", event.window, 0, MOST_NUMBER)
    if event.tokens is None:
        return
    if not isinstance(event.tokens, bytes):
        raise MalformedEventError("tokens are not bytes; Stored.of packs integers")
    blocks, size = len(event.hashes), event.block_size
    if len(event.tokens) != blocks * size * TOKEN_BYTES:
        raise MalformedEventError(
            f"tokens are {len(event.tokens) / TOKEN_BYTES:g}; {blocks} blocks of {size} have "
            f"{blocks * size}"
        )
    if event.extras is not None:
        if len(event.extras) != blocks:
            raise MalformedEventError(f"extras are {len(event.extras)}; the blocks are {blocks}")
        if not all(one is None or isinstance(one, bytes) for one in event.extras):
            raise MalformedEventError("extras has an entry that is neither bytes nor None")


def _check_names(field: str, names: tuple[int, ...]) -> None:
    if not isinstance(names, tuple) or not all(type(name) is int for name in names):
        raise MalformedEventError(f"{field} holds something else than integers in a tuple")
    if names and not 0 <= min(names) <= max(names) <= UINT64:
        raise MalformedEventError(f"{field} holds a number that is not 0 to 2^64 - 1")


def _check_tier(field: str, tier: Tier) -> None:
    if not isinstance(tier, Tier):
        raise MalformedEventError(f"{field} is {tier!r}; it must be one of {', '.join(Tier)}")


def _check_number(field: str, value: int, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise MalformedEventError(f"{field} is {value!r}; it must be {least} to {most}")
