"""The guard before handlers of every kind: who is known gets through, nobody else is even read."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from warmpath.router.access.callers import Callers
from warmpath.router.access.guard import Guard
from warmpath.router.access.roles import ROLES
from warmpath.router.config.schema import ClientSpec

TOKEN = "correct-horse-battery"
KNOWN = (("authorization", f"Bearer {TOKEN}"),)
KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


class Counts:
    def __init__(self) -> None:
        self.refused: list[tuple[str, str]] = []

    def kept_out(self, asked: str, why: str) -> None:
        self.refused.append((asked, why))


class Server:
    """Has a method of each kind, and one that writes its answers; each says what it was sent."""

    def __init__(self) -> None:
        self.calls = 0
        self.counts = Counts()

    async def unary_unary(self, request: bytes, _: object) -> bytes:
        self.calls += 1
        return request

    async def unary_stream(self, request: bytes, _: object) -> AsyncIterator[bytes]:
        self.calls += 1
        for part in request.split():
            yield part

    async def stream_unary(self, requests: AsyncIterator[bytes], _: object) -> bytes:
        self.calls += 1
        return b" ".join([request async for request in requests])

    async def stream_stream(
        self, requests: AsyncIterator[bytes], _: object
    ) -> AsyncIterator[bytes]:
        self.calls += 1
        async for request in requests:
            yield request

    async def written(self, _: AsyncIterator[bytes], context: Any) -> None:
        self.calls += 1
        while (request := await context.read()) is not grpc.aio.EOF:
            await context.write(request)

    def handlers(self) -> grpc.GenericRpcHandler:
        methods: dict[str, Any] = {
            name: getattr(grpc, f"{name}_rpc_method_handler")(getattr(self, name)) for name in KINDS
        }
        methods["written"] = grpc.stream_stream_rpc_method_handler(self.written)
        return grpc.method_handlers_generic_handler("it", methods)


@pytest.fixture
def served() -> Server:
    return Server()


@pytest.fixture
async def channel(
    served: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[grpc.aio.Channel]:
    for name in (*KINDS, "written"):
        monkeypatch.setitem(ROLES, f"/it/{name}", "score")
    (tmp_path / "token").write_text(TOKEN)
    callers = Callers([ClientSpec("gateway", ["score"], token_file="token")], tmp_path)
    async with _serving(Guard(served.handlers(), callers, served.counts)) as channel:
        yield channel


@asynccontextmanager
async def _serving(handlers: grpc.GenericRpcHandler) -> AsyncIterator[grpc.aio.Channel]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handlers,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        await server.stop(0)


async def ask(channel: grpc.aio.Channel, kind: str, metadata: Any = None) -> list[bytes]:
    """Send two words, in one message or in two; return the answers."""
    method = f"/it/{kind}"
    one, two = b"two words", [b"two", b"words"]
    if kind == "unary_unary":
        return [await channel.unary_unary(method)(one, metadata=metadata)]
    if kind == "unary_stream":
        return [part async for part in channel.unary_stream(method)(one, metadata=metadata)]
    if kind == "stream_unary":
        return [await channel.stream_unary(method)(iter(two), metadata=metadata)]
    return [part async for part in channel.stream_stream(method)(iter(two), metadata=metadata)]


async def refused(
    channel: grpc.aio.Channel, kind: str, metadata: Any = None
) -> tuple[grpc.StatusCode, str]:
    """Begin a call and send no message; return the status that ends it, and its text."""
    call = channel.stream_stream(f"/it/{kind}")(metadata=metadata)
    return await call.code(), await call.details() or ""


kinds = pytest.mark.parametrize("kind", [*KINDS, "written"])


@kinds
async def test_who_has_the_role_gets_every_answer(
    channel: grpc.aio.Channel, served: Server, kind: str
) -> None:
    answers = await ask(channel, kind, KNOWN)
    assert answers == ([b"two words"] if kind.endswith("unary") else [b"two", b"words"])
    assert not served.counts.refused


@kinds
async def test_whoever_is_not_known_is_refused_before_any_message_and_no_handler_runs(
    channel: grpc.aio.Channel, served: Server, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    text = (
        f"{kind} needs the role 'score', and the caller has shown neither a known token nor a known "
        "certificate"
    )
    for metadata in (None, (("authorization", "Bearer guessed-guessed-1"),)):
        said = await refused(channel, kind, metadata)
        assert said == (grpc.StatusCode.UNAUTHENTICATED, text)
    assert not served.calls
    assert served.counts.refused == [(kind, "unknown")] * 2
    assert f"{kind}: refused to ipv4:127.0.0.1:" in caplog.text
    for secret in (TOKEN, "guessed"):
        assert secret not in caplog.text


@kinds
async def test_without_the_role_a_known_caller_is_refused(
    channel: grpc.aio.Channel, served: Server, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ROLES, f"/it/{kind}", "read")
    assert await refused(channel, kind, KNOWN) == (
        grpc.StatusCode.PERMISSION_DENIED,
        f"client 'gateway' lacks the role 'read', which {kind} needs",
    )
    assert not served.calls
    assert served.counts.refused == [(kind, "role")]


async def test_a_call_that_ends_without_a_message_is_refused(channel: grpc.aio.Channel) -> None:
    call = channel.stream_unary("/it/unary_unary")(iter(()), metadata=KNOWN)
    with pytest.raises(grpc.aio.AioRpcError, match="the call has no message"):
        await call


async def test_a_method_that_is_not_there_stays_unimplemented(channel: grpc.aio.Channel) -> None:
    code, _ = await refused(channel, "nothing")
    assert code is grpc.StatusCode.UNIMPLEMENTED


async def test_a_call_that_is_cancelled_ends_behind_the_guard_too(
    channel: grpc.aio.Channel, served: Server
) -> None:
    call = channel.stream_stream("/it/stream_stream")(metadata=KNOWN)
    await call.write(b"x")
    assert await call.read() == b"x"
    call.cancel()
    while not call.done():
        await asyncio.sleep(0.001)
    assert served.calls == 1
