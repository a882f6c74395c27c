"""Reads the form of a configuration's keys: unknown or missing ones, wrong types, values out of range.

All mistakes are found, not just the first one. The tables are walked by the fields of their classes, and
msgspec checks each value, so that this and the reading of a file without mistakes agree.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, get_args, get_origin

import msgspec
from msgspec import Meta

from warmpath.process.logs import shortened
from warmpath.router.config.schema import Config, Table

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
    """Return the line of the deepest part of `path` that has one in `lines`, or else 1.

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


Problem = tuple[Path, str]
"""The path of a key, and the problem with it or its value."""

Rule = tuple[object, str, str]
"""Whether something is wrong with a key of a table, the key, and the problem."""

_UNUSABLE = object()


def broken(at: Path, rules: Iterable[Rule]) -> Iterator[Problem]:
    """Yield the problem of each rule that the table at the path `at` breaks, with its key's path."""
    return (((*at, key), problem) for is_wrong, key, problem in rules if is_wrong)


def repeated(table: str, key: str, values: Iterable[str], noun: str = "names") -> Iterator[Problem]:
    """Yield each value of a key of an array of tables that is empty, or that another table has."""
    seen: set[str] = set()
    for position, one in enumerate(values):
        if not one or one in seen:
            problem = f"{one!r} is taken; {noun} are unique" if one else "is empty"
            yield (table, position, key), problem
        seen.add(one)


LEAST_LIKENESS = 0.8
"""How like an unknown key a known one must be to be suggested, from 0 to 1: the keys of a table share
words, and one that means something else is no help."""
MOST_SHOWN = 100
"""Most characters of a value in its problem."""

_KINDS = {
    "int": "a whole number", "float": "a number", "str": "a text", "bool": "true or false",
    "array": "a list", "object": "a table",
}  # fmt: skip
"""Words for JSON's kinds, which msgspec names."""
_BOUNDS = {">=": "at least", "<=": "at most", ">": "above", "<": "below"}


@dataclass(slots=True)
class Form:
    """The mistakes of form in a configuration."""

    problems: list[Problem] = field(default_factory=list)
    wrong: set[Path] = field(default_factory=set)
    """The paths of the values that `usable` leaves out, and of keys that a misspelt one may mean."""


def usable(raw: dict[str, Any]) -> tuple[Config, Form]:
    """Return the configuration that a file's usable content makes, and the mistakes of form in it.

    A wrong value is left out, as if the file did not have it; a required one is then empty.
    """
    form = Form()
    return msgspec.convert(_table(raw, Config, (), form), Config), form


def _table(raw: dict[str, Any], table: type[Table], at: Path, form: Form) -> dict[str, Any]:
    fields = {one.encode_name: one for one in msgspec.structs.fields(table)}
    read = {}
    for key, value in raw.items():
        if key not in fields:
            near = difflib.get_close_matches(key, fields, 1, LEAST_LIKENESS)
            hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(fields)}"
            form.problems.append(((*at, key), f"unknown key; {hint}"))
            form.wrong |= {(*at, name) for name in (key, *near)}
            continue
        found = _value(value, fields[key].type, (*at, key), form)
        if found is not _UNUSABLE:
            read[key] = found
    for key, one in fields.items():
        if not one.required or key in read:
            continue
        if key not in raw:
            has_tables = is_table(_element(one.type))
            form.problems.append((at, f"has no [[{key}]]" if has_tables else f"has no {key!r}"))
            form.wrong.add((*at, key))
        read[key] = [] if get_origin(one.type) is list else ""
    return read


def _value(raw: Any, hint: Any, at: Path, form: Form) -> Any:
    if is_table(hint):
        if isinstance(raw, dict):
            return _table(raw, hint, at, form)
        _check(raw, hint, at, form)
        return _table({}, hint, at, Form())
    before = len(form.problems)
    element = _element(hint)
    if isinstance(raw, list) and element is not None:
        read = [_value(one, element, (*at, position), form) for position, one in enumerate(raw)]
        if is_table(element):
            return read
    elif isinstance(raw, dict) and element is not None:
        for key, one in raw.items():
            _value(one, element, (*at, key), form)
    if len(form.problems) == before:
        _check(raw, hint, at, form)
    return raw if len(form.problems) == before else _UNUSABLE


def is_table(hint: Any) -> bool:
    """Return whether a key's type is a table of its own."""
    return isinstance(hint, type) and issubclass(hint, Table)


def _element(hint: Any) -> Any:
    inner = plain(hint)
    match get_origin(inner):
        case list_or_tuple if list_or_tuple in (list, tuple):
            return get_args(inner)[0]
        case origin if origin is dict:
            return get_args(inner)[1]
    return None


def plain(hint: Any) -> Any:
    """Return a key's type without its limits."""
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _check(raw: Any, hint: Any, at: Path, form: Form) -> None:
    try:
        msgspec.convert(raw, hint)
    except msgspec.ValidationError as error:
        form.problems.append((at, _in_words(str(error).partition(" - at `")[0], raw, hint)))
        form.wrong.add(at)


def _in_words(problem: str, raw: Any, hint: Any) -> str:
    if problem.startswith("Invalid enum value"):
        return f"is {raw!r}, must be one of {', '.join(map(str, get_args(plain(hint))))}"
    if problem.startswith("Expected `str` matching regex"):
        [meta] = [one for one in get_args(hint) if isinstance(one, Meta) and one.pattern]
        return f"is {shortened(repr(raw), MOST_SHOWN)}, must be {meta.description}"
    if found := re.fullmatch(r"Expected `(.+)`, got `(.+)`", problem):
        wanted, got = map(_kinds, found.groups())
        return f"must be {wanted}, not {got}"
    if found := re.fullmatch(r"Expected `(?:int|float)` ([<>]=?) (\S+)", problem):
        limit = found[2].removesuffix(".0")
        return f"is {raw}, must be {_BOUNDS[found[1]]} {limit}"
    if found := re.fullmatch(r"Expected `(str|array)` of length ([<>]=?) (\d+)", problem):
        parts = "characters" if found[1] == "str" else "elements"
        return f"has {len(raw)} {parts}, must have {_BOUNDS[found[2]]} {found[3]}"
    return problem


def _kinds(names: str) -> str:
    kinds = [_KINDS.get(name, name) for name in names.split(" | ") if name != "null"]
    return " or ".join(kinds)
