"""Connections under TLS: who the server is, and who asks; transports, plain and under TLS, that are closed under them."""

import asyncio
import gc
import socket
import ssl
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvloop

from tests.indexer.shared.asked_server import answers, ask, connected
from tests.servers.certificates import Authority
from tests.servers.redis_server import RedisServer
from tests.servers.relay import Relay
from warmpath.indexer.shared.redis import connect as connecting
from warmpath.indexer.shared.redis.command import (
    SLOW_TLS_HINT,
    Command,
    Redis,
    Reply,
    UnreachableError,
)
from warmpath.indexer.shared.redis.connect import RedisSettings, SettingsError, connect
from warmpath.indexer.shared.redis.node import Node


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def relay(redis_server: RedisServer, authority: Authority) -> Iterator[Relay]:
    with Relay(redis_server.port, certificate=authority.certificate("server")) as relay:
        yield relay


@pytest.fixture
def strict_relay(redis_server: RedisServer, authority: Authority) -> Iterator[Relay]:
    certificate = authority.certificate("strict")
    with Relay(redis_server.port, certificate=certificate, clients_of=authority) as relay:
        yield relay


async def ping(url: str, **settings: str) -> Reply:
    async with connected(url, **settings) as redis:
        return await ask(redis, "PING")


async def test_a_server_that_the_authority_vouches_for_is_asked(
    relay: Relay, authority: Authority
) -> None:
    assert await ping(relay.url, ca=str(authority.ca)) == b"PONG"


