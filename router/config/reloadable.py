"""The keys that a running router can take over from a changed file: `RELOADABLE` marks them."""

from collections.abc import Iterator
from typing import TypeVar

import msgspec
from msgspec import Meta

from warmpath.router.config.schema import Table

T = TypeVar("T", bound=Table)


def is_reloadable(field: msgspec.structs.FieldInfo) -> bool:
    """Return whether a running router can take another value of a table's field."""
    marks = [mark for mark in getattr(field.type, "__metadata__", ()) if isinstance(mark, Meta)]
    return any(mark.extra and mark.extra.get("reloadable") for mark in marks)


def differing(old: Table, new: Table, at: str = "") -> Iterator[tuple[str, bool]]:
    """Yield the keys that differ between two tables of one type, and whether each is reloadable."""
    for field in msgspec.structs.fields(old):
        before, after = getattr(old, field.name), getattr(new, field.name)
        if before == after:
            continue
        if isinstance(before, Table) and not is_reloadable(field):
            yield from differing(before, after, f"{at}{field.encode_name}.")
        else:
            yield at + field.encode_name, is_reloadable(field)


def reloaded(old: T, new: T) -> T:
    """Return `old` with the reloadable keys of `new`."""
    taken = {}
    for field in msgspec.structs.fields(old):
        before, after = getattr(old, field.name), getattr(new, field.name)
        if is_reloadable(field):
            taken[field.name] = after
        elif isinstance(before, Table):
            taken[field.name] = reloaded(before, after)
    return msgspec.structs.replace(old, **taken)
