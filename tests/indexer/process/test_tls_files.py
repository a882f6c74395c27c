"""TLS whose files change: what the next connection sees, and who is let in."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
import pytest
import uvloop
from aiohttp import web

from indexer.process.grpc_tls import channel_credentials, server_credentials
from indexer.process.listen import http_listener, is_loopback
from indexer.process.tls_files import ClientTls, ServerTls, TlsFilesError, TlsPaths
from tests.servers.certificates import Authority, Certificate


def paths(certificate: Certificate, authority: Authority | None = None) -> TlsPaths:
    return TlsPaths(authority.ca if authority else None, certificate.cert, certificate.key)


def calling(authority: Authority, certificate: Certificate | None = None) -> ClientTls:
    shown = certificate or Certificate(Path(), Path())
    given = (shown.cert, shown.key) if certificate else (None, None)
    return ClientTls("calls", TlsPaths(authority.ca, *given))


class Stand:
    """Two authorities; a listener's files, which can be replaced."""

    def __init__(self, folder: Path) -> None:
        self.old, self.new = Authority(folder, "old"), Authority(folder, "new")
        self.files = self.old.certificate("server").copy("current")
        self.ca = folder / "callers.pem"
        self.ca.write_bytes(self.old.ca.read_bytes())

    def server(self) -> ServerTls:
        given = TlsPaths(self.ca, self.files.cert, self.files.key)
        return ServerTls("listener", given, http_optional=True)

    def rotate(self) -> None:
        self.files.replace(self.new.certificate("server-2"))
        self.ca.write_bytes(self.new.ca.read_bytes())


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    return Stand(tmp_path)


async def who(request: web.Request) -> web.Response:
    assert request.transport is not None
    shown = request.transport.get_extra_info("peercert")
    return web.Response(
        text=dict(part[0] for part in shown["subject"])["commonName"] if shown else ""
    )


def page() -> web.Application:
    app = web.Application()
    app.router.add_get("/who", who)
    return app


async def ask(address: str, tls: ClientTls) -> str:
    """Return the name that the server saw, or the kind of error."""
    try:
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"https://{address}/who", ssl=tls.context) as answer,
        ):
            return await answer.text()
    except (aiohttp.ClientError, ConnectionError) as error:
        return type(error).__name__


def run(loop: str, work: Coroutine[Any, Any, None]) -> None:
    factory = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(work)


loops = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])


@loops
def test_https_shows_the_newest_certificate_and_knows_the_newest_authority(
    loop: str, stand: Stand
) -> None:
    async def work() -> None:
        tls = stand.server()
        old = calling(stand.old, stand.old.certificate("old-caller"))
        new = calling(stand.new, stand.new.certificate("new-caller"))
        mixed = calling(stand.new, stand.old.certificate("late-caller"))
        async with http_listener(
            page(), "127.0.0.1:0", named="here", tls=tls.http_context
        ) as address:
            assert await ask(address, old) == "old-caller"
            assert await ask(address, calling(stand.old)) == ""
            assert await ask(address, new) == "ClientConnectorCertificateError"
            stand.rotate()
            tls.files.look()
            assert await ask(address, old) == "ClientConnectorCertificateError"
            assert await ask(address, new) == "new-caller"
            assert "Error" in await ask(address, mixed)

    run(loop, work())


@loops
def test_an_open_https_connection_outlives_the_change(loop: str, stand: Stand) -> None:
    async def work() -> None:
        tls = stand.server()
        async with http_listener(
            page(), "127.0.0.1:0", named="here", tls=tls.http_context
        ) as address:
            host, port = address.split(":")
            reader, writer = await asyncio.open_connection(
                host, int(port), ssl=calling(stand.old).context
            )
            writer.write(b"GET /who HTTP/1.1\r\n")
            stand.rotate()
            tls.files.look()
            writer.write(b"Host: a\r\n\r\n")
            assert b"200 OK" in await reader.readline()
            writer.close()

    run(loop, work())


@loops
def test_handshakes_that_never_end_keep_nobody_out(loop: str, stand: Stand) -> None:
    async def work() -> None:
        tls = stand.server()
        listener = http_listener(
            page(), "127.0.0.1:0", named="here", tls=tls.http_context, most=8, seconds=600
        )
        async with listener as address:
            host, port = address.split(":")
            silent = [await asyncio.open_connection(host, int(port)) for _ in range(40)]
            assert await ask(address, calling(stand.old)) == ""
            for reader, _ in silent[:20]:
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
            for _, writer in silent:
                writer.close()

    run(loop, work())


@loops
@pytest.mark.parametrize("encrypts", [True, False])
def test_a_connection_that_asks_nothing_is_closed(loop: str, encrypts: bool, stand: Stand) -> None:
    async def work() -> None:
        tls = stand.server()
        listener = http_listener(
            page(),
            "127.0.0.1:0",
            named="here",
            tls=tls.http_context,
            seconds=0.2 if not encrypts else 1.0,
        )
        async with listener as address:
            host, port = address.split(":")
            reader, writer = await asyncio.open_connection(
                host, int(port), ssl=calling(stand.old).context if encrypts else None
            )
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()

    run(loop, work())


