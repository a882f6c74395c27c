"""Reads the lines of Mooncake's traces."""

from typing import Annotated

import msgspec
from msgspec import Meta

from warmpath.lab.simulate.traffic.bad_line import decoded
from warmpath.lab.simulate.traffic.log_line import Tokens
from warmpath.lab.simulate.traffic.requests import LoggedRequest, chained, check_count

MOONCAKE_BLOCK = 512
"""Tokens per block."""


class MooncakeLine(msgspec.Struct):
    """A line of Mooncake's traces."""

    timestamp: Annotated[float, Meta(ge=0)]
    """Milliseconds."""
    input_length: Tokens
    output_length: Tokens
    hash_ids: list[int]


class MooncakeRequests:
    """Makes requests of the lines of a trace."""

    block_size = MOONCAKE_BLOCK
    is_approximate = False

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(MooncakeLine)

    def request(self, raw: bytes) -> LoggedRequest:
        line = decoded(self._decoder, raw)
        tokens = max(1, line.input_length)
        check_count("hash_ids", len(line.hash_ids), tokens, MOONCAKE_BLOCK)
        keys = chained(0, line.hash_ids)
        return LoggedRequest(line.timestamp / 1000, tokens, max(1, line.output_length), keys)
