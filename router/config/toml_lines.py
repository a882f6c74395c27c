"""Finds a key in a TOML text, so that an error can name the line."""

import re

HEADER = re.compile(r"^\s*(\[\[?)\s*([^\]]+?)\s*\]\]?")
KEY = re.compile(r"^\s*([A-Za-z0-9_\-\"'.]+(?:\s*\.\s*[A-Za-z0-9_\-\"']+)*)\s*=")

Path = tuple[str | int, ...]
"""Keys and positions in arrays, from the root: ("pods", 1, "address")."""


def find_line(text: str, path: Path) -> int:
    """Return the line, from 1, of the deepest part of `path` that is found in the text, or else 1.

    Knows tables, arrays of tables and dotted keys. A path into an inline value leads to the line of the
    value's key.
    """
    best, best_length = 1, 0
    table: Path = ()
    seen: dict[tuple[str, ...], int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if header := HEADER.match(line):
            names = _names(header[2])
            if header[1] == "[[":
                seen[names] = seen.get(names, -1) + 1
            table = _placed(names, seen)
            found = table
        elif key := KEY.match(line):
            found = table + _names(key[1])
        else:
            continue
        if len(found) > best_length and path[: len(found)] == found:
            best, best_length = number, len(found)
    return best


def _names(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))


def _placed(names: tuple[str, ...], seen: dict[tuple[str, ...], int]) -> Path:
    """Put the positions of the current elements of arrays of tables between the names."""
    path: list[str | int] = []
    for depth, name in enumerate(names, 1):
        path.append(name)
        if names[:depth] in seen:
            path.append(seen[names[:depth]])
    return tuple(path)
