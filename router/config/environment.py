"""Environment variables that replace keys of the file.

WARMPATH_SERVER__LISTEN is server.listen: the names of the tables and of the key in capitals, with __
between them and _ for each dash. A key that is text takes the variable as it is; any other key takes
the TOML that would follow `=` in the file. Secrets stay in files, whose names are keys.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, get_origin

import msgspec

from warmpath.router.config.form import Path, is_table, plain
from warmpath.router.config.schema import Config, Table

PREFIX = "WARMPATH_"
OTHERS = frozenset({
    "WARMPATH_ARRAYS", "WARMPATH_LLMD_PROTO", "WARMPATH_OLDER", "WARMPATH_PROFILE", "WARMPATH_PUBLISH",
    "WARMPATH_REVISION", "WARMPATH_TEST", "WARMPATH_VLLM_FOLDER",
})  # fmt: skip
"""Variables of other parts of warmpath, of its images and of its tests."""
SERVICE = re.compile(r"WARMPATH_(\w+_)?(SERVICE_HOST|(SERVICE_)?PORT(_\w+)?)")
"""Variables that Kubernetes gives every container of a namespace in which a Service is called warmpath,
or warmpath- and more (docs/concepts/containers/container-environment of Kubernetes)."""


class Override(NamedTuple):
    """A variable of the environment that replaces a key."""

    variable: str
    at: Path
    value: Any
    problem: str
    """Why the variable cannot be used; empty if it can."""


def variable_of(at: Path) -> str:
    """Return the name of the variable that replaces a key."""
    return PREFIX + "__".join(str(part).replace("-", "_").upper() for part in at)


def overrides(environment: Mapping[str, str]) -> list[Override]:
    """Return the variables that begin with PREFIX, those that name no key with their problem."""
    known = {variable_of(at): (at, hint) for at, hint in _keys()}
    return [
        _override(name, environment[name], known)
        for name in sorted(environment)
        if name.startswith(PREFIX)
        and (name in known or not (name in OTHERS or SERVICE.fullmatch(name)))
    ]


def replaced(raw: dict[str, Any], found: Iterable[Override]) -> dict[str, Any]:
    """Return the content of a file with the keys that variables replace.

    A table that the file has in a wrong form stays, since that is the file's mistake.
    """
    for one in found:
        if not one.problem:
            raw = _with(raw, one.at, one.value)
    return raw


def _with(raw: dict[str, Any], at: Path, value: Any) -> dict[str, Any]:
    key = str(at[0])
    if len(at) == 1:
        return raw | {key: value}
    inner = raw.get(key, {})
    return raw | {key: _with(inner, at[1:], value)} if isinstance(inner, dict) else raw


def _override(name: str, text: str, known: Mapping[str, tuple[Path, Any]]) -> Override:
    if name not in known:
        near = difflib.get_close_matches(name, known, 1, 0.8)
        hint = f"did you mean {near[0]}?" if near else "docs/reference/config.md has every key"
        return Override(name, (), None, f"names no key; {hint}")
    at, hint = known[name]
    if (kind := plain(hint)) is str or get_origin(kind) is Literal:
        return Override(name, at, text, "")
    try:
        read = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        read = {}
    if read.keys() != {"value"}:
        return Override(name, at, None, "is not the TOML of one value")
    return Override(name, at, read["value"], "")


def _keys(table: type[Table] = Config, at: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield every key that is not a table, and its type. An array of tables is replaced as a whole."""
    for field in msgspec.structs.fields(table):
        here = (*at, field.encode_name)
        if is_table(field.type):
            yield from _keys(field.type, here)
        else:
            yield here, field.type
