"""Answers that pass by the router: what Envoy's Lua filter and its access log tell of them."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from tests.cli.gateway.test_through_envoy import gateway, pods, tables, through
from tests.router.running_router import running_router
from tests.waiting import until
from warmpath.lab.local.ports import HOST, HeldPorts
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc
from warmpath.router.inference_api.response import UsageReader

TOKEN = b'data: {"choices":[{"text":"a"}],"usage":null}\n\n'
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":3,'
    b'"prompt_tokens_details":{"cached_tokens":2}}}\n\ndata: [DONE]\n\n'
)


class Engine:
    """Answers by its next plan, and waits where that says so."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        """The next answer's pieces; an empty one waits for a release of `goes_on`, `dies` ends the connection."""
        self.kind = "text/event-stream"
        self.statuses: list[int] = []
        """The statuses of the next answers, before all others have 200."""
        self.goes_on = asyncio.Semaphore(0)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        if self.statuses:
            return web.json_response({}, status=self.statuses.pop(0))
        response = web.StreamResponse(headers={"content-type": self.kind})
        await response.prepare(request)
        for piece in self.pieces:
            if piece == b"dies":
                assert request.transport is not None
                request.transport.close()
                return response
            if piece:
                await response.write(piece)
                # Each piece comes on its own.
                await asyncio.sleep(0.003)
            else:
                await self.goes_on.acquire()
        return response


class Stand:
    def __init__(
        self, client: aiohttp.ClientSession, router: router_pb2_grpc.RouterStub, engine: Engine
    ) -> None:
        self.client, self.router, self.engine = client, router, engine

    async def newest(self) -> pb.Decision:
        listed = await self.router.ListDecisions(pb.ListDecisionsRequest(limit=1), timeout=30)
        return listed.decisions[0]

    async def until_newest(self, holds: Callable[[pb.Decision], bool]) -> pb.Decision:
        async def is_so() -> bool:
            return holds(await self.newest())

        await until(is_so)
        return await self.newest()

    async def ended(self) -> pb.Decision:
        """Return the newest decision, once its request has ended."""
        return await self.until_newest(
            lambda one: one.state in (pb.Decision.FINISHED, pb.Decision.FAILED)
        )

    def ask(self) -> "aiohttp.client._RequestContextManager":
        body = {"model": "demo", "prompt": [1, 2, 3, 4, 5], "stream": True}
        return self.client.post("/v1/completions", json=body)


@asynccontextmanager
async def stand(folder: Path, *pods: str, share: float = 0.0) -> AsyncIterator[Stand]:
    engine = Engine()
    async with through(
        folder, *(pods or ("pod-1",)), serve=engine.serve, picker=f"watched-share = {share}\n"
    ) as (client, router):
        yield Stand(client, router, engine)


async def test_the_first_token_is_told_at_once_and_the_end_when_it_comes(tmp_path: Path) -> None:
    async with stand(tmp_path) as one:
        # Headers, and an event without a token, tell nothing.
        one.engine.pieces = [
            b'event: response.created\ndata: {"response":{}}\n\n',
            b"",
            TOKEN,
            b"",
            USAGE,
        ]
        async with one.ask() as response:
            assert response.headers["x-warmpath-pod"] == "pod-1"
            await response.content.readuntil(b"\n\n")
            assert not (await one.newest()).HasField("ttft")
            one.engine.goes_on.release()
            decision = await one.until_newest(lambda one: one.HasField("ttft"))
            assert decision.state == pb.Decision.FIRST_TOKEN
            one.engine.goes_on.release()
            assert (await response.read()).endswith(USAGE)
        assert (await one.ended()).state == pb.Decision.FINISHED
        assert not (await one.newest()).HasField("cached_tokens")


async def test_clients_that_leave_and_engines_that_die_end_their_bookings(tmp_path: Path) -> None:
    async with stand(tmp_path) as one:
        one.engine.pieces = [TOKEN, b""]
        async with one.ask() as response:
            await response.content.readany()
            response.close()
        assert (await one.ended()).state == pb.Decision.FAILED
        one.engine.pieces = [TOKEN, b"dies"]
        async with one.ask() as response:
            with pytest.raises(aiohttp.ClientError):
                await response.read()
        assert (await one.ended()).state == pb.Decision.FAILED


