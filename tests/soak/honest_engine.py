"""An engine whose events are true, without a GPU: its sockets, its HTTP server and its cache."""

import asyncio
import hashlib
import json
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from random import Random

import msgspec
import zmq
import zmq.asyncio

BLOCK = 16
VOCABULARY = 50_000
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


class HonestEngine:
    """One vLLM rank of `capacity` blocks, reused in the order of last use, a prompt's tail first."""

    def __init__(
        self,
        pod: str,
        *,
        capacity: int,
        seed: int,
        context: zmq.asyncio.Context,
        model: str = "m",
        host: str = "127.0.0.1",
    ) -> None:
        self.pod = pod
        self.model = model
        self._host = host
        self.rng = Random(seed)
        self.sequence = -1
        self.prompts: deque[list[int]] = deque(maxlen=50)
        """The prompts served last."""
        self._capacity = capacity
        self._blocks: OrderedDict[int, None] = OrderedDict()
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
        """Listen for HTTP."""
        self._http = await asyncio.start_server(http(honest_page), self._host, 0)
        self.address = f"{bracketed(self._host)}:{self._http.sockets[0].getsockname()[1]}"
        self._replaying = asyncio.create_task(self._serve_replays())

    async def subscribed(self) -> None:
        """Wait until a subscriber follows the events."""
        while (await self._live.recv())[:1] != b"\1":
            pass

    def blocks(self) -> int:
        """Return how many blocks are held."""
        return len(self._blocks)

    def held_tokens(self, prompt: Sequence[int]) -> int:
        """Return the leading tokens of a prompt that are cached, of all but its last one."""
        held = 0
        for name in _names(prompt[: (len(prompt) - 1) // BLOCK * BLOCK]):
            if name not in self._blocks:
                break
            held += BLOCK
        return held

    async def serve(self, prompt: list[int]) -> None:
        """Compute a prompt of whole blocks and a token more; publish stored and removed blocks."""
        names = _names(prompt[: len(prompt) // BLOCK * BLOCK])
        hits = 0
        while hits < len(names) and names[hits] in self._blocks:
            hits += 1
        for name in reversed(names[:hits]):
            self._blocks.move_to_end(name)
        gone = []
        while len(self._blocks) + len(names) - hits > self._capacity:
            gone.append(self._blocks.popitem(last=False)[0])
        events: list[dict[str, object]] = []
        if gone:
            events.append({"type": "BlockRemoved", "block_hashes": gone, "medium": "GPU"})
        self._blocks |= dict.fromkeys(names[hits:])
        # The tail is reused first, so no block is held without its parent.
        for name in reversed(names):
            self._blocks.move_to_end(name)
        if hits < len(names):
            events.append(
                {
                    "type": "BlockStored", "block_hashes": names[hits:],
                    "parent_block_hash": names[hits - 1] if hits else None,
                    "token_ids": prompt[hits * BLOCK : len(names) * BLOCK], "block_size": BLOCK,
                    "lora_id": None, "medium": "GPU", "lora_name": None,
                }
            )  # fmt: skip
        self.prompts.append(prompt)
        await self._publish(events)

    async def forget(self) -> None:
        """Empty the cache, and publish that."""
        self._blocks.clear()
        await self._publish([{"type": "AllBlocksCleared"}])

    async def _publish(self, events: list[dict[str, object]]) -> None:
        self.sequence += 1
        number = self.sequence.to_bytes(8, "big")
        payload = msgspec.msgpack.encode([time.time(), events, 0])
        self._journal.append((number, payload))
        await self._live.send_multipart((b"", number, payload))

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


def new_prompt(rng: Random, blocks: int, prefix: Sequence[int] = ()) -> list[int]:
    """Return a prompt of a prefix, random blocks, and one token more."""
    return [*prefix, *(rng.randrange(VOCABULARY) for _ in range(blocks * BLOCK + 1))]


def _names(tokens: Sequence[int]) -> list[int]:
    names, digest = [], hashlib.blake2b(digest_size=8)
    for at in range(0, len(tokens), BLOCK):
        digest.update(repr(tokens[at : at + BLOCK]).encode())
        names.append(int.from_bytes(digest.digest(), "little"))
    return names


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


def chat_body(text: str) -> bytes:
    """Return an OpenAI chat request's body."""
    return json.dumps({"model": "text", "messages": [{"role": "user", "content": text}]}).encode()
