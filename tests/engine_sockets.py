"""An engine's sockets: its events and their replays over ZMQ, and a few pages over HTTP."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

import zmq
import zmq.asyncio

END = (-1).to_bytes(8, "big", signed=True)
"""The number that ends a replay."""
KEPT = 2000
"""Batches that a replay can have at most."""

METRICS = b'vllm:num_requests_running{engine="0"} 1.0\nprocess_start_time_seconds 1000.0\n'
PAGES = {
    "/health": b"",
    "/metrics": METRICS,
    "/version": b'{"version": "0.23.0"}',
    "/v1/models": b'{"data": [{"id": "m"}]}',
}


class EngineSockets:
    """What a router or a publisher reaches of one vLLM rank, at free ports of `host`."""

    def __init__(self, context: zmq.asyncio.Context, host: str = "127.0.0.1") -> None:
        self._host = host
        self._journal: deque[tuple[bytes, bytes]] = deque(maxlen=KEPT)
        # XPUB shows subscriptions: batches published before the first subscriber came would be lost.
        self._live = context.socket(zmq.XPUB)
        self._replay = context.socket(zmq.ROUTER)
        for socket in (self._live, self._replay):
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.IPV6, int(":" in host))
            socket.bind(f"tcp://{bracketed(host)}:*")
        self.events = self._live.getsockopt_string(zmq.LAST_ENDPOINT)
        self.replay = self._replay.getsockopt_string(zmq.LAST_ENDPOINT)
        self.address = ""

    async def start(self) -> None:
        """Listen for HTTP, and answer replays."""
        self._http = await asyncio.start_server(http(honest_page), self._host, 0)
        self.address = f"{bracketed(self._host)}:{self._http.sockets[0].getsockname()[1]}"
        self._replaying = asyncio.create_task(self._serve_replays())

    async def subscribed(self) -> None:
        """Wait until a subscriber follows the events."""
        while (await self._live.recv())[:1] != b"\1":
            pass

    def publish(self, sequence: int, payload: bytes) -> "asyncio.Future[None]":
        """Send a batch to all subscribers, and keep it for replays."""
        batch = sequence.to_bytes(8, "big"), payload
        self._journal.append(batch)
        sent: asyncio.Future[None] = self._live.send_multipart((b"", *batch))
        return sent

    async def _serve_replays(self) -> None:
        while True:
            frames = await self._replay.recv_multipart()
            if len(frames) != 3 or len(frames[2]) != 8:
                continue
            for number, payload in list(self._journal):
                if number >= frames[2]:
                    await self._replay.send_multipart((frames[0], b"", number, payload))
            await self._replay.send_multipart((frames[0], b"", END, b""))

    def close(self) -> None:
        """Close every socket."""
        self._replaying.cancel()
        self._http.close()
        self._live.close()
        self._replay.close()


def bracketed(host: str) -> str:
    """Return a host as an address has it."""
    return f"[{host}]" if ":" in host else host


Page = Callable[[str, asyncio.StreamWriter], Awaitable[None]]
"""Answers a path on a connection."""


def http(page: Page) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """Return a function that serves a connection of HTTP/1.1 with `page`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                while (await reader.readline()).strip():
                    pass
                await page(line.split()[1].decode(), writer)
                await writer.drain()
        except (OSError, IndexError, ValueError, asyncio.CancelledError):
            # The client left, or sent something else than HTTP, or the soak is over.
            pass
        finally:
            writer.close()

    return serve


async def honest_page(path: str, writer: asyncio.StreamWriter) -> None:
    """Answer as a healthy engine."""
    body = PAGES.get(path)
    status = "404 Not Found" if body is None else "200 OK"
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body or b'')}\r\n\r\n"
    writer.write(head.encode() + (body or b""))
