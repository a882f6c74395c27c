"""Events of a stream have the data that the format says, however the stream is cut."""

import re

from hypothesis import given
from hypothesis import strategies as st

from warmpath.router.inference_api.response import LINE_END, EventStream

LINES = st.sampled_from(
    [b"data: a", b"data:b", b"data:", b"data: ", b"data:  c", b"dat", b"data", b"datax: d", b"", b":",
     b"event: e", b"id: data: f", b"da: g", b"\xef\xbb\xbfdata: h", b"data: \xef\xbb\xbf"]
)  # fmt: skip
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


def events(stream: bytes, size: int) -> list[bytes]:
    reader = EventStream()
    found, data = [], b""
    for at in range(0, len(stream), size):
        for piece in reader.feed(stream[at : at + size]):
            if piece is None:
                # The format takes the end of the last line away.
                found.append(data.removesuffix(LINE_END))
                data = b""
            else:
                data += piece
    return found


def by_the_format(stream: bytes) -> list[bytes]:
    """Return the events as the format's text says, line by line."""
    found, data = [], None
    *lines, _ = re.split(rb"\r\n|\n|\r", stream.removeprefix(b"\xef\xbb\xbf"))
    for line in lines:
        if not line and data is not None:
            found.append(b"\n".join(data))
            data = None
        elif line.startswith(b"data:"):
            data = [*(data or []), line[5:].removeprefix(b" ")]
    return found


@given(st.lists(st.tuples(LINES, ENDS), max_size=12), st.sampled_from([1, 2, 3, 5, 1000]))
def test_events_have_the_data_that_the_format_says(
    lines: list[tuple[bytes, bytes]], size: int
) -> None:
    stream = b"".join(line + end for line, end in lines)
    assert events(stream, size) == by_the_format(stream)
