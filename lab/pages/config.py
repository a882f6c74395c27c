"""Writes docs/reference/config.md: every key, from the classes and docstrings of `router.config.schema`.

`make docs` runs this module; `tests/docs/test_figures_and_names.py` compares the committed page.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from os.path import relpath
from pathlib import PurePath
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta
from msgspec.structs import FieldInfo

from warmpath.router.config.schema import AS_OF_PODS, MIB, Config, PodSetSpec, Table
from warmpath.router.reload import is_reloadable

HEAD = """\
# Configuration

Every key of the router's TOML file ([an example](../../deploy/warmpath.toml)), and how the file is
checked and reloaded.

```sh
.venv/bin/warmpath check-config deploy/warmpath.toml
WARMPATH_SERVER__LISTEN=127.0.0.1:7500 .venv/bin/warmpath check-config deploy/warmpath.toml
```

- Sizes are written in bytes, without a suffix: 8 MiB is `8388608`.
- Keys without a default are *required* in their table. Paths are relative to the file.

## Checking a file

`check-config` prints each mistake as `FILE:LINE: KEY: problem`.

- It reads certificates, keys, tokens, passwords and local tokenizers, and asks each source of pods
  once (`--seconds`, 5 in all). A source that does not answer is no mistake.
- Warnings leave the status 0: a certificate that ends within 14 days, a key without effect, a limit
  that cannot work, pods that share an address or an id.
