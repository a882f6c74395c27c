"""Writes a configuration as TOML: the keys that differ from their defaults."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from warmpath.router.config.schema import Config, Table


def as_toml(config: Config) -> str:
    """Return the text of a file that reads as `config`."""
    return "\n".join(_lines(config, "")) + "\n"


def _lines(table: Table, at: str) -> Iterator[str]:
    fields = msgspec.structs.fields(table)
    given = {one.encode_name: getattr(table, one.name) for one in fields if _is_given(table, one)}
    for name, value in given.items():
        if not _tables(value):
            yield f"{name} = {_value(value)}"
    for name, value in given.items():
        place = f"{at}.{name}" if at else name
        for one in _tables(value):
            yield ""
            yield f"[{place}]" if isinstance(value, Table) else f"[[{place}]]"
            yield from _lines(one, place)


def _is_given(table: Table, field: msgspec.structs.FieldInfo) -> bool:
    default = field.default
    if field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    return bool(getattr(table, field.name) != default)


def _tables(value: Any) -> list[Table]:
    if isinstance(value, Table):
        return [value]
    many = value if isinstance(value, list) else []
    return [one for one in many if isinstance(one, Table)]


def _value(value: Any) -> str:
    if isinstance(value, dict):
        pairs = (f"{_value(key)} = {_value(one)}" for key, one in value.items())
        return f"{{ {', '.join(pairs)} }}" if value else "{}"
    # JSON has TOML's form of texts, numbers and lists, but for DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
