"""The connection to an engine: the answers that it reads, and those that it refuses."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from warmpath.router.pods.connection import AnswerError, Connection, CutError, UnreachableError

MOST = 9
SHORT = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Engine:
    """Sends `answer` for each request, and counts connections."""

    def __init__(self, answer: bytes, *, closes: bool = False) -> None:
        self.answer, self.closes = answer, closes
        self.connections = 0
        self.requests: list[bytes] = []
        self.tasks: list[asyncio.Task[None] | None] = []

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.tasks.append(asyncio.current_task())
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                self.requests.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(self.answer)
                await writer.drain()
                if self.closes:
                    break
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            async with server:
                yield f"localhost:{server.sockets[0].getsockname()[1]}"
        finally:
            await asyncio.gather(*filter(None, self.tasks))


async def got(engine: Engine, times: int = 1, seconds: float = 60.0) -> tuple[int, bytes]:
    async with engine.serving() as address:
        with contextlib.closing(Connection()) as connection:
            for _ in range(times):
                answer = await ask(connection, address, seconds)
    return answer


async def ask(connection: Connection, address: str, seconds: float = 60.0) -> tuple[int, bytes]:
    key = {"Authorization": "Bearer k"}
    return await connection.get(address, "/x", key, tls=None, seconds=seconds, most=MOST)


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (SHORT, b"ok"),
        (b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + SHORT, b"ok"),
        (b"HTTP/1.1 200\r\ntransfer-encoding: Chunked\r\n\r\n2;x=y\r\nok\r\nA\r\n", b""),
        (
            b"HTTP/1.1 200 \r\nTransfer-Encoding:chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\nx: y\r\n\r\n",
            b"ok",
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123456789", b""),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\n0123456789", b""),
    ],
)
async def test_bodies_of_all_forms_are_read_up_to_the_longest(answer: bytes, body: bytes) -> None:
    if body == b"" and b"hunked" in answer:
        answer += b"0123456789\r\n0\r\n\r\n"
    assert await got(Engine(answer), times=3) == (200, body)


async def test_a_body_may_end_with_its_connection() -> None:
    engine = Engine(b"HTTP/1.0 404 Not Found\r\n\r\nlost", closes=True)
    assert await got(engine, times=2) == (404, b"lost")
    assert engine.connections == 2


async def test_requests_share_a_connection_and_say_whom_they_ask_and_who_asks() -> None:
    engine = Engine(SHORT)
    await got(engine, times=3)
    assert (engine.connections, len({*engine.requests})) == (1, 1)
    first, host, _, key = engine.requests[0].decode().strip().split("\r\n")
    assert (first, key) == ("GET /x HTTP/1.1", "Authorization: Bearer k")
    assert host.startswith("Host: localhost:")


async def test_an_engine_that_ends_each_connection_after_an_answer_is_asked_over_new_ones() -> None:
    engine = Engine(SHORT, closes=True)
    await got(engine, times=3)
    assert engine.connections == 3


@pytest.mark.parametrize(
    "answer",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nno\r\n",
        b"x" * (1 << 18),
    ],
)
async def test_an_answer_that_is_no_http_is_an_error_of_its_own(answer: bytes) -> None:
    with pytest.raises(AnswerError):
        await got(Engine(answer))


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\n", SHORT[:-1]])
async def test_a_connection_that_ends_before_an_answer_is_whole_is_cut(answer: bytes) -> None:
    with pytest.raises(CutError):
        await got(Engine(answer, closes=True))


async def test_an_answer_that_does_not_end_in_time_is_late() -> None:
    with pytest.raises(TimeoutError):
        await got(Engine(SHORT[:-1]), seconds=0.05)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_where_nobody_listens_an_error_names_the_address(held_port: int, host: str) -> None:
    with pytest.raises(UnreachableError, match=f"cannot connect to {host}:{held_port}: ") as error:
        await ask(Connection(), f"{host}:{held_port}")
    assert isinstance(error.value.reason, ConnectionRefusedError)


@pytest.mark.parametrize("address", ["", "x", ":", "[::1]:no", "a..b:1", "127.0.0.1:99999"])
async def test_an_address_that_is_none_cannot_be_reached(address: str) -> None:
    with pytest.raises(UnreachableError):
        await ask(Connection(), address)
