"""A worker in the test's own event loop, reached over loopback like any other."""

import asyncio
import json
from typing import Any, Self

import aiohttp
import msgspec
import zmq
import zmq.asyncio

from warmpath.lab.local.cluster import WorkerSettings
from warmpath.lab.simworker.build_host import build_host, load_text
from warmpath.lab.simworker.options import parse

IDS = list(range(20, 40))
"""Five blocks of four."""

SMALL = (
    "--model=demo", "--listen=127.0.0.1:0", "--events-endpoint=tcp://127.0.0.1:*",
    "--replay-endpoint=tcp://127.0.0.1:*", "--topic=kv", "--blocks=100", "--block-size=4",
    "--vocab-size=2048", "--speed=1000",
)  # fmt: skip


class LocalWorker:
    """A worker; `options` are those of its command line. An async context manager."""

    def __init__(self, *options: str, faults: bool = True) -> None:
        self._settings = parse([*SMALL, *(["--allow-faults"] if faults else []), *options])

    @classmethod
    def of(cls, settings: WorkerSettings, *options: str) -> Self:
        """Return a worker with the options that a local fleet gives it: without faults or a topic."""
        return cls(
            "--topic=", f"--blocks={settings.blocks}", f"--block-size={settings.block_size}",
            f"--speed={settings.speed}", f"--vocab-size={settings.vocab_size}",
            "--stream-interval=64", *options, faults=False,
        )  # fmt: skip

    async def __aenter__(self) -> Self:
        self.context = zmq.asyncio.Context()
        text, settings = load_text(self._settings)
        self.host = build_host(settings, 0, text, self.context)
        await self.host.start()
        self.worker = self.host.worker
        self.ready = self.host.ready
        self.http = aiohttp.ClientSession(f"http://{self.ready['address']}")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.close()
        await self.host.close()
        self.context.term()

    @property
    def address(self) -> str:
        """The address of its HTTP server, host:port."""
        return str(self.ready["address"])

    @property
    def events(self) -> str:
        """The ZMQ address at which it publishes events."""
        return str(self.ready["events"])

    @property
    def replay(self) -> str:
        """The ZMQ address at which it replays events."""
        return str(self.ready["replay"])

    async def post(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        async with self.http.post(path, json=body, headers=headers) as response:
            return await told(response)

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.http.get(path) as response:
            return await told(response)

    async def generate(self, headers: dict[str, str] | None = None, **fields: Any) -> Any:
        body = {"prompt": IDS, "max_tokens": 6, "return_token_ids": True} | fields
        status, answer = await self.post("/v1/completions", body, **(headers or {}))
        assert status == 200, answer
        return answer

    async def begun(self, **fields: Any) -> asyncio.Task[Any]:
        """Ask for something long that is under way when this returns."""
        before = self.worker.in_flight
        body = {"prompt": IDS, "max_tokens": 300, "return_token_ids": True} | fields
        asked = asyncio.create_task(self.post("/v1/completions", body))
        while self.worker.in_flight == before:
            await asyncio.sleep(0.001)
        return asked

    async def cached(self, **fields: Any) -> int:
        answer = await self.generate(**fields)
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    async def stream(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """Return a streamed answer's chunks."""
        async with self.http.post(path, json=body | {"stream": True}) as response:
            assert response.status == 200, await response.text()
            lines = [line async for line in response.content if line.strip()]
        assert lines[-1] == b"data: [DONE]\n"
        return [json.loads(line.removeprefix(b"data: ")) for line in lines[:-1]]

    async def metric(self, line: str) -> float:
        """Return the value of a series, named with its labels."""
        _, text = await self.get("/metrics")
        [value] = [
            row.rpartition(" ")[2] for row in text.splitlines() if row.startswith(line + " ")
        ]
        return float(value)

    async def replayed(self, start: int = 0, rank: int = 0) -> list[list[Any]]:
        """Return a rank's batches from number `start` on, decoded."""
        sockets = self.ready.get("ranks", [self.ready])[rank]
        with self.context.socket(zmq.DEALER) as dealer:
            dealer.connect(sockets["replay"])
            await dealer.send_multipart([b"", start.to_bytes(8, "big")])
            batches = []
            while (frames := await dealer.recv_multipart())[-2] != b"\xff" * 8:
                batches.append(msgspec.msgpack.decode(frames[-1]))
        return batches


async def told(response: aiohttp.ClientResponse) -> tuple[int, Any]:
    text = await response.text()
    is_json = response.content_type == "application/json"
    return response.status, json.loads(text) if is_json else text
