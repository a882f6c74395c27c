"""A server under attack, with an honest client beside, and what it keeps."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.clock import Clock
from tests.h2grpc.http2.hostile_client import HostileClient
from tests.h2grpc.served import MISSING, Service
from tests.waiting import until
from warmpath.h2grpc import server as nghttp2_server
from warmpath.h2grpc.connection import Connection
from warmpath.h2grpc.http2 import session as sessions
from warmpath.h2grpc.http2.limits import Http2Limits
from warmpath.process.listener import Listener
from warmpath.process.tls import ServerTls
from warmpath.router.transport.nghttp2 import Nghttp2Server

SECONDS = 60.0
"""Longest wait for anything, on a machine that is busy with other things."""


Attack = Callable[..., AbstractAsyncContextManager["Attacked"]]


@dataclass
class Attacked:
    server: Nghttp2Server
    service: Service
    clock: Clock
    address: str
    caplog: pytest.LogCaptureFixture
    looks: int = 0
    honest: grpc.aio.Channel | None = None

    def client(self, **options: Any) -> HostileClient:
        return HostileClient(self.address, **options)

    async def answers(self, size: int = 100_000) -> None:
        """Check that the honest client is answered."""
        asked = bytes(size)
        assert self.honest is not None
        assert await self.honest.unary_unary("/t.T/Echo")(asked, timeout=SECONDS) == asked

    async def pass_time(self, seconds: float) -> None:
        """Let time pass between two looks at the connections, which check the limits of time."""
        for step in (seconds, 0.0):
            seen = self.looks
            await until(lambda seen=seen: self.looks > seen)
            self.clock.now += step

    async def attacker(self) -> Connection:
        await until(lambda: self.attackers and self.attackers[0].session.has_begun)
        (found,) = self.attackers
        return found

    @property
    def attackers(self) -> list[Connection]:
        return [one for one in self.server._server._connections if one is not self._honest]

    async def begin(self, credentials: grpc.ChannelCredentials | None) -> None:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        if credentials is None:
            self.honest = grpc.aio.insecure_channel(self.address, options=options)
        else:
            _, _, port = self.address.rpartition(":")
            self.honest = grpc.aio.secure_channel(f"localhost:{port}", credentials, options=options)
        await self.answers()
        (self._honest,) = self.server._server._connections

    @property
    def listener(self) -> Listener:
        assert self.server._listener is not None
        return self.server._listener

    @property
    def calls(self) -> int:
        return sum(len(one.calls) for one in self.attackers)

    @property
    def tasks(self) -> int:
        return sum(len(one.calls.tasks) for one in self.attackers)

    @property
    def unsent(self) -> int:
        """The bytes of answers that wait for hostile clients in the sessions."""
        return sum(one.session.unsent for one in self.attackers)

    @property
    def buffered(self) -> int:
        """The bytes that wait for hostile clients in the sockets' buffers."""
        return sum(one._socket.get_write_buffer_size() for one in self.attackers)

    async def ended(self, client: HostileClient, why: str) -> None:
        """Wait for the end of the only hostile client's connection, and check the reason in the log."""
        await client.until_closed()
        await until(lambda: not self.attackers)
        found = [one.getMessage() for one in self.caplog.records]
        assert any("the connection" in one and re.search(why, one) for one in found), found

    async def alone(self) -> None:
        """Wait until nothing is left of the hostile clients, and check that the honest one is served."""
        await until(lambda: not self.attackers and not self.service.running.total())
        assert len(sessions.OPEN) == 1
        await self.answers()


@asynccontextmanager
async def attacked(
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    *,
    tls: ServerTls | None = None,
    credentials: grpc.ChannelCredentials | None = None,
    **limits: Any,
) -> AsyncIterator[Attacked]:
    """Serve with some limits; at the end nothing is kept, and nothing was worth a warning."""
    monkeypatch.setattr(nghttp2_server, "LOOK_SECONDS", 0.02)
    caplog.set_level(logging.INFO)
    clock, service = Clock(1000.0), Service()
    server = Nghttp2Server(service.methods(), Http2Limits(**limits), clock=clock)
    address = await server.start("127.0.0.1:0", tls)
    found = Attacked(server, service, clock, address, caplog)
    look = Connection.look

    def counted(connection: Connection, now: float) -> None:
        found.looks += 1
        look(connection, now)

    monkeypatch.setattr(Connection, "look", counted)
    try:
        async with asyncio.timeout(4 * SECONDS):
            await found.begin(credentials)
            yield found
            await found.alone()
    finally:
        if found.honest is not None:
            await found.honest.close()
        await server.stop(0.0)
    await until(lambda: not sessions.OPEN)
    assert not found.listener.opening
    assert [one.getMessage() for one in caplog.records if one.levelno > logging.INFO] == []


@pytest.fixture
def attack(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Attack:
    if MISSING:
        pytest.skip(MISSING)
    return partial(attacked, caplog, monkeypatch)