async def test_a_server_of_another_authority_is_not_asked(relay: Relay, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")
    for ca in (str(other.ca), ""):
        reply = await ping(relay.url, ca=ca)
        assert isinstance(reply, UnreachableError)
        assert "CERTIFICATE_VERIFY_FAILED" in str(reply)


async def test_a_certificate_for_another_host_is_not_taken(
    redis_server: RedisServer, authority: Authority
) -> None:
    for host in ("127.0.0.2", "cache.example"):
        certificate = authority.certificate("elsewhere", host)
        with Relay(redis_server.port, certificate=certificate) as relay:
            reply = await ping(relay.url, ca=str(authority.ca))
        assert isinstance(reply, UnreachableError)
        assert "IP address mismatch" in str(reply)


async def test_who_has_a_client_certificate_is_let_in(
    strict_relay: Relay, authority: Authority
) -> None:
    client, ca = authority.certificate("client"), str(authority.ca)
    files = {"cert": str(client.cert), "key": str(client.key)}
    assert await ping(strict_relay.url, ca=ca, **files) == b"PONG"
    assert isinstance(await ping(strict_relay.url, ca=ca), UnreachableError)


async def test_a_renewed_client_certificate_is_used_for_the_next_connection(
    strict_relay: Relay, authority: Authority, tmp_path: Path
) -> None:
    own, old = tmp_path / "own", Authority(tmp_path, "old").certificate("before")
    own.mkdir()
    cert, key = own / "cert.pem", own / "key.pem"
    cert.write_bytes(old.cert.read_bytes())
    key.write_bytes(old.key.read_bytes())
    files = {"cert": str(cert), "key": str(key)}
    async with connected(strict_relay.url, ca=str(authority.ca), **files) as redis:
        assert isinstance(await ask(redis, "PING"), UnreachableError)
        new = authority.certificate("after")
        cert.write_bytes(new.cert.read_bytes())
        key.write_bytes(new.key.read_bytes())
        await answers(redis, "PING", reply=b"PONG")


async def test_a_key_that_does_not_fit_the_certificate_is_refused_at_once(
    authority: Authority,
) -> None:
    one, other = authority.certificate("one"), authority.certificate("two")
    with pytest.raises(SettingsError, match="ca, cert or key"):
        await connect(RedisSettings("rediss://a", cert=str(one.cert), key=str(other.key)))


async def test_a_plain_server_is_not_asked_under_tls(
    redis_server: RedisServer, authority: Authority
) -> None:
    url = redis_server.url.replace("redis:", "rediss:")
    reply = await ping(url, ca=str(authority.ca))
    assert isinstance(reply, UnreachableError)
    assert str(reply).endswith(f"no connection within 2 s ({SLOW_TLS_HINT})")


@pytest.mark.parametrize("kind", ["rediss", "rediss-cluster", "rediss-sentinel"])
async def test_a_plain_server_is_named_also_by_calls_that_end_before_the_attempt_to_connect(
    redis_server: RedisServer, authority: Authority, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "CONNECT_SECONDS", 1.0)
    url = redis_server.url.replace("redis:", f"{kind}:") + ("/m" if "sentinel" in kind else "")
    told = set()
    async with asyncio.timeout(30), connected(url, ca=str(authority.ca)) as redis:
        # An attempt begins with the first call, and goes on beside the others.
        while not any("within 1 s" in text for text in told):
            reply = await ask(redis, "PING", timeout=0.1)
            assert isinstance(reply, UnreachableError)
            told.add(str(reply))
    assert all(text.endswith(f"({SLOW_TLS_HINT})") for text in told), told


async def test_of_a_server_under_tls_that_is_asked_in_plain_text_it_is_said_that_it_may_be(
    relay: Relay, tmp_path: Path
) -> None:
    url = relay.url.replace("rediss:", "redis:")
    password = tmp_path / "password"
    password.write_text("x")
    for file in ("", str(password)):
        reply = await ping(url, password_file=file)
        assert isinstance(reply, UnreachableError)
        assert str(reply).endswith("(does the server use TLS? then the URL begins with rediss)")


async def test_all_who_share_a_connection_that_is_lost_learn_why(relay: Relay) -> None:
    async with connected(relay.url.replace("rediss:", "redis:")) as redis:
        replies = await asyncio.gather(*(ask(redis, "PING") for _ in range(3)))
    for reply in replies:
        assert str(reply).endswith("(does the server use TLS? then the URL begins with rediss)")


async def test_a_server_that_has_spoken_tls_is_not_said_to_lack_it_when_it_stands_still(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = authority.certificate("server")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate.cert, certificate.key)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer_once() -> None:
            accepted, _ = listener.accept()
            with context.wrap_socket(accepted, server_side=True) as one:
                one.recv(64)
                one.sendall(b"+PONG\r\n")

        url = f"rediss://127.0.0.1:{listener.getsockname()[1]}"
        async with asyncio.timeout(30), connected(url, ca=str(authority.ca)) as redis:
            answering = asyncio.create_task(asyncio.to_thread(answer_once))
            assert await ask(redis, "PING") == b"PONG"
            await answering
            # From now on the kernel takes connections, as it does for a server that stands still.
            monkeypatch.setattr(connecting, "CONNECT_SECONDS", 0.2)
            reply: Reply = None
            while "no connection within 0.2 s" not in str(reply):
                reply = await ask(redis, "PING")
    assert "TLS" not in str(reply)


async def test_a_cut_connection_under_tls_is_made_again(relay: Relay, authority: Authority) -> None:
    async with connected(relay.url, ca=str(authority.ca)) as redis:
        assert await ask(redis, "PING") == b"PONG"
        await asyncio.to_thread(relay.cut)
        await answers(redis, "PING", reply=b"PONG")
        assert redis.disruptions == 3


async def test_a_write_that_is_given_up_under_tls_does_no_harm(
    relay: Relay, authority: Authority
) -> None:
    async with connected(relay.url, ca=str(authority.ca)) as redis:
        assert await ask(redis, "PING") == b"PONG"
        relay.pause()
        reply = await ask(redis, "SET", "b", b"v" * (1 << 25), timeout=0.2)
        assert isinstance(reply, UnreachableError)
        relay.resume()
        await answers(redis, "PING", reply=b"PONG")


@pytest.mark.deep
def test_a_connection_that_is_given_up_under_tls_leaves_no_socket_behind(
    authority: Authority, tmp_path: Path
) -> None:
    password = tmp_path / "password"
    password.write_text("wrong")
    certificate = authority.certificate("server")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate.cert, certificate.key)
    is_over = threading.Event()

    def refuse_and_stand_still(listener: socket.socket) -> None:
        accepted, _ = listener.accept()
        with context.wrap_socket(accepted, server_side=True) as served:
            served.recv(1000)
            served.sendall(b"-WRONGPASS no\r\n")
            is_over.wait()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=refuse_and_stand_still, args=(listener,))
        server.start()
        url = f"rediss://127.0.0.1:{listener.getsockname()[1]}"
        files = {"ca": str(authority.ca), "password_file": str(password)}
        with warnings.catch_warnings(record=True) as left:
            warnings.simplefilter("always")
            reply = asyncio.run(ping(url, **files))
            gc.collect()
        is_over.set()
        server.join()
    assert isinstance(reply, UnreachableError)
    assert not [str(one.message) for one in left]


LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


class Stand:
    """A client of a server behind a relay."""

    def __init__(self, redis: Redis, relay: Relay) -> None:
        self.redis = redis
        self.relay = relay

    async def ask(self, size: int = 1) -> bytes | None:
        """Return what the server echoes; None where the client says that the server was not reached."""
        word = b"x" * size
        [reply] = await self.redis.run([Command(("ECHO", word))], timeout=0.3)
        assert reply == word or isinstance(reply, UnreachableError), reply
        return None if isinstance(reply, UnreachableError) else word

    @property
    def transport(self) -> asyncio.WriteTransport:
        """The transport of the open connection."""
        node: Node = self.redis.topology._node  # type: ignore[attr-defined]
        assert node._link is not None
        transport: asyncio.WriteTransport = node._link._wire.transport  # type: ignore[attr-defined]
        return transport

    async def answers(self) -> None:
        async with asyncio.timeout(30):
            while not await self.ask():
                pass


@pytest.fixture(params=["plain", "tls"])
def place(
    request: pytest.FixtureRequest, redis_server: RedisServer, tmp_path: Path
) -> Iterator[tuple[Relay, RedisSettings]]:
    authority = Authority(tmp_path)
    certificate = authority.certificate("server") if request.param == "tls" else None
    with Relay(redis_server.port, certificate=certificate) as relay:
        yield relay, RedisSettings(relay.url, ca=str(authority.ca) if certificate else "")


@pytest.mark.parametrize("turns", [0, 1, 5])
@pytest.mark.parametrize("is_waited_for", [False, True], ids=["idle", "waiting"])
@pytest.mark.parametrize(
    "close", [asyncio.WriteTransport.close, asyncio.WriteTransport.abort], ids=["closed", "aborted"]
)
@pytest.mark.parametrize("loop", LOOPS)
def test_whoever_asks_over_a_closed_transport_hears_that_nobody_was_reached(
    place: tuple[Relay, RedisSettings],
    loop: str,
    close: Callable[[asyncio.WriteTransport], None],
    turns: int,
    is_waited_for: bool,
) -> None:
    relay, settings = place

    async def go() -> None:
        redis = await connect(settings)
        try:
            await meet(Stand(redis, relay))
        finally:
            await redis.close()

    async def meet(stand: Stand) -> None:
        await stand.answers()
        asked = []
        if is_waited_for:
            stand.relay.pause()
            asked += [asyncio.create_task(stand.ask(size)) for size in (1, 1 << 22)]
            await asyncio.sleep(0)
        getattr(stand.transport, close.__name__)()
        for _ in range(turns):
            await asyncio.sleep(0)
        asked += [asyncio.create_task(stand.ask(size)) for size in (1, 1 << 22, 1)]
        await asyncio.gather(*asked)
        stand.relay.resume()
        await stand.answers()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(go())
