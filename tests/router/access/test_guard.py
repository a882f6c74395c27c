"""The guard before methods, on both transports: who is known gets through, nobody else is even read."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.h2grpc.served import BOTH, new_server
from warmpath.h2grpc.method import Method
from warmpath.router.access.entrance import ROLES, Entrance
from warmpath.router.config.schema import ClientSpec
from warmpath.router.transport.call import Call

TOKEN = "correct-horse-battery"
KNOWN = (("authorization", f"Bearer {TOKEN}"),)
KINDS = ("each", "once")


class Counts:
    def __init__(self) -> None:
        self.refused: list[tuple[str, str]] = []

    def kept_out(self, asked: str, why: str) -> None:
        self.refused.append((asked, why))


class Server:
    """Has a method that answers each message, and one that answers the first, which it may do at once."""

    def __init__(self) -> None:
        self.calls = 0
        self.counts = Counts()

    async def each(self, call: Call) -> None:
        self.calls += 1
        while (message := await call.read()) is not None:
            await call.write(message)

    def once(self, message: bytes, _: Call) -> bytes:
        self.calls += 1
        return message

    def methods(self) -> dict[str, Method]:
        return {"/it/each": Method(self.each), "/it/once": Method(self.each, self.once)}


@pytest.fixture
def served() -> Server:
    return Server()


@pytest.fixture(params=BOTH)
async def channel(
    served: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> AsyncIterator[grpc.aio.Channel]:
    for name in KINDS:
        monkeypatch.setitem(ROLES, f"/it/{name}", "score")
    (tmp_path / "token").write_text(TOKEN)
    entrance = Entrance([ClientSpec("gateway", ["score"], token_file="token")], tmp_path)
    server = new_server(request.param, entrance.guarded(served.methods(), served.counts))
    address = await server.start("127.0.0.1:0")
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            yield channel
    finally:
        await server.stop(0)


async def refused(
    channel: grpc.aio.Channel, kind: str, metadata: Any = None
) -> tuple[grpc.StatusCode, str]:
    """Begin a call and send no message; return the status that ends it, and its text."""
    call = channel.stream_stream(f"/it/{kind}")(metadata=metadata)
    return await call.code(), await call.details() or ""


kinds = pytest.mark.parametrize("kind", KINDS)


@kinds
async def test_who_has_the_role_gets_every_answer(
    channel: grpc.aio.Channel, served: Server, kind: str
) -> None:
    assert await channel.unary_unary(f"/it/{kind}")(b"two words", metadata=KNOWN) == b"two words"
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


async def test_a_method_that_is_not_there_stays_unimplemented(channel: grpc.aio.Channel) -> None:
    code, _ = await refused(channel, "nothing")
    assert code is grpc.StatusCode.UNIMPLEMENTED


async def test_a_call_that_is_cancelled_ends_behind_the_guard_too(
    channel: grpc.aio.Channel, served: Server
) -> None:
    call = channel.stream_stream("/it/each")(metadata=KNOWN)
    await call.write(b"x")
    assert await call.read() == b"x"
    call.cancel()
    while not call.done():
        await asyncio.sleep(0.001)
    assert served.calls == 1
