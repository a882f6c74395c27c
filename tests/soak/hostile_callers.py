"""Callers that send anything to every listener; the results of their calls do not matter."""

import asyncio
import contextlib
import json
import struct
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from random import Random

import aiohttp
import grpc.aio
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2

from tests.h2grpc.http2.hostile_client import Http2Client
from tests.h2grpc.http2.raw_frames import HEADERS, PREFACE, SETTINGS, frame
from warmpath.indexer.keys.key import pack_tokens
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2

ROUTER = "/warmpath.v1.Router/"
HEALTH = "/grpc.health.v1.Health/"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
CALLS = ("Score", "Pick", "Report", "Explain", "ListPods", "ListDecisions", "Diagnose")
SOURCE = "127.0.0.2"
"""The address of callers that hold connections: innocent ones come from 127.0.0.1."""
HALF_OPEN = 8
"""Connections with half a request that are held at once."""
HELD_SECONDS = 5.0
CONNECTIONS, STREAMS = 24, 256
"""Connections of headers without messages at once, and calls on each."""
LARGE_AT_ONCE = 6
"""JSON calls of 8 MB at once."""
TIMEOUT = 5.0


class HostileCallers:
    """Hostile acts, one after the other, at random."""

    def __init__(
        self, rng: Random, *, grpc_at: str, http_at: str, watch_at: str, page_at: str
    ) -> None:
        self.rng = rng
        self._grpc = grpc_at
        self._watch = watch_at
        self._addresses = (grpc_at, http_at, watch_at, page_at)
        self._pages = (http_at, page_at)
        self._json = f"http://{http_at}/api/v1/"
        self.acts: tuple[Callable[[], Awaitable[None]], ...] = (
            self.mutated, self.mutated, self.mutated, self.mutated, self.oversized, self.many,
            self.bodies, self.bodies, self.texts, self.bookings, self.cancelled, self.unread,
            self.garbage, self.garbage, self.half_open, self.pages, self.streams, self.watchers,
            self.health, self.large_streams, self.headers_only, self.headers_only, self.large_json,
        )  # fmt: skip

    async def act(self) -> str:
        act = self.rng.choice(self.acts)
        # Calls that hang or are refused do not matter here.
        ends = (grpc.aio.AioRpcError, asyncio.InvalidStateError, OSError, TimeoutError, EOFError)
        with contextlib.suppress(*ends):
            await asyncio.wait_for(act(), 4 * TIMEOUT)
        return act.__name__

    async def _ask(self, method: str, raw: bytes | Message, address: str = "") -> None:
        options = [
            ("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1),
        ]  # fmt: skip
        path = method if method.startswith("/") else ROUTER + method
        async with grpc.aio.insecure_channel(address or self._grpc, options=options) as channel:
            sent = raw if isinstance(raw, bytes) else raw.SerializeToString()
            with contextlib.suppress(grpc.aio.AioRpcError):
                await channel.unary_unary(path)(sent, timeout=TIMEOUT)

    def _tokens(self, most: int = 400) -> bytes:
        ids = [self.rng.randrange(50_000) for _ in range(self.rng.randrange(1, most))]
        return pack_tokens(ids)

    def _request(self) -> tuple[str, Message]:
        prompt = pb.Prompt(model="m", token_ids_packed=self._tokens(), cache_salt="s", lora="x")
        load = pb.PodLoad(pod="still", running=2**32 - 1, waiting=2**32 - 1, kv_usage=1e300, age=-1)
        return self.rng.choice(
            [
                ("Score", pb.ScoreRequest(prompt=prompt, pods=["still", "liar"], explain=True)),
                ("Pick", pb.PickRequest(prompt=prompt, loads=[load] * 3, session_id="s", pods=["liar"])),
                ("Report", pb.ReportRequest(booking_id="x", event="FINISHED", output_tokens=2**32 - 1)),
                ("Explain", pb.ExplainRequest(prompt=prompt, pods=["nobody"], policy="none")),
                ("ListDecisions", pb.ListDecisionsRequest(limit=2**32 - 1, pod="liar")),
            ]
        )  # fmt: skip

    async def mutated(self) -> None:
        for _ in range(10):
            method, request = self._request()
            raw = bytearray(request.SerializeToString())
            for _ in range(self.rng.choice([1, 2, 8])):
                at = self.rng.randrange(len(raw))
                raw[at : at + self.rng.randrange(3)] = self.rng.randbytes(self.rng.randrange(4))
                raw = raw or bytearray(b"\0")
            await self._ask(self.rng.choice([method, *CALLS]), bytes(raw))

    async def oversized(self) -> None:
        """Send names, salts and the like of a megabyte."""
        long = chr(self.rng.randrange(97, 122)) * self.rng.choice([300, 5000, 1 << 20])
        field = self.rng.choice(["model", "lora", "cache_salt", "extra_key"])
        prompt = pb.Prompt(**{"model": "m", "token_ids_packed": self._tokens(), field: long})
        await self._ask("Score", pb.ScoreRequest(prompt=prompt))
        known = pb.Prompt(model="m", token_ids_packed=self._tokens())
        await self._ask("Score", pb.ScoreRequest(prompt=known, pods=[long], strategy=long))
        await self._ask(
            "Pick", pb.PickRequest(prompt=known, session_id=long, booking_id=long[:200])
        )
        await self._ask("Pick", pb.PickRequest(prompt=known, policy=long))
        await self._ask("ListPods", pb.ListPodsRequest(model=long))

    async def many(self) -> None:
        many = self.rng.choice([1000, 100_000])
        prompt = pb.Prompt(model="m", token_ids_packed=self._tokens())
        names = [f"pod-{number}" for number in range(many)]
        await self._ask("Score", pb.ScoreRequest(prompt=prompt, pods=names))
        loads = [pb.PodLoad(pod=name, kv_usage=float("nan")) for name in names[:20_000]]
        await self._ask("Pick", pb.PickRequest(prompt=prompt, loads=loads))
        items = [pb.MultimodalItem(hash="h", offset=2**32 - 1, length=2**32 - 1)] * min(
            many, 20_000
        )
        await self._ask("Score", pb.ScoreRequest(prompt=pb.Prompt(model="m", multimodal=items)))
        long = pb.Prompt(model="m", token_ids_packed=self.rng.randbytes(4) * many)
        await self._ask("Score", pb.ScoreRequest(prompt=long))
        await self._ask("Score", b"\x0a\x00" * many)
        ids = pb.TokenIds(ids=[2**32 - 1] * many)
        await self._ask("Score", pb.ScoreRequest(prompt=pb.Prompt(model="m", token_ids=ids)))

    async def bodies(self) -> None:
        deep = b'{"messages":' + b"[" * 5000 + b"]" * 5000 + b"}"
        chat = {"model": "text", "messages": [{"role": "user", "content": "x"}]}
        whole = json.dumps(chat).encode()
        body = self.rng.choice(
            [
                deep,
                whole[: self.rng.randrange(len(whole))],
                json.dumps(chat | {"messages": [{"role": 5}] * 500}).encode(),
                json.dumps(chat | {"messages": [[]]}).encode(),
                json.dumps(chat | {"tools": [{}] * 3000, "chat_template": "{{ 1/0 }}"}).encode(),
                json.dumps(chat | {"cache_salt": "s" * 70_000}).encode(),
                json.dumps(chat | {"chat_template_kwargs": {"x": "y" * 10_000}}).encode(),
                json.dumps({"model": "text", "prompt": [[1, "x"]] * 2000}).encode(),
                b'{"messages":[' + b"{}," * 30_000 + b"{}]}",
                b'{"model": "text", "prompt": "\\ud800"}',
                self.rng.randbytes(200),
            ]
        )
        for field in ("chat_body", "completions_body"):
            prompt = pb.Prompt(**{"model": "text", field: body})
            await self._ask("Score", pb.ScoreRequest(prompt=prompt, explain=True))
            await self._ask("Pick", pb.PickRequest(prompt=prompt))

    async def texts(self) -> None:
        """Send texts that are long, or hard to cut."""
        text = self.rng.choice(
            [
                "a" * 200_000,
                "\u0300" * 20_000,
                " \n" * 50_000,
                "<|user|>" * 5000,
                "\U0010ffff" * 9999,
            ]
        )
        prompt = pb.Prompt(model="text", text=f"{self.rng.random()}{text}")
        await self._ask("Score", pb.ScoreRequest(prompt=prompt, explain=True))

    async def bookings(self) -> None:
        """Pick and never report, or report unknown bookings, with absurd figures."""
        for number in range(20):
            prompt = pb.Prompt(model="m", token_ids_packed=self._tokens())
            name = f"name-{self.rng.randrange(50)}"
            await self._ask(
                "Pick",
                pb.PickRequest(
                    prompt=prompt, booking_id=name, session_id=f"{self.rng.random()}", pods=["liar"],
                    shadow=number % 2 == 0, disaggregated=number % 3 == 0,
                ),
            )  # fmt: skip
            report = pb.ReportRequest(
                booking_id=self.rng.choice([name, "", "x" * 500]), event=self.rng.randrange(6),
                cached_tokens=2**32 - 1, prompt_tokens=2**32 - 1, pod="nobody", rank=2**32 - 1,
            )  # fmt: skip
            await self._ask("Report", report)

    async def cancelled(self) -> None:
        request = pb.PickRequest(prompt=pb.Prompt(model="m", token_ids_packed=self._tokens()))
        async with Http2Client(self._grpc, source=SOURCE) as client:
            for number in range(50):
                client.call("Pick", request.SerializeToString(), reset=number % 2 == 0)
            await asyncio.sleep(0.2)

    async def headers_only(self) -> None:
        service, method = self.rng.choice(
            [("warmpath.v1.Router", call) for call in (*CALLS, "ScoreStream")]
            + [("grpc.health.v1.Health", "Check"), ("grpc.health.v1.Health", "Watch")]
        )
        async with AsyncExitStack() as stack:
            for _ in range(CONNECTIONS):
                client = await stack.enter_async_context(
                    Http2Client(self._grpc, service=service, source=SOURCE)
                )
                for _ in range(STREAMS):
                    client.begin(method)
            await asyncio.sleep(self.rng.random() * HELD_SECONDS)

    async def large_json(self) -> None:
        body = b'{"prompt":{"model":"m","multimodal":[' + b"{}," * 2_600_000 + b"{}]}}"
        wait = aiohttp.ClientTimeout(total=self.rng.random() * TIMEOUT)
        connector = aiohttp.TCPConnector(local_addr=(SOURCE, 0))
        async with aiohttp.ClientSession(timeout=wait, connector=connector) as session:

            async def send() -> None:
                method = self.rng.choice(["Score", "Pick", "Explain"])
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    async with session.post(f"{self._json}{method}", data=body) as answer:
                        await answer.read()

            await asyncio.gather(*(send() for _ in range(LARGE_AT_ONCE)))

    async def unread(self) -> None:
        request = pb.ScoreRequest(prompt=pb.Prompt(model="m", token_ids_packed=self._tokens()))
        async with Http2Client(self._grpc, source=SOURCE) as client:
            for _ in range(50):
                client.call("ScoreStream", *[request.SerializeToString()] * 20)
            await asyncio.sleep(self.rng.random() * HELD_SECONDS)

    async def health(self) -> None:
        """Watch the health and read nothing; ask for the health of a service with a very long name."""
        address = self.rng.choice([self._grpc, self._watch])
        service = HEALTH.strip("/")
        question = health_pb2.HealthCheckRequest(
            service="x" * self.rng.choice([1, 1 << 20, 15 << 20])
        )
        async with Http2Client(address, service=service, source=SOURCE) as client:
            for _ in range(20):
                client.call("Watch", b"")
            for method in ("Check", "Watch"):
                await self._ask(HEALTH + method, question, address)
        await self._ask(REFLECTION, b"\x1a" + b"\xff" * 100)

    async def large_streams(self) -> None:
        prompt = pb.Prompt(model="m", text="x" * (15 << 20))
        raw = pb.ScoreRequest(prompt=prompt).SerializeToString()
        async with grpc.aio.insecure_channel(self._grpc) as channel:
            calls = [
                channel.stream_stream(ROUTER + "ScoreStream")(timeout=TIMEOUT) for _ in range(5)
            ]
            for call in calls:
                await call.write(raw)
            for call in calls:
                await call.read()

    async def garbage(self) -> None:
        parts = [
            self.rng.randbytes(300),
            PREFACE + self.rng.randbytes(300),
            PREFACE + frame(SETTINGS, 0, 0, b"") + frame(HEADERS, 4, 1, self.rng.randbytes(200)),
            PREFACE + frame(SETTINGS, 0, 0, b"") + frame(9, 0, 1, b"\0" * 1000) * 20,
            PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 2**32 - 1)) * 100,
            PREFACE + frame(SETTINGS, 0, 0, b"") + frame(6, 0, 0, b"\0" * 8) * 500,
            b"GET / HTTP/1.1\r\n" + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
            b"POST /metrics HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n" + b"x" * 1000,
            b"GET /metrics HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        ]
        address = self.rng.choice(self._addresses)
        reader, writer = await self._connect(address)
        writer.write(self.rng.choice(parts))
        await self._read_a_while(reader)
        writer.close()

    async def half_open(self) -> None:
        made = [await self._connect(self.rng.choice(self._addresses)) for _ in range(HALF_OPEN)]
        for _, writer in made:
            writer.write(self.rng.choice([b"", b"GET /met", PREFACE[:10], PREFACE]))
        await asyncio.sleep(self.rng.random() * HELD_SECONDS)
        for _, writer in made:
            writer.transport.abort()

    async def pages(self) -> None:
        """Ask for pages, most of them unknown, with odd methods."""
        for path in ("/", "/metrics?" + "x" * 5000, "/%00", "/../../etc/passwd", "/healthz/x"):
            reader, writer = await self._connect(self.rng.choice(self._pages))
            method = self.rng.choice(["GET", "HEAD", "DELETE", "BREW"])
            writer.write(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            await self._read_a_while(reader)
            writer.close()

    async def streams(self) -> None:
        """Send garbage on streams, and end them in the middle."""
        async with grpc.aio.insecure_channel(self._grpc) as channel:
            call = channel.stream_stream(ROUTER + "ScoreStream")(timeout=TIMEOUT)
            _, request = self._request()
            for raw in (self.rng.randbytes(50), request.SerializeToString(), b""):
                await call.write(raw)
            await call.read()
            call.cancel()

    async def watchers(self) -> None:
        """Watch the publisher with a wrong keyspace and position, or with random bytes."""
        watch = "/warmpath.watch.v1.CacheWatch/Watch"
        odd = cache_watch_pb2.WatchRequest(
            keyspace="x" * 5000, epoch="y" * 5000, sequence=2**64 - 1
        )
        async with grpc.aio.insecure_channel(self._watch) as channel:
            for raw in (odd.SerializeToString(), self.rng.randbytes(40)):
                call = channel.unary_stream(watch)(raw, timeout=TIMEOUT)
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await call.read()

    async def _connect(self, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, _, port = address.rpartition(":")
        return await asyncio.open_connection(host, int(port), local_addr=(SOURCE, 0))

    async def _read_a_while(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(reader.read(1 << 16), 0.5)