async def test_a_retry_counts_where_it_was_served(tmp_path: Path) -> None:
    async with stand(tmp_path, "pod-1", "pod-2") as one:
        one.engine.pieces, one.engine.statuses = [TOKEN, USAGE], [503]
        async with one.ask() as response:
            assert (await response.read()).endswith(USAGE)
            served = response.headers["x-warmpath-pod"]
        decision = await one.ended()
        picked = decision.candidates[0].pod
        assert decision.state == pb.Decision.FINISHED
        assert {picked, served} == {"pod-1", "pod-2"}
        assert decision.pod == served


STREAMS = {
    "OpenAI": TOKEN * 3 + USAGE,
    "a long one": TOKEN * 300 + USAGE,
    "Anthropic": (
        b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":4,'
        b'"cache_read_input_tokens":6,"output_tokens":0}}}\n\nevent: content_block_delta\ndata: '
        b'{"type":"content_block_delta","delta":{"text":"\\"usage\\": {\\"cached_tokens\\": 99}"}}\n\n'
        b'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":9}}\n\n'
    ),
    "Responses": (
        b'event: response.output_text.delta\r\ndata: {"delta":"a"}\r\n\r\nevent: response.completed\r\n'
        b'data: {"response":{"usage":{"input_tokens":8,"input_tokens_details":{"cached_tokens":3},'
        b'"output_tokens":2}}}\r\n\r\n'
    ),
    "SGLang": (
        b'data: {"text":"a","meta_info":{"finish_reason":null,"prompt_tokens":6,"cached_tokens":4,'
        b'"completion_tokens":1}}\n\ndata: [DONE]\n\n'
    ),
}


async def test_usage_is_read_as_the_router_reads_it_wherever_a_stream_is_cut(
    tmp_path: Path,
) -> None:
    async with stand(tmp_path, share=1.0) as one:
        for stream in STREAMS.values():
            reader = UsageReader("text/event-stream")
            reader.feed(stream)
            reader.end()
            for pieces in (50, 5, 1):
                size = -(-len(stream) // pieces)
                one.engine.pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
                async with one.ask() as response:
                    assert await response.read() == stream
                decision = await one.ended()
                assert decision.HasField("ttft")
                assert decision.cached_tokens == reader.usage.cached_tokens


async def test_an_answer_in_one_piece_is_always_read(tmp_path: Path) -> None:
    async with stand(tmp_path) as one:
        one.engine.kind = "application/json"
        text = "x" * 200_000
        whole = json.dumps(
            {
                "choices": [{"text": text}],
                "usage": {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}},
            }
        ).encode()
        one.engine.pieces = [whole[:100_000], whole[100_000:]]
        async with one.ask() as response:
            assert await response.read() == whole
        decision = await one.ended()
        assert (decision.state, decision.cached_tokens) == (pb.Decision.FINISHED, 4)
        assert not decision.HasField("ttft")


async def test_an_answer_goes_on_while_its_router_is_away_and_the_next_one_goes_on_to_count(
    tmp_path: Path,
) -> None:
    engine = Engine()
    engine.pieces = [TOKEN, b"", TOKEN, USAGE]
    with HeldPorts() as ports:
        listen = f"{HOST}:{ports.take()}"
        async with pods("pod-1", serve=engine.serve) as addresses, AsyncExitStack() as stack:
            first = AsyncExitStack()
            router, to_first = await first.enter_async_context(
                running_router(tmp_path, tables(addresses), listen=listen)
            )
            client = await stack.enter_async_context(gateway(router.address, addresses))
            one = Stand(client, router_pb2_grpc.RouterStub(to_first), engine)
            async with one.ask() as response:
                await response.content.readuntil(b"\n\n")
                await first.aclose()
                _, channel = await stack.enter_async_context(
                    running_router(tmp_path, tables(addresses), listen=listen)
                )
                engine.goes_on.release()
                assert (await response.read()).endswith(USAGE)
            engine.pieces.remove(b"")

            two = Stand(client, router_pb2_grpc.RouterStub(channel), engine)

            async def is_picked_for() -> bool:
                async with two.ask() as response:
                    await response.read()
                    return "x-warmpath-pod" in response.headers

            await until(is_picked_for)
            assert (await two.ended()).state == pb.Decision.FINISHED
