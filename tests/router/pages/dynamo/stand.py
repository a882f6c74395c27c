"""Publishers of events with a router and Dynamo's own services that follow them."""

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import zmq

from tests.router.running_router import running_router
from warmpath.lab.local.ports import HeldPorts

MODEL = "m"
BLOCK = 4
WORKERS = (1, 2, 18446744073709551615)
TIERS = ("GPU", "CPU", "DISK")
MARK = 1_000_000
"""The lowest token id of the prompts that mark a point of a stream."""


class Publisher:
    """An engine's stream of events."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
        self._socket = context.socket(zmq.PUB)
        self._socket.bind("tcp://127.0.0.1:*")
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._sequence = -1

    @staticmethod
    def name(tokens: Sequence[int]) -> int:
        """Return the engines' name of the block that ends the tokens.

        It is the same in all: Dynamo's slower tiers know a block of several workers by one name only.
        """
        return hash(tuple(tokens)) & ((1 << 62) - 1)

    def stored(self, tokens: Sequence[int], begins: int, tier: str) -> list[Any]:
        """Return the event that blocks `begins` and later of the tokens came into a tier."""
        ends = range((begins + 1) * BLOCK, len(tokens) + 1, BLOCK)
        names = [self.name(tokens[:end]) for end in ends]
        parent = self.name(tokens[: begins * BLOCK]) if begins else None
        return [
            "BlockStored", names, parent, [*tokens[begins * BLOCK :]], BLOCK, None, tier, None,
        ]  # fmt: skip

    def removed(self, tokens: Sequence[int], tier: str) -> list[Any]:
        """Return the event that the last block of the tokens left a tier."""
        return ["BlockRemoved", [self.name(tokens)], tier]

    def publish(self, *events: Any) -> None:
        self._sequence += 1
        payload = msgspec.msgpack.encode([float(self._sequence), events, 0])
        self._socket.send_multipart([b"", self._sequence.to_bytes(8, "big"), payload])

    def mark(self, number: int) -> None:
        """Store a prompt of its own in each tier, which is known when all before it is."""
        for tier, prompt in zip(TIERS, marks(number), strict=True):
            self.publish(self.stored(prompt, 0, tier))

    def close(self) -> None:
        self._socket.close(0)


def marks(number: int) -> list[list[int]]:
    """Return the prompts of a mark, one for each tier."""
    begin = MARK + number * BLOCK * len(TIERS)
    return [[*range(at, at + BLOCK)] for at in range(begin, begin + BLOCK * len(TIERS), BLOCK)]


class Stand:
    """All that follow the publishers, asked over HTTP."""

    def __init__(self, publishers: Sequence[Publisher], http: aiohttp.ClientSession) -> None:
        self.publishers = publishers
        self.urls: dict[str, str] = {}
        self._http = http
        self._marks = 0

    async def ask(self, whom: str, path: str, body: Any) -> tuple[int, Any]:
        """Return the status and the answer to a POST."""
        url = f"{self.urls[whom]}/{path}"
        async with self._http.post(url, json=body) as response:
            return response.status, await response.json(content_type=None)

    async def query(self, whom: str, tokens: Sequence[int], **fields: Any) -> Mapping[str, Any]:
        body = {"model_name": MODEL, "token_ids": [*tokens], **fields}
        status, answer = await self.ask(whom, "query", body)
        assert status == 200, answer
        return answer

    async def settled(self, *, again: bool = False) -> None:
        """Wait until a mark after all that was published is known to all; the test's time bounds it.

        With `again` the mark is published until it is, since a publisher's first messages may be lost.
        """
        self._marks += 1
        pending = [(whom, prompt) for prompt in marks(self._marks) for whom in self.urls]
        for publisher in self.publishers:
            publisher.mark(self._marks)
        while pending:
            whom, prompt = pending[-1]
            found = await self._held(whom, prompt)
            if found == len(self.publishers):
                pending.pop()
                continue
            await asyncio.sleep(0.02)
            if again:
                for publisher in self.publishers:
                    publisher.mark(self._marks)

    async def _held(self, whom: str, prompt: Sequence[int]) -> int:
        try:
            status, answer = await self.ask(
                whom, WAYS[whom], {"model_name": MODEL, "token_ids": [*prompt]}
            )
        except aiohttp.ClientError:
            return 0
        if status != 200:
            return 0
        if "instances" in answer:
            return len(answer["instances"])
        return sum(bool(worker["disk_blocks"]) for worker in answer["workers"])


WAYS = {"router": "query", "indexer": "query", "selector": "overlap_scores"}
"""The page that each answers."""


@asynccontextmanager
async def publishing() -> AsyncIterator[list[Publisher]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    publishers = [Publisher(context) for _ in WORKERS]
    try:
        yield publishers
    finally:
        for publisher in publishers:
            publisher.close()
        context.term()


def tables(publishers: Sequence[Publisher], ids: Sequence[object] = WORKERS) -> str:
    """Return the configuration of a router that follows the publishers."""
    lines = [
        "[limits]", "max-prompt-bytes = 200_000", "max-prompt-tokens = 5_000",
        "[probe]", "interval-seconds = 0",
        "[[models]]", f'name = "{MODEL}"', "[[models]]", 'name = "idle"',
    ]  # fmt: skip
    for one, publisher in zip(ids, publishers, strict=True):
        lines += [
            "[[pods]]", f'id = "{one}"', f'model = "{MODEL}"',
            'address = "127.0.0.1:1"', f'events = "{publisher.endpoint}"',
        ]  # fmt: skip
    return "\n".join(lines)


@asynccontextmanager
async def standing(
    folder: Path,
    *,
    peers: bool = False,
    ids: Sequence[object] = WORKERS,
    drain_seconds: float = 0.5,
) -> AsyncIterator[Stand]:
    """Run a router over publishers; with `peers`, Dynamo's indexer and its selection service too."""
    async with AsyncExitStack() as stack:
        publishers = await stack.enter_async_context(publishing())
        http = await stack.enter_async_context(aiohttp.ClientSession())
        stand = Stand(publishers, http)
        router, _ = await stack.enter_async_context(
            running_router(folder, tables(publishers, ids), drain_seconds=drain_seconds)
        )
        stand.urls["router"] = f"http://{router.http_address}"
        if peers:
            ports = stack.enter_context(HeldPorts())
            workers = ",".join(
                f"{number}={one.endpoint}" for number, one in zip(WORKERS, publishers, strict=True)
            )
            await _start(stack, stand, "indexer", ports.take(), (
                "dynamo.indexer", f"--block-size={BLOCK}", "--threads=2", f"--workers={workers}",
                f"--model-name={MODEL}",
            ))  # fmt: skip
            await _start(stack, stand, "selector", ports.take(), ("dynamo.select_service",))
            for number, publisher in zip(WORKERS, publishers, strict=True):
                body = {
                    "worker_id": number, "model_name": MODEL, "endpoint": "http://127.0.0.1:1",
                    "block_size": BLOCK, "kv_events_endpoint": publisher.endpoint,
                    "max_num_batched_tokens": 8192,
                }  # fmt: skip
                assert (await stand.ask("selector", "workers", body))[0] == 201
        await stand.settled(again=True)
        yield stand


async def _start(
    stack: AsyncExitStack, stand: Stand, name: str, port: int, command: Sequence[str]
) -> None:
    """Run one of Dynamo's processes until the stack closes; return when it answers."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *command, f"--port={port}",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip

    async def end() -> None:
        process.terminate()
        await process.wait()

    stack.push_async_callback(end)
    stand.urls[name] = f"http://127.0.0.1:{port}"
    while True:
        assert process.returncode is None, name
        try:
            await stand.ask(name, "workers", {})
        except aiohttp.ClientError:
            await asyncio.sleep(0.05)
        else:
            return
