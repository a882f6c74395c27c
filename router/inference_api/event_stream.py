"""Splits a stream of server-sent events into their data, chunk by chunk, without keeping them.

Source of the format: WHATWG HTML, section 9.2.6, "Interpreting an event stream".
"""

import re
from collections.abc import Iterator

LINE_END = b"\n"
_ENDS = re.compile(rb"\r\n|\r|\n")
_DATA = b"data:"
_MARK = b"\xef\xbb\xbf"
"""The byte order mark, which the first line may begin with."""


class EventStream:
    """Reads one stream; lines and events may have any length."""

    def __init__(self) -> None:
        self._begun: bytes | None = b""
        """The line's first bytes, until its field is known; then None."""
        self._is_first_line = True
        self._is_data_line = False
        self._has_data = False
        """Whether the event has had a line of data."""
        self._after_return = False
        """Whether the last byte was a carriage return: a line feed then ends no line."""

    def feed(self, chunk: bytes) -> Iterator[bytes | None]:
        """Yield the data in the stream's next bytes, in pieces.

        A piece `LINE_END` ends a line of data, and None an event that has data.
        """
        if not chunk:
            return
        rest = chunk.removeprefix(b"\n") if self._after_return else chunk
        self._after_return = chunk.endswith(b"\r")
        *lines, rest = _ENDS.split(rest)
        for line in lines:
            yield from self._part(line)
            yield from self._end_line()
        yield from self._part(rest)

    def _part(self, part: bytes) -> Iterator[bytes]:
        if self._begun is not None:
            begun = self._begun + part
            if self._is_first_line and begun.startswith(_MARK):
                begun, self._is_first_line = begun[len(_MARK) :], False
            if (_DATA + b" ").startswith(begun) or (
                self._is_first_line and _MARK.startswith(begun)
            ):
                self._begun = begun
                return
            self._begun = None
            self._is_data_line = begun.startswith(_DATA)
            self._has_data |= self._is_data_line
            part = begun[len(_DATA) :].removeprefix(b" ")
        if self._is_data_line and part:
            yield part

    def _end_line(self) -> Iterator[bytes | None]:
        begun, self._begun = self._begun, b""
        if begun == b"" and self._has_data:
            yield None
            self._has_data = False
        elif begun is not None:
            self._is_data_line = begun.startswith(_DATA)
            self._has_data |= self._is_data_line
        if self._is_data_line:
            yield LINE_END
        self._is_data_line = self._is_first_line = False
