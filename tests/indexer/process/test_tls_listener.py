"""HTTPS whose certificates change, and whoever connects to keep others out; on both event loops."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from indexer.process.listen import http_listener
from tests.indexer.process.tls_stand import Stand, ask, calling, loops, page, run


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    return Stand(tmp_path)


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
