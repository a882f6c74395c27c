"""Describes errors in a line of a trace or a log without quoting prompts."""

import json
import re
from typing import TypeVar

import msgspec

from warmpath.process.bytes import UNREADABLE

TELLABLE = frozenset(
    ("timestamp", "input_tokens", "output_tokens", "input_length", "output_length", "block_size")
)
"""Fields whose values may be shown, since they are not part of a prompt."""
MOST_SHOWN = 40
"""The most characters of a value that is shown."""

NO_OBJECT = "is no JSON object"

PLACE = re.compile(r"(?P<why>.*) - at `\$\.(?P<path>(?P<field>\w+).*)`")


LineT = TypeVar("LineT")


def decoded(decoder: msgspec.json.Decoder[LineT], line: bytes) -> LineT:
    """Return a line's content. Raises ValueError with the decoder's error in words."""
    try:
        return decoder.decode(line)
    except UNREADABLE as error:
        raise ValueError(described(line, error)) from error


def described(line: bytes, error: Exception) -> str:
    """Return a decoder's error about a line: the field, and its value if that may be shown."""
    found = PLACE.fullmatch(str(error))
    if found is None:
        is_object = str(error).startswith("Object missing") or isinstance(error, RecursionError)
        return str(error) if is_object else f"{NO_OBJECT}: {error}"
    why = found["why"][:1].lower() + found["why"][1:]
    value = _value(line, found["field"]) if found["field"] in TELLABLE else ""
    return f"{found['path']}{value}: {why}"


def _value(line: bytes, field: str) -> str:
    try:
        value = msgspec.json.decode(line)[field]
    except UNREADABLE:
        # The line has further errors after the field.
        return ""
    return "" if isinstance(value, dict | list) else f" is {shown(value)}"


def shown(value: object) -> str:
    """Return a value as JSON, shortened to MOST_SHOWN characters."""
    text = json.dumps(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
