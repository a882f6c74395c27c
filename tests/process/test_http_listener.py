"""HTTP pages stay within reach of whoever asks whole questions, whatever others leave open."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from tests.process.tls_stand import connected, is_gone
from warmpath.process.address import is_loopback
from warmpath.process.http_listener import foreign, http_listener

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


@pytest.fixture
async def hurried() -> AsyncIterator[str]:
    listener = http_listener(pages(), "127.0.0.1:0", named="here", seconds=0.2)
    async with listener as address:
        yield address


@pytest.mark.parametrize(
    "said", [b"", b"GET /small HT", b"GET /small HTTP/1.1\r\nHost: localhost\r\nX-Slow: 1\r\n"]
)
async def test_a_connection_whose_request_never_ends_is_closed(hurried: str, said: bytes) -> None:
    reader, writer = await connected(hurried)
    writer.write(said)
    assert await is_gone(reader)
    writer.close()


async def test_a_request_that_comes_byte_by_byte_has_no_more_time_than_another(
    hurried: str,
) -> None:
    _, writer = await connected(hurried)
    await _until_it_fails(writer, b"G")


async def _until_it_fails(writer: asyncio.StreamWriter, said: bytes) -> None:
    with pytest.raises(ConnectionError):  # noqa: PT012
        while True:
            writer.write(said)
            await writer.drain()
            await asyncio.sleep(0.01)


async def test_a_connection_that_has_its_answer_is_closed(hurried: str) -> None:
    for path, status in (("small", b"200"), ("none", b"404")):
        reader, writer = await connected(hurried)
        writer.write(f"GET /{path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        answer = await reader.read()
        assert status in answer
        assert b"Connection: close" in answer
        writer.close()


async def test_an_answer_that_is_not_read_is_given_up(hurried: str) -> None:
    _, writer = await connected(hurried)
    writer.write(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
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
            assert await is_gone(reader)
        for _, writer in silent:
            writer.close()


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


async def test_whoever_holds_most_connections_gives_way_and_others_keep_theirs() -> None:
    listener = http_listener(pages(), "127.0.0.1:0", named="here", most=8, seconds=600)
    async with listener as address:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), local_addr=("127.0.0.2", 0))
        writer.write(b"GET /small HTTP/1.1\r\nHost: localhost\r\n")
        crowd = [await connected(address) for _ in range(40)]
        for one, _ in crowd[:30]:
            assert await is_gone(one)
        writer.write(b"\r\n")
        assert b"200" in await reader.read()
        for _, each in (*crowd, (reader, writer)):
            each.close()


async def test_the_work_for_a_client_that_leaves_is_cancelled() -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def endless(_: web.Request) -> web.Response:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    app = web.Application()
    app.router.add_get("/endless", endless)
    async with http_listener(app, "127.0.0.1:0", named="here", seconds=600) as address:
        _, writer = await connected(address)
        writer.write(b"GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await begun.wait()
        writer.close()
        await cancelled.wait()


OWN = "127.0.0.1:7401"


@pytest.mark.parametrize(
    ("hosts", "origins", "why"),
    [
        ([OWN], [], ""),
        (["localhost"], [], ""),
        (["LOCALHOST.:1"], [], ""),
        (["[::1]:7401"], [], ""),
        (["[::1]"], [], ""),
        ([], [], ""),
        ([OWN], [f"http://{OWN}"], ""),
        (["localhost:1"], ["http://LocalHost:1"], ""),
        (["evil.example:7401"], [], "Host"),
        (["evil.example"], ["http://evil.example"], "Host"),
        (["127.0.0.1.evil.example:7401"], [], "Host"),
        (["localhost.evil.example"], [], "Host"),
        (["10.0.0.1:7401"], [], "Host"),
        ([""], [], "Host"),
        ([OWN, "evil.example"], [], "Host"),
        ([OWN], ["http://evil.example"], "Origin"),
        ([OWN], ["null"], "Origin"),
        ([OWN], ["http://127.0.0.1:8000"], "Origin"),
        ([OWN], [f"http://{OWN}", "http://evil.example"], "Origin"),
        ([], ["http://evil.example"], "Origin"),
    ],
)
def test_a_page_of_another_site_shows_in_host_or_origin(
    hosts: list[str], origins: list[str], why: str
) -> None:
    assert foreign(hosts, origins).split(" ")[0] == why


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Origin": "http://evil.example"}])
async def test_only_a_loopback_listener_refuses_pages_of_other_sites(
    headers: dict[str, str],
) -> None:
    for listen, status in (("127.0.0.1:0", 403), ("[::1]:0", 403), ("0.0.0.0:0", 200)):
        async with (
            http_listener(pages(), listen, named="here") as address,
            aiohttp.ClientSession() as http,
            http.get(f"http://{address}/small", headers=headers) as answer,
        ):
            assert answer.status == status
