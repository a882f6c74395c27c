"""The entries of a request's lists, counted before the message is parsed.

Protobuf makes an object of each text and message in a list, all in one go: a second for what a few
megabytes can hold. Here no object is made, and no more is looked at than what may be there.
"""

from collections.abc import Iterator
from typing import Any

from router.prompt.bounds import MOST_ENTRIES, check_count

TEXT_OR_MESSAGE = 2
"""The wire type."""
MORE = 0x80
"""Set in a byte of a varint that another follows."""
NUMBER = 0
"""The wire type of a varint."""
UNKNOWN = 0
"""Stands for the tags of all fields that a message does not know: there are half a billion."""
FIXED = {1: 8, 5: 4, 3: 0, 4: 0}
"""Bytes of what has a wire type of its own; of groups, which nobody writes, the fields follow."""
AT_ONCE = 1024
"""Fields that are counted without a pause: about two milliseconds' work."""
LEAST_BYTES = 2
"""Of an entry: its tag and its length."""
NESTED = ("prompt",)
"""Messages whose lists are looked at too. Those of loads and items have none."""


def check_entries(raw: bytes, kind: Any, most: int = MOST_ENTRIES) -> Iterator[None]:
    """Raise BadRequestError where anything is there more than `most` times.

    `kind` is the message's descriptor. Bytes that are no message are left for the parser to refuse.
    Yields where others may have their turn.
    """
    if len(raw) > LEAST_BYTES * most:
        yield from _Entries(raw, most).check(0, len(raw), kind, "")


class _Entries:
    def __init__(self, raw: bytes, most: int) -> None:
        self._raw = raw
        self._most = most
        self._seen = 0
        """Fields, of all messages."""
        self._counts: dict[str, dict[int, int]] = {}
        """By tag, of all messages that stand in one place: the parser makes one of them."""

    def check(self, at: int, end: int, kind: Any, path: str) -> Iterator[None]:
        raw, most = self._raw, self._most
        counts = self._counts.setdefault(path, {})
        nested, numbers = _nested(kind), set(kind.fields_by_number)
        while at < end:
            self._seen += 1
            if not self._seen % AT_ONCE:
                yield
            tag = raw[at]
            at += 1
            if tag >= MORE:
                tag, at = _varint(raw, at - 1, end)
            counted = tag if tag >> 3 in numbers else UNKNOWN
            counts[counted] = count = counts.get(counted, 0) + 1
            if count > most:
                field = kind.fields_by_number.get(tag >> 3)
                check_count(f"{path}{field.name}" if field else "request", count, most)
            wire_type = tag & 7
            if wire_type == TEXT_OR_MESSAGE:
                size, at = _varint(raw, at, end)
                if tag in nested and at + size <= end:
                    field = nested[tag]
                    path_within = f"{path}{field.name}."
                    yield from self.check(at, at + size, field.message_type, path_within)
                at += size
            elif wire_type == NUMBER:
                _, at = _varint(raw, at, end)
            elif wire_type in FIXED:
                at += FIXED[wire_type]
            else:
                return


def _nested(kind: Any) -> dict[int, Any]:
    """Return by tag the messages in a message of which the lists are looked at."""
    fields = [kind.fields_by_name.get(name) for name in NESTED]
    return {field.number << 3 | TEXT_OR_MESSAGE: field for field in fields if field is not None}


def _varint(raw: bytes, at: int, end: int) -> tuple[int, int]:
    """Return a number and where it ends; one that never ends is the last thing there."""
    if at < end and raw[at] < MORE:
        return raw[at], at + 1
    number = shift = 0
    while at < end:
        byte = raw[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < MORE or shift > 63:
            return number, at
        shift += 7
    return number, end
