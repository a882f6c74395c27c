"""Connections that say nothing, something else, or too little; and too many of them."""

import ssl
from pathlib import Path

import grpc
import pytest

from tests.h2grpc.http2 import raw_frames as raw
from tests.h2grpc.http2.attacked import Attack
from tests.servers.certificates import Authority
from tests.waiting import until
from warmpath.process.logs import BURST, LogLimit

HTTP_1 = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"


class Tls:
    """A server's certificate, and what its clients trust."""

    def __init__(self, folder: Path) -> None:
        authority = Authority(folder)
        certificate = authority.certificate("server", "localhost")
        self.grpc_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.grpc_context.load_cert_chain(certificate.cert, certificate.key)
        self.grpc_context.set_alpn_protocols(["h2"])
        caller = grpc.ssl_channel_credentials(authority.ca.read_bytes())
        self.client = ssl.create_default_context(cafile=str(authority.ca))
        self.client.set_alpn_protocols(["h2"])
        self.served = {"tls": self, "credentials": caller}


@pytest.fixture
def tls(tmp_path: Path) -> Tls:
    return Tls(tmp_path)


@pytest.mark.parametrize(
    "said", [b"", b"P", raw.PREFACE[:-1], raw.PREFACE, raw.PREFACE + raw.settings()[:-1]]
)
async def test_a_client_without_a_whole_preface_is_cut_off_in_time(
    said: bytes, attack: Attack
) -> None:
    async with (
        attack(handshake_seconds=10) as server,
        server.client(preface=said, acks=False) as client,
    ):
        await client.frame(raw.SETTINGS)
        await server.pass_time(9)
        assert not client.is_closed
        await server.pass_time(2)
        await server.ended(client, "no HTTP/2 preface within 10 s")


async def test_connections_of_one_address_that_are_cut_off_write_few_lines(
    caplog: pytest.LogCaptureFixture, attack: Attack
) -> None:
    limit = LogLimit(lambda: 0.0)
    async with attack() as server:
        for _ in range(2 * BURST):
            async with server.client(preface=HTTP_1) as client:
                await client.until_closed()
    assert sum(map(limit.filter, caplog.records)) == BURST


@pytest.mark.parametrize(
    "said",
    [HTTP_1, raw.settings(), b"\x16\x03\x01" + bytes(200), raw.PREFACE + raw.call(1, "Echo", b"x")],
)
async def test_a_client_of_another_protocol_is_cut_off_at_once(said: bytes, attack: Attack) -> None:
    async with attack() as server, server.client(preface=said) as client:
        await client.until_closed()
        assert not server.service.running.total()


async def test_busy_connections_leave_no_place_to_one_more_of_their_address(attack: Attack) -> None:
    async with attack(connections=4) as server:
        assert server.honest is not None
        held = server.honest.unary_unary("/t.T/Hold")(b"x")
        clients = [server.client() for _ in range(3)]
        for number, client in enumerate(clients):
            await client.__aenter__()
            client.send(raw.call(1, "Hold", b"x"))
            await until(lambda n=number: server.service.running["Hold"] == n + 2)
        async with server.client() as late:
            await late.until_closed()
            assert late.frames == []
        await server.answers()
        assert len(server.server._server._connections) == 4
        for client in clients:
            await client.__aexit__()
        await until(lambda: len(server.server._server._connections) == 1)
        async with server.client() as again:
            await again.frame(raw.SETTINGS)
        held.cancel()


async def test_idle_connections_of_one_address_keep_no_other_out(attack: Attack) -> None:
    async with attack(connections=8) as server:
        many = [server.client(source="127.0.0.2") for _ in range(30)]
        for number, client in enumerate(many):
            await client.__aenter__()
            # Pings and calls without a message are no work.
            client.send(raw.frame(raw.PING, 0, 0, bytes(8)), raw.headers(1, raw.fields("Each")))
            await client.frame(raw.SETTINGS)
            await server.answers(100)
            others = [server.client(source=f"127.0.0.{3 + number % 3}") for _ in range(2)]
            for other in others:
                async with other:
                    other.send(raw.call(1, "Echo", b"x"))
                    assert (await other.frame(raw.DATA, 1)).payload == raw.message(b"x")
        for client in many[:10]:
            await client.until_closed()
        for client in many:
            await client.__aexit__()


@pytest.mark.deep
@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01\x02\x00"])
async def test_tls_handshakes_that_stall_count_as_connections_and_are_cut_off(
    said: bytes, tls: Tls, attack: Attack
) -> None:
    async with (
        attack(**tls.served, connections=3, handshake_seconds=2.0) as server,
        server.client(preface=said) as one,
        server.client(preface=said) as two,
    ):
        await until(lambda: server.listener.opening == 2)
        # The oldest handshake gives way: honest ones are short.
        async with server.client(preface=said) as late:
            await one.until_closed()
            await until(lambda: server.listener.opening == 2)
            await server.answers()
            await two.until_closed()
            await late.until_closed()
        await until(lambda: not server.listener.opening)
        await server.answers()


@pytest.mark.parametrize("said", [b"no TLS at all", HTTP_1, raw.PREFACE])
async def test_a_client_without_tls_is_refused_where_it_is_served(
    said: bytes, tls: Tls, attack: Attack
) -> None:
    async with attack(**tls.served) as server, server.client(preface=said) as client:
        await client.until_closed()
        await until(lambda: not server.listener.opening)


async def test_a_client_is_limited_over_tls_as_well(tls: Tls, attack: Attack) -> None:
    async with (
        attack(**tls.served, resets_per_second=5) as server,
        server.client(tls=tls.client) as client,
    ):
        client.send(*(raw.call(one, "Hold", b"x") + raw.reset(one) for one in raw.streams(1000)))
        await server.answers()
        await server.ended(client, "5 resets per second")


async def test_a_client_that_does_not_answer_pings_is_cut_off(attack: Attack) -> None:
    async with attack(ping_seconds=10) as server, server.client(acks=False) as client:
        client.send(raw.headers(1, raw.fields("Take")), raw.data(1, raw.message(b"x")))
        await until(lambda: server.service.running["Take"])
        await server.pass_time(0)
        await server.pass_time(11)
        await client.frame(raw.PING)
        await server.answers()
        await server.pass_time(10)
        await server.ended(client, "no answer to a ping within 10 s")


async def test_a_client_that_answers_pings_and_does_nothing_else_is_closed_when_idle(
    attack: Attack,
) -> None:
    async with attack(ping_seconds=10, idle_seconds=100) as server, server.client() as client:
        for _ in range(9):
            await server.pass_time(0)
            await server.pass_time(11)
            await client.frame(raw.PING)
            await server.answers()
        assert not client.is_closed
        await server.pass_time(2)
        client.send(raw.frame(raw.PING, 0, 0, bytes(8)))
        await client.until_closed()


async def test_a_client_that_says_goodbye_is_closed_once_its_calls_have_ended(
    attack: Attack,
) -> None:
    async with attack() as server, server.client() as client:
        client.send(raw.headers(1, raw.fields("Echo")), raw.frame(raw.GOAWAY, 0, 0, bytes(8)))
        await server.answers()
        assert not client.is_closed
        client.send(raw.data(1, raw.message(b"x"), raw.END_STREAM))
        assert (await client.frame(raw.DATA, 1)).payload == raw.message(b"x")
        await client.until_closed()
