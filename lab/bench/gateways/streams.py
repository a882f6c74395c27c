"""A client that opens streams, reads them to their ends, and takes the time between tokens.

Usage: python -m warmpath.lab.bench.gateways.streams HOST:PORT BODY STREAMS OPENING SECONDS
BODY is a file with the request. Streams are opened one after the other during OPENING seconds. It prints
"open" when all are open, "over" after SECONDS more, and JSON of the tokens between the two: "tokens",
"p50" and "p99" (ms between two tokens of a stream), and "refused" (the first bytes of each answer
without status 200; empty: the connection broke). Streams that have not ended CLOSING_SECONDS later are
broken off.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any, cast

import uvloop

from warmpath.process.address import HostPort
from warmpath.router.diagnosis.shadow import quantile

CLOSING_SECONDS = 5.0
EVENT = b"data: "
FINE = b"HTTP/1.1 200"


class Window:
    """The tokens that come while it is open. Times are of `time.perf_counter`."""

    def __init__(self) -> None:
        self.is_open = False
        self.gaps: list[float] = []

    def take(self, before: float, now: float, tokens: int) -> None:
        """Take `tokens` tokens of a stream that came at once, its last one having come at `before`."""
        if self.is_open:
            self.gaps.append(now - before)
            self.gaps += (tokens - 1) * [0.0]


class StreamConnection(asyncio.Protocol):
    """One request and its stream."""

    def __init__(self, request: bytes, window: Window) -> None:
        self._request = request
        self._window = window
        self._last = 0.0
        self.refusal: str | None = ""
        """The first bytes of an answer that has not status 200; None: it has; empty: none came."""
        self.begun, self.ended = (asyncio.get_running_loop().create_future() for _ in range(2))
        """Done when the first bytes have come, and when the connection is closed."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if not self.begun.done():
            self.begun.set_result(None)
            self.refusal = None if data.startswith(FINE) else data[:1000].decode(errors="replace")
        tokens = data.count(EVENT)
        if tokens:
            if self._last:
                self._window.take(self._last, now, tokens)
            self._last = now
        if data.endswith(b"0\r\n\r\n") or self.refusal is not None:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        for one in (self.begun, self.ended):
            if not one.done():
                one.set_result(None)


def request_of(address: HostPort, body: bytes) -> bytes:
    """Return the bytes of a request for a chat."""
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {address}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def _run(
    address: HostPort, body: bytes, streams: int, opening: float, seconds: float
) -> dict[str, Any]:
    loop, window, request = asyncio.get_running_loop(), Window(), request_of(address, body)
    connections = []
    begun = loop.time()
    for number in range(streams):
        await asyncio.sleep(begun + number / streams * opening - loop.time())
        _, one = await loop.create_connection(
            lambda: StreamConnection(request, window), address.host, address.port
        )
        connections.append(one)
    await asyncio.wait([one.begun for one in connections])
    window.is_open = True
    print("open", flush=True)
    await asyncio.sleep(seconds)
    window.is_open = False
    print("over", flush=True)
    await asyncio.wait([one.ended for one in connections], timeout=CLOSING_SECONDS)
    gaps = sorted(window.gaps) or [0.0]
    return {
        "tokens": len(window.gaps),
        "p50": quantile(gaps, 0.5) * 1000,
        "p99": quantile(gaps, 0.99) * 1000,
        "refused": [one.refusal for one in connections if one.refusal is not None],
    }


def main() -> None:
    """Run with the command line's arguments."""
    address, body, streams, opening, seconds = sys.argv[1:]
    found = uvloop.run(
        _run(
            HostPort.of(address),
            Path(body).read_bytes(),
            int(streams),
            float(opening),
            float(seconds),
        )
    )
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
