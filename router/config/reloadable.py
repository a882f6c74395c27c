"""The keys that a running router can take over from a changed file: `RELOADABLE` marks them."""

from collections.abc import Iterator
from typing import TypeVar, get_type_hints

from msgspec import Meta
from msgspec.structs import replace

from warmpath.router.config.schema import Config, Table

T = TypeVar("T", bound=Table)


def is_reloadable(table: type[Table], field: str) -> bool:
    """Return whether a running router can take another value of a field."""
    hint = get_type_hints(table, include_extras=True)[field]
    marks = [mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, Meta)]
    return any(mark.extra and mark.extra.get("reloadable") for mark in marks)


def reloadable_keys(table: type[Table] = Config, at: str = "") -> Iterator[str]:
    """Yield all reloadable keys, dotted as in `limits.tokenize-seconds`."""
    hints = get_type_hints(table)
    for field, key in zip(table.__struct_fields__, table.__struct_encode_fields__, strict=True):
        if is_reloadable(table, field):
            yield at + key
        elif isinstance(hints[field], type) and issubclass(hints[field], Table):
            yield from reloadable_keys(hints[field], f"{at}{key}.")


def differing(old: Table, new: Table, at: str = "") -> Iterator[tuple[str, bool]]:
    """Yield the keys that differ between two tables of one type, and whether each is reloadable."""
    table = type(old)
    for field, key in zip(table.__struct_fields__, table.__struct_encode_fields__, strict=True):
        before, after = getattr(old, field), getattr(new, field)
        if before == after:
            continue
        if is_reloadable(table, field):
            yield at + key, True
        elif isinstance(before, Table):
            yield from differing(before, after, f"{at}{key}.")
        else:
            yield at + key, False


def reloaded(old: T, new: T) -> T:
    """Return `old` with the reloadable keys of `new`."""
    table = type(old)
    taken = {}
    for field in table.__struct_fields__:
        before, after = getattr(old, field), getattr(new, field)
        if is_reloadable(table, field):
            taken[field] = after
        elif isinstance(before, Table):
            taken[field] = reloaded(before, after)
    return replace(old, **taken)
