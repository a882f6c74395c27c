"""Writes docs/reference/config.md: every key, from the classes and docstrings of `router.config.schema`.

`make docs` runs this module; `tests/docs/test_configuration_page.py` compares the committed page.
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

from warmpath.router.config.reloadable import is_reloadable
from warmpath.router.config.schema import MIB, Config, Table

HEAD = """\
# Every key of the router's file

`make docs` writes this page from [`router/config/schema.py`](../../router/config/schema.py).
[Configuration](configuration.md) says how the file is read, checked and reloaded.

- **unit**: s means seconds. A number in the file has no suffix: 8 MiB is `8388608`.
- **reload**: *yes* where a running router [takes over](configuration.md#reloading) another value. Every
  other key needs a restart.
- A key without a default is *required* in its table. Paths are relative to the file.
"""
UNITS = {"seconds": "s", "bytes": "bytes", "tokens": "tokens", "blocks": "blocks", "second": "1/s"}
"""The unit of a number by the last word of its key."""
NAMES = {str: "text", int: "integer", float: "number", bool: "true or false"}
SIZES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (MIB, "MiB"), (1 << 10, "KiB"))


class Section(NamedTuple):
    """A table of the file: its name with the names of the tables around it, and its class."""

    path: tuple[str, ...]
    table: type[Table]
    is_array: bool
    told: str = ""
    """What the table around it says of it."""

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
        "\n## Top level\n\nBefore the first table.\n",
        *_rows(Section((), Config, False)),
    ]
    for section in sections():
        parts += [f"\n## {section.heading}\n\n{_introduction(section)}\n", *_rows(section)]
    return "\n".join(parts) + "\n"


def _introduction(section: Section) -> str:
    told = inspect.getdoc(section.table) or ""
    told = re.sub(r"^\[+[a-z.0-9-]+\]+: ", "", told)
    return "\n\n".join(
        _linked(" ".join(one.split()), section)
        for one in (*(told[:1].upper() + told[1:]).split("\n\n"), section.told)
        if one
    )


def _rows(section: Section) -> Iterator[str]:
    yield "| key | type | unit | default | range | reload | meaning |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    told = docstrings(section.table)
    tables = {one.path for one in sections()}
    for field in msgspec.structs.fields(section.table):
        if (*section.path, field.encode_name) not in tables:
            yield _row(section, field, told.get(field.name, ""))


def _row(section: Section, field: FieldInfo, told: str) -> str:
    hint = get_type_hints(section.table, include_extras=True)[field.name]
    # A table that is reloaded as a whole is reloaded with all of its keys.
    reloads = is_reloadable(section.table, field.name) or _is_in_reloadable(section)
    cells = (
        f"`{field.encode_name}`",
        _type(hint),
        _unit(field, hint),
        _default(field, hint),
        _range(field, hint),
        "yes" if reloads else "no",
        _linked(told, section),
    )
    return f"| {' | '.join(one.replace('|', chr(92) + '|') for one in cells)} |"


def _is_in_reloadable(section: Section) -> bool:
    return len(section.path) == 1 and is_reloadable(Config, section.path[0].replace("-", "_"))


@cache
def docstrings(table: type[Table]) -> dict[str, str]:
    """Return the text below each field of a table, on one line."""
    [parsed] = ast.parse(inspect.getsource(table)).body
    assert isinstance(parsed, ast.ClassDef)
    found, name = {}, ""
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


def _type(hint: Any) -> str:
    hint = _plain(hint)
    match get_origin(hint):
        case origin if origin is Literal:
            return "text"
        case origin if origin in (list, tuple):
            return f"list of {_type(get_args(hint)[0])}s"
        case origin if origin is dict:
            return f"table of {_type(get_args(hint)[1])}s"
    if hint == str | None:
        return "text"
    return NAMES[hint]


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
            return f"`{default}`, {_size(default)}"
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