- It asks no engine and no Redis: use [`doctor`](../guides/operate.md#checking-a-deployment) with
  `--config`.
- `--json` prints `ok`, `mistakes`, `warnings`, `replaced` (keys and their variables), `sources` and
  `certificates`.

## Reloading

A changed file, or SIGHUP, makes a running router take over the keys and tables marked *reloads*.
The log names other changed keys: they need a restart. A file with a mistake, or with new values
that contradict keys that need a restart, changes nothing; the log says why.

- `pods-file`, certificates, keys and tokens are read again when they change.
- Files must be regular files of at most 16 MiB (certificates, keys and tokens: 1 MiB). ConfigMaps
  work.
- `[[pods]]`: removed pods are forgotten; changed ones are followed from the start.
- `[queue]`: waiting requests keep their places; those of a removed class get `usual-class`.

## Environment variables

A variable replaces a key for `serve`, `check-config` and `index`: `WARMPATH_`, then table and key
in capitals, with `__` between names and `_` for each dash.

- Text is taken as it is. Other types are written as in TOML: `1000`, `true`, `["pods"]`.
- Arrays of tables (`WARMPATH_PODS`) are replaced whole.
- A variable that names no key stops the start. Variables that Kubernetes, our images and vLLM's
  plug-in set are ignored.
- Tokens, passwords and private keys stay in files.

`make docs` writes this page from [`router/config/schema.py`](../../router/config/schema.py).
"""
UNITS = {
    "seconds": "seconds",
    "bytes": "bytes",
    "tokens": "tokens",
    "blocks": "blocks",
    "second": "per second",
}
"""The unit of a number by the last word of its key."""
NAMES = {str: "text", int: "integer", float: "number", bool: "true or false"}
SIZES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (MIB, "MiB"), (1 << 10, "KiB"))


class Section(NamedTuple):
    """A table of the file: its name with the names of the tables around it, and its class."""

    path: tuple[str, ...]
    table: type[Table]
    is_array: bool
    told: str = ""
    """The docstring of its key in the table around it."""

    @property
    def heading(self) -> str:
        """The table as the file has it, such as `[[pods]]`."""
        name = ".".join(self.path)
        return f"`[[{name}]]`" if self.is_array else f"`[{name}]`"


@cache
def sections(table: type[Table] = Config, path: tuple[str, ...] = ()) -> tuple[Section, ...]:
    """Return every table, each before those within it."""
    found: list[Section] = []
    for field in msgspec.structs.fields(table):
        hint = _plain(field.type)
        is_array = get_origin(hint) is list
        inner = get_args(hint)[0] if is_array else hint
        if isinstance(inner, type) and issubclass(inner, Table):
            at = (*path, field.encode_name)
            told = docstrings(table).get(field.name, "")
            found += (Section(at, inner, is_array, told), *sections(inner, at))
    return tuple(found)


def page() -> str:
    """Return the page."""
    parts = [
        HEAD,
        "\n## Top level\n\nKeys before the first table.\n",
        *_rows(Section((), Config, False)),
    ]
    for section in sections():
        parts += [f"\n## {section.heading}\n\n{_introduction(section)}\n", *_rows(section)]
    return "\n".join(parts) + "\n"


def _introduction(section: Section) -> str:
    told = inspect.getdoc(section.table) or ""
    told = re.sub(r"^\[+[a-z.0-9-]+\]+: ", "", told)
    if _reloads(section):
        told += " *Reloads.*"
    parts = (*(told[:1].upper() + told[1:]).split("\n\n"), section.told)
    return " ".join(_linked(" ".join(one.split()), section) for one in parts if one)


def _reloads(section: Section) -> bool:
    """Whether a running router takes over every key of a table."""
    fields = msgspec.structs.fields(section.table)
    return _is_in_reloadable(section) or all(map(is_reloadable, fields))


def _rows(section: Section) -> Iterator[str]:
    yield "| key | value | default | meaning |"
    yield "| --- | --- | --- | --- |"
    told = docstrings(section.table)
    tables = {one.path for one in sections()}
    for field in msgspec.structs.fields(section.table):
        if (*section.path, field.encode_name) not in tables:
            yield _row(section, field, told.get(field.name, ""))


def _row(section: Section, field: FieldInfo, told: str) -> str:
    hint = get_type_hints(section.table, include_extras=True)[field.name]
    # A table that is reloaded as a whole says so above its rows.
    if is_reloadable(field) and not _reloads(section):
        told += " *Reloads.*"
    cells = (
        f"`{field.encode_name}`",
        _value(field, hint),
        _default(field, hint),
        _linked(told, section),
    )
    return f"| {' | '.join(one.replace('|', chr(92) + '|') for one in cells)} |"


def _is_in_reloadable(section: Section) -> bool:
    fields = msgspec.structs.fields(Config)
    return any(is_reloadable(one) for one in fields if (one.encode_name,) == section.path)


@cache
def docstrings(table: type[Table]) -> dict[str, str]:
    """Return the text below each field of a table, on one line."""
    [parsed] = ast.parse(inspect.getsource(table)).body
    assert isinstance(parsed, ast.ClassDef)
    found = dict.fromkeys(AS_OF_PODS, "As in [[pods]].") if table is PodSetSpec else {}
    name = ""
    for node in parsed.body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name)):
                continue
            case ast.Expr(value=ast.Constant(value=str(text))) if name:
                found[name] = " ".join(text.split())
        name = ""
    return found


def _plain(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _metas(hint: Any) -> list[Meta]:
    return [one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Meta)]


def _value(field: FieldInfo, hint: Any) -> str:
    """Return a key's type or unit, and its range."""
    plain = _plain(hint)
    range_ = _range(field, hint)
    match get_origin(plain):
        case origin if origin is Literal:
            return range_
        case origin if origin in (list, tuple):
            return f"list: {range_}" if range_ else "list"
        case origin if origin is dict:
            inner = NAMES[_plain(get_args(plain)[1])]
            return ", ".join(one for one in (f"table of {inner}s", range_) if one)
    if plain in (str, str | None):
        return range_ or "text"
    return ", ".join(one for one in (_unit(field, hint) or NAMES[plain], range_) if one)


def _is_number(hint: Any) -> bool:
    return _plain(hint) in (int, float)


def _unit(field: FieldInfo, hint: Any) -> str:
    if not _is_number(hint):
        return ""
    for meta in _metas(hint):
        if meta.extra and "unit" in meta.extra:
            return str(meta.extra["unit"])
    return UNITS.get(field.encode_name.rpartition("-")[2], "")


def _default(field: FieldInfo, hint: Any) -> str:
    default = field.default
    if default is msgspec.NODEFAULT:
        if field.default_factory is msgspec.NODEFAULT:
            return "*required*"
        default = field.default_factory()
    match default:
        case None:
            return "none"
        case bool():
            return f"`{str(default).lower()}`"
        case int() | float() if _unit(field, hint) == "bytes":
            return _size(default)
        case int() | float():
            return f"`{default:.10g}`"
        case str():
            return f'`"{default}"`'
        case dict() if not default:
            return "`{}`"
    return f"`[{', '.join(chr(34) + one + chr(34) for one in default)}]`"


def _range(field: FieldInfo, hint: Any) -> str:
    plain = _plain(hint)
    metas = _metas(hint)
    if get_origin(plain) is Literal:
        return ", ".join(f"`{one}`" for one in get_args(plain))
    if get_origin(plain) in (list, tuple, dict):
        few = [f"{one.min_length} to {one.max_length}, each " for one in metas if one.max_length]
        return f"{few[0] if few else ''}{_range(field, get_args(plain)[get_origin(plain) is dict])}"
    if told := [one.description for one in metas if one.description]:
        return told[0]
    if not _is_number(hint):
        return ""
    show = _size if _unit(field, hint) == "bytes" else _number
    return " ".join(_bounds(metas, show, whole=plain is int))


def _bounds(metas: list[Meta], show: Any, *, whole: bool) -> Iterator[str]:
    for one in metas:
        if one.gt is not None:
            yield show(one.gt + 1) if whole else f"above {show(one.gt)},"
        if one.ge is not None:
            yield show(one.ge)
        if one.lt is not None:
            yield f"to {show(one.lt - 1)}"
        if one.le is not None:
            yield f"to {show(one.le)}"


def _number(value: float) -> str:
    return f"{value:.10g}"


def _size(value: float) -> str:
    """Return a number of bytes in its largest whole unit."""
    for size, name in SIZES:
        if value >= size and value % size == 0:
            return f"{value / size:g} {name}"
    return f"{value:g}"


def _linked(text: str, section: Section) -> str:
    """Return a docstring's text with links to the pages and tables that it names, and keys as code."""
    own = {".".join(one.path): one.heading for one in sections()}
    own.pop(".".join(section.path), None)

    def link(found: re.Match[str]) -> str:
        if page := found["page"]:
            name = PurePath(page).stem.replace("-", " ")
            return f"[{name}]({relpath(page, 'docs/reference')}{found['at'] or ''})"
        if (table := found["table"]) and table in own:
            return f"[{own[table]}](#{table.replace('.', '')})"
        return f"`{found[0]}`" if found["key"] or found["table"] else found[0]

    return re.sub(
        r"`[^`]*`|(?P<page>docs/[\w/-]+\.md)(?P<at>#[\w-]+)?|\[\[?(?P<table>[a-z][a-z.-]*)\]\]?"
        rf"|\b(?P<key>{'|'.join(map(re.escape, _keys()))})\b(?![\w-])",
        link,
        text,
    )


@cache
def _keys() -> list[str]:
    """Return the keys of all tables, dotted, the longest first."""
    keys = (
        ".".join((*section.path, field.encode_name))
        for section in sections()
        for field in msgspec.structs.fields(section.table)
    )
    return sorted(keys, key=len, reverse=True)


if __name__ == "__main__":
    print(page(), end="")
