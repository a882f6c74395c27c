"""HTTPS whose certificates change, and whoever connects to keep others out; on both event loops."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.process.tls_stand import Stand, ask, calling, connected, is_gone, loops
from tests.waiting import until
from warmpath.process.listener import Listener, Place, Places, State
from warmpath.process.logs import BURST, LogLimit
from warmpath.process.tls import ClientTls, TlsPaths


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    return Stand(tmp_path)


@loops
async def test_https_shows_the_newest_certificate_and_knows_the_newest_authority(
    stand: Stand,
) -> None:
    tls = stand.server()
    old = calling(stand.old, stand.old.certificate("old-caller"))
    new = calling(stand.new, stand.new.certificate("new-caller"))
    mixed = calling(stand.new, stand.old.certificate("late-caller"))
    async with stand.https(tls) as address:
        assert await ask(address, old) == "old-caller"
        assert await ask(address, calling(stand.old)) == ""
        assert await ask(address, new) == "ClientConnectorCertificateError"
        stand.rotate()
        tls.files.look()
        assert await ask(address, old) == "ClientConnectorCertificateError"
        assert await ask(address, new) == "new-caller"
        assert "Error" in await ask(address, mixed)


@loops
async def test_an_open_https_connection_outlives_the_change(stand: Stand) -> None:
    tls = stand.server()
    async with stand.https(tls) as address:
        reader, writer = await connected(address, ssl=calling(stand.old).context)
        writer.write(b"GET /who HTTP/1.1\r\n")
        stand.rotate()
        tls.files.look()
        writer.write(b"Host: localhost\r\n\r\n")
        assert b"200 OK" in await reader.readline()
        writer.close()


@loops
async def test_handshakes_that_never_end_keep_nobody_out(stand: Stand) -> None:
    async with stand.https(most=8, seconds=600) as address:
        silent = [await connected(address) for _ in range(40)]
        assert await ask(address, calling(stand.old)) == ""
        for reader, _ in silent[:20]:
            assert await is_gone(reader)
        for _, writer in silent:
            writer.close()


@pytest.mark.parametrize("encrypts", [True, False])
@loops
async def test_a_connection_that_asks_nothing_is_closed(encrypts: bool, stand: Stand) -> None:
    async with stand.https(seconds=0.2 if not encrypts else 1.0) as address:
        reader, writer = await connected(
            address, ssl=calling(stand.old).context if encrypts else None
        )
        assert await is_gone(reader)
        writer.close()


@loops
async def test_what_is_no_tls_is_closed_and_the_log_says_whose_connection_it_was(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with stand.https() as address:
        reader, writer = await connected(address)
        own = "{}:{}".format(*writer.get_extra_info("sockname"))
        writer.write(b"GET /who HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            assert b"HTTP" not in await reader.read()
        writer.close()
    (said,) = caplog.records
    assert said.levelname == "INFO"
    assert said.getMessage().startswith(f"{own}: the connection was not opened: ")
    assert "HTTP_REQUEST" in said.getMessage()


@loops
async def test_the_log_says_whose_certificate_is_not_accepted_and_who_left(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async with stand.https() as address:
        stranger = stand.new.certificate("stranger")
        mixed = ClientTls("calls", TlsPaths(stand.old.ca, stranger.cert, stranger.key))
        assert "Error" in await ask(address, mixed)
        _, writer = await connected(address)
        writer.close()
        left = "the connection was not opened: the client left in the TLS handshake"
        await until(lambda: caplog.messages[-1].endswith(left))
    assert "the connection was not opened: [SSL: CERTIFICATE_VERIFY_FAILED]" in caplog.messages[0]


class Kept(asyncio.Protocol):
    """A connection that is kept."""

    def __init__(self, kept: list["Kept"], place: Place) -> None:
        self.kept = kept
        self.place = place
        self.transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.place.becomes(State.BUSY)
        self.kept.append(self)
        self.transport = transport


@asynccontextmanager
async def listening(
    address: str, most: int, **options: Any
) -> AsyncIterator[tuple[str, list[Kept], Listener]]:
    kept: list[Kept] = []
    listener = Listener(partial(Kept, kept), places=Places(most), seconds=60, **options)
    try:
        yield await listener.start(address), kept, listener
    finally:
        await listener.stop()
        for one in kept:
            assert one.transport is not None
            one.transport.close()


@loops
async def test_a_connection_for_which_there_is_no_room_is_closed_at_once() -> None:
    closed: list[str] = []
    async with listening("127.0.0.1:0", 2, full=closed.append) as (address, kept, _):
        writers = []
        for number in (1, 2):
            writers.append((await connected(address))[1])
            await until(lambda number=number: len(kept) == number)
        reader, writer = await connected(address)
        assert await reader.read() == b""
        assert len(kept) == 2
        own, own_port = writer.get_extra_info("sockname")
        assert closed == [f"{own}:{own_port}"]
        for one in (*writers, writer):
            one.close()


@loops
async def test_one_port_serves_every_address_of_a_host_and_a_path_serves_too(
    tmp_path: Path,
) -> None:
    async with listening(":0", 9) as (address, kept, _):
        port = int(address.removeprefix(":"))
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        await until(lambda: len(kept) == 1)
        writer.close()
    path = tmp_path / "socket"
    for _ in range(2):  # The second takes the place of the socket that the first left.
        async with listening(f"unix:{path}", 9) as (address, kept, _):
            assert address == f"unix:{path}"
            _, writer = await asyncio.open_unix_connection(path)
            await until(lambda kept=kept: len(kept) == 1)
            writer.close()


@loops
async def test_it_goes_on_after_there_were_no_descriptors(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warmpath.process.listener.PAUSE", 0.01)
    async with listening("127.0.0.1:0", 9) as (address, kept, listener):
        failures = iter([OSError(24, "Too many open files")] * 3)
        (real,) = listener._sockets

        class Failing:
            def accept(self) -> object:
                for error in failures:
                    raise error
                return real.accept()

            def fileno(self) -> int:
                return real.fileno()

        failing: Any = Failing()
        asyncio.get_running_loop().remove_reader(real)
        listener._listen(failing)
        _, writer = await connected(address)
        await until(lambda: kept)
        writer.close()
    said = {record.getMessage() for record in caplog.records}
    assert said == {"cannot accept a connection: [Errno 24] Too many open files"}


@loops
async def test_what_is_opening_when_the_listener_stops_is_closed(stand: Stand) -> None:
    tls = stand.server()
    async with listening("127.0.0.1:0", 9, tls=tls.http_context) as (address, kept, listener):
        ends = [await connected(address) for _ in range(3)]
        await until(lambda: listener.opening == 3)
    assert not kept
    assert not listener.opening
    for reader, writer in ends:
        assert await is_gone(reader)
        writer.close()


class Ending(asyncio.Protocol):
    """A connection whose opening stops the listener, as where a process ends at that moment."""

    def __init__(self, stop: Callable[[], Any]) -> None:
        self.stop = stop
        self.stopping: asyncio.Future[None] | None = None
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.stopping = asyncio.ensure_future(self.stop())

    def connection_lost(self, _: Exception | None) -> None:
        self.is_lost = True


@loops
async def test_a_connection_that_opens_while_the_listener_stops_hears_of_its_end() -> None:
    made: list[Ending] = []

    def make(_: Place) -> Ending:
        made.append(Ending(listener.stop))
        return made[-1]

    listener = Listener(make, places=Places(9), seconds=60)
    reader, writer = await connected(await listener.start("127.0.0.1:0"))
    await until(lambda: made and made[0].stopping)
    assert made[0].stopping is not None
    await made[0].stopping
    if not made[0].transport.is_closing():
        made[0].transport.write(b"the last words")
        made[0].transport.close()
    assert await reader.read() in (b"", b"the last words")
    await until(lambda: made[0].is_lost)
    writer.close()


@loops
async def test_silent_connections_of_one_address_write_few_lines(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    caplog.handler.addFilter(limit := LogLimit(lambda: 0.0))
    try:
        async with stand.https() as address:
            for _ in range(3 * BURST):
                reader, writer = await connected(address)
                writer.write(b"no TLS, and long enough to be read as a record of it")
                with contextlib.suppress(ConnectionError):
                    await reader.read()
                writer.close()
    finally:
        caplog.handler.removeFilter(limit)
    assert len(caplog.records) == BURST
