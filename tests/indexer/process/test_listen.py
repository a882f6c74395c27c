"""HTTP pages stay within reach of whoever asks whole questions, whatever others leave open."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from indexer.process.listen import http_listener, is_loopback

PAGE = b"x" * (8 << 20)


def pages() -> web.Application:
    async def small(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def large(_: web.Request) -> web.Response:
        return web.Response(body=PAGE)

    app = web.Application()
    app.router.add_get("/small", small)
    app.router.add_get("/large", large)
    return app


async def connected(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port), limit=1 << 10)


@pytest.fixture
async def hurried() -> AsyncIterator[str]:
    listener = http_listener(pages(), "127.0.0.1:0", named="here", seconds=0.2)
    async with listener as address:
        yield address


@pytest.mark.parametrize(
    "said", [b"", b"GET /small HT", b"GET /small HTTP/1.1\r\nHost: a\r\nX-Slow: 1\r\n"]
)
async def test_a_connection_whose_request_never_ends_is_closed(hurried: str, said: bytes) -> None:
    reader, writer = await connected(hurried)
    writer.write(said)
    assert await _is_gone(reader)
    writer.close()


async def test_a_request_that_comes_byte_by_byte_has_no_more_time_than_another(
    hurried: str,
) -> None:
    _, writer = await connected(hurried)
    await _until_it_fails(writer, b"G")


async def _until_it_fails(writer: asyncio.StreamWriter, said: bytes) -> None:
    with pytest.raises(ConnectionError):
        await _say(writer, said)


async def _say(writer: asyncio.StreamWriter, said: bytes) -> None:
    while True:
        writer.write(said)
        await writer.drain()
        await asyncio.sleep(0.01)


async def test_a_connection_that_has_its_answer_is_closed(hurried: str) -> None:
    for path, status in (("small", b"200"), ("none", b"404")):
        reader, writer = await connected(hurried)
        writer.write(f"GET /{path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        answer = await reader.read()
        assert status in answer
        assert b"Connection: close" in answer
        writer.close()


async def test_an_answer_that_is_not_read_is_given_up(hurried: str) -> None:
    _, writer = await connected(hurried)
    writer.write(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
    await _until_it_fails(writer, b"G")


async def test_whoever_asks_gets_an_answer_beside_many_who_only_connect() -> None:
    listener = http_listener(pages(), "127.0.0.1:0", named="here", most=8, seconds=600)
    async with listener as address, aiohttp.ClientSession() as http:
        silent = []
        for _ in range(40):
            silent.append(await connected(address))
            silent[-1][1].write(b"GET /small HTTP/1.1\r\n")
        async with http.get(f"http://{address}/small") as answer:
            assert await answer.text() == "ok"
        # The oldest are gone, which their ends learn.
        for reader, _ in silent[:20]:
            assert await _is_gone(reader)
        for _, writer in silent:
            writer.close()


async def _is_gone(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


async def test_an_address_that_is_taken_is_named() -> None:
    async with http_listener(pages(), "127.0.0.1:0", named="here") as address:
        with pytest.raises(OSError, match=f"here: cannot bind {address}"):
            async with http_listener(pages(), address, named="here"):
                pass


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
