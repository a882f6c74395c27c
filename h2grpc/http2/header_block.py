"""The headers of one call: pairs of bytes, or one block.

`h2grpc.http2.callbacks` writes the block. In it each header has the lengths of its name and
value, 4 bytes each, before them.
"""

import struct
from collections.abc import Iterator, Sequence

MOST_HEADERS = 4
"""A call whose headers exceed this multiple of `Http2Limits.header_bytes` is reset; it has no status."""

Headers = Sequence[tuple[bytes, bytes]]

LENGTHS = struct.Struct("=ii")


def pairs(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the headers of a block."""
    at = 0
    while at < len(block):
        name, value = LENGTHS.unpack_from(block, at)
        at += LENGTHS.size
        yield block[at : at + name], block[at + name : at + name + value]
        at += name + value
