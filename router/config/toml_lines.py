"""Finds the lines of a TOML text's keys, so that an error can name its line."""

import re
from collections.abc import Mapping

HEADER = re.compile(r"^\s*(\[\[?)\s*([^\]]+?)\s*\]\]?")
KEY = re.compile(r"^\s*([A-Za-z0-9_\-\"'.]+(?:\s*\.\s*[A-Za-z0-9_\-\"']+)*)\s*=")

Path = tuple[str | int, ...]
"""Keys and positions in arrays, from the root: ("pods", 1, "address")."""


def key_lines(text: str) -> dict[Path, int]:
    """Return the line, from 1, of each table, array's table and dotted key.

    Keys of inline tables are not among them.
    """
    lines: dict[Path, int] = {}
    table: Path = ()
    seen: dict[tuple[str, ...], int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if header := HEADER.match(line):
            names = _names(header[2])
            if header[1] == "[[":
                seen[names] = seen.get(names, -1) + 1
            table = _placed(names, seen)
            lines.setdefault(table, number)
        elif key := KEY.match(line):
            lines.setdefault(table + _names(key[1]), number)
    return lines


def find_line(lines: Mapping[Path, int], path: Path) -> int:
    """Return the line of the deepest part of `path` that is in `key_lines`, or else 1.

    A path into an inline value leads to the line of the value's key.
    """
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return 1


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
