"""What is wrong with a line of a trace or a log, without what was said in it."""

import json
import re

import msgspec

TELLABLE = frozenset(
    ("timestamp", "input_tokens", "output_tokens", "input_length", "output_length", "block_size")
)
"""Fields whose values may be shown: they hold no prompt."""
MOST_SHOWN = 40
"""Characters of a value."""

PLACE = re.compile(r"(?P<why>.*) - at `\$\.(?P<path>(?P<field>\w+).*)`")


def told(line: bytes, error: Exception) -> str:
    """Return what a decoder's error says of a line: the field, its value where that may be shown."""
    found = PLACE.fullmatch(str(error))
    if found is None:
        return str(error)
    why = found["why"][:1].lower() + found["why"][1:]
    value = _value(line, found["field"]) if found["field"] in TELLABLE else ""
    return f"{found['path']}{value}: {why}"


def _value(line: bytes, field: str) -> str:
    try:
        value = msgspec.json.decode(line)[field]
    except (msgspec.DecodeError, UnicodeDecodeError):
        # The line is broken further on too.
        return ""
    return "" if isinstance(value, dict | list) else f" is {shown(value)}"


def shown(value: object) -> str:
    """Return a value as JSON, cut off where it is long."""
    text = json.dumps(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