@loops
def test_what_is_no_tls_is_closed_without_a_word_in_the_log(
    loop: str, stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        tls = stand.server()
        async with http_listener(
            page(), "127.0.0.1:0", named="here", tls=tls.http_context
        ) as address:
            host, port = address.split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET /who HTTP/1.1\r\nHost: a\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                assert b"HTTP" not in await reader.read()
            writer.close()

    run(loop, work())
    assert not caplog.records


@loops
def test_a_session_of_an_authority_that_has_gone_opens_nothing(loop: str, stand: Stand) -> None:
    """OpenSSL itself would let whoever has a session in for two hours."""

    async def resumed(session_file: Path, address: str, option: str) -> bool:
        caller = stand.old.certificate("resuming")
        command = (
            "openssl", "s_client", "-tls1_2", "-connect", address, "-cert", str(caller.cert),
            "-key", str(caller.key), option, str(session_file),
        )  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate(b"")
        return b"Reused, TLSv1.2" in said

    async def work() -> None:
        tls = stand.server()
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=tls.grpc_context)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        session_file = stand.ca.with_name("session")
        assert not await resumed(session_file, address, "-sess_out")
        assert await resumed(session_file, address, "-sess_in")
        stand.rotate()
        tls.files.look()
        assert not await resumed(session_file, address, "-sess_in")
        server.close()

    run(loop, work())


async def test_old_versions_of_tls_are_refused(stand: Stand) -> None:
    tls = stand.server()
    for context in (tls.files.value.grpc, tls.files.value.http):
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2


@contextlib.asynccontextmanager
async def grpc_server(tls: ServerTls) -> AsyncIterator[str]:
    server = grpc.aio.server()

    async def echo(requests: AsyncIterator[bytes], _: object) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request

    handlers = {"Echo": grpc.stream_stream_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("it", handlers),))
    port = server.add_secure_port("127.0.0.1:0", server_credentials(tls))
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def echoed(address: str, tls: ClientTls) -> bool:
    credentials = channel_credentials(tls)()
    async with grpc.aio.secure_channel(address, credentials) as channel:
        call = channel.stream_stream("/it/Echo")()
        try:
            await call.write(b"x")
            return bool(await call.read() == b"x")
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return False


async def test_grpc_takes_the_newest_files_and_drops_no_stream(stand: Stand) -> None:
    tls = stand.server()
    old = calling(stand.old, stand.old.certificate("caller"))
    new = calling(stand.new, stand.new.certificate("caller-2"))
    async with grpc_server(tls) as address:
        credentials = channel_credentials(old)()
        async with grpc.aio.secure_channel(address, credentials) as channel:
            stream = channel.stream_stream("/it/Echo")()
            await stream.write(b"1")
            assert await stream.read() == b"1"
            assert not await echoed(address, calling(stand.old))
            assert not await echoed(address, new)
            stand.rotate()
            tls.files.look()
            assert await echoed(address, new)
            assert not await echoed(address, old)
            await stream.write(b"2")
            assert await stream.read() == b"2"
            stream.cancel()


def test_a_channel_has_new_credentials_once_files_have_changed(stand: Stand) -> None:
    mine = stand.old.certificate("caller").copy("mine")
    tls = calling(stand.old, mine)
    newest = channel_credentials(tls)
    before = newest()
    tls.files.look()
    assert newest() is before
    mine.replace(stand.old.certificate("caller-2"))
    tls.files.look()
    assert newest() is not before


def test_files_that_do_not_fit_are_named_and_replace_nothing(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    tls = stand.server()
    before = tls.pem
    stand.files.key.write_bytes(stand.old.certificate("other").key.read_bytes())
    for _ in range(3):
        tls.files.look()
    assert tls.pem is before
    (record,) = caplog.records
    assert (
        f"listener: {stand.files.cert} with {stand.files.key} cannot be used" in record.getMessage()
    )
    assert "PRIVATE" not in caplog.text
    with pytest.raises(TlsFilesError) as refused:
        stand.server()
    assert refused.value.part == "cert"
    stand.ca.write_text("no certificate")
    with pytest.raises(TlsFilesError) as refused:
        stand.server()
    assert refused.value.part == "ca"
    stand.ca.unlink()
    with pytest.raises(TlsFilesError, match="there is no file"):
        stand.server()


def test_a_private_key_is_in_no_text_about_the_files(stand: Stand) -> None:
    assert "PRIVATE" not in repr(stand.server().pem)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:1", True),
        ("127.9.9.9:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("unix:/run/it", True),
        (":1", False),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("10.0.0.1:1", False),
        ("router.example:1", False),
        ("localhost.example:1", False),
        ("[::ffff:10.0.0.1]:1", False),
    ],
)
def test_only_addresses_of_this_machine_are_loopback(address: str, expected: bool) -> None:
    assert is_loopback(address) == expected
