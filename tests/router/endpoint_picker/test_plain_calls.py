"""Picks that are asked for in one call over HTTP/1.1, of a real router."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.router.endpoint_picker.gateway import IDS, ONE, PODS, TWO, Gateway, asking, completion
from tests.router.endpoint_picker.test_picker_service import NAMES, busy, failing, hanging
from tests.router.pick_stand import QUIET, pod
from tests.router.running_router import TRANSPORT, running_router
from tests.servers.certificates import Authority
from tests.waiting import until
from warmpath.process.address import HostPort
from warmpath.proto.pb.warmpath.v1 import router_pb2
from warmpath.router.admission.admission import Admission
from warmpath.router.assemble.means import ShadowMode
from warmpath.router.calls.pick import PickAnswerer
from warmpath.router.endpoint_picker import plain_calls, service
from warmpath.router.endpoint_picker.http1 import MOST_HEAD_BYTES
from warmpath.router.endpoint_picker.protocol import DESTINATION
from warmpath.router.transport import nghttp2

pytestmark = pytest.mark.skipif(TRANSPORT == "grpcio", reason="only nghttp2 serves HTTP/1.1")
PATH = "/pick/v1/completions"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def endpoints(self) -> list[str]:
        return self.headers[DESTINATION].split(",")


def written(
    body: bytes | None, headers: Mapping[str, str] = {}, path: str = PATH, method: str = "POST"
) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: router", "content-type: application/json"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines.append(f"content-length: {len(body or b'')}\r\n\r\n")
    return "\r\n".join(lines).encode() + (body or b"")


class Caller:
    """A connection to a router."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, *args: Any, **kwargs: Any) -> Answer:
        self.writer.write(written(*args, **kwargs))
        return await self.read()

    async def read(self) -> Answer:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
        headers = dict(line.split(": ", 1) for line in head[1:])
        body = await self.reader.readexactly(int(headers["content-length"]))
        return Answer(int(head[0].split()[1]), headers, body)


@asynccontextmanager
async def calling(address: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[Caller]:
    host, port = HostPort.of(address)
    reader, writer = await asyncio.open_connection(host, port, ssl=tls)
    try:
        yield Caller(reader, writer)
    finally:
        writer.close()


async def ended(gateway: Gateway, *answers: Answer) -> None:
    """Report that the requests have ended."""
    for one in answers:
        name = one.headers["x-warmpath-booking"]
        request = router_pb2.ReportRequest(booking_id=name, event=router_pb2.ReportRequest.FINISHED)
        await gateway.stub.Report(request, timeout=30)


async def test_a_pick_is_told_in_headers_and_connections_are_kept(gateway: Gateway) -> None:
    async with calling(gateway.router.address) as caller:
        first = await caller.ask(completion(), {"x-gateway-destination-endpoint": "9.9.9.9:1"})
        assert first.status == 200
        assert {*first.endpoints} == {ONE, TWO}
        where = NAMES[first.endpoints[0]]
        assert first.headers["x-warmpath-through"] == "pick"
        assert first.headers["x-warmpath-router"] == gateway.router.address
        assert await gateway.decisions() == [("PICKED", where)]
        await ended(gateway, first)
        second = await caller.ask(completion())
        *told, saved = second.headers["x-warmpath-told"].split(",")[0].split()
        assert told == [first.endpoints[0], where, "192"]
        assert float(saved) > 0
        await ended(gateway, second)
    assert await gateway.metric('warmpath_endpoint_picks_total{outcome="picked"}') == 2
    assert await gateway.metric('warmpath_requests_total{code="OK",method="/pick"}') == 2


async def test_nothing_is_refused_for_what_it_asks(gateway: Gateway) -> None:
    asked: list[tuple[str, str, bytes | None, dict[str, str]]] = [
        ("GET", "/pick/v1/models", None, {}),
        ("POST", "/pick/v1/completions?a=b", b"not json", {}),
        ("POST", PATH, completion(model="unknown"), {}),
        ("GET", "/pick/v1/realtime", None, {"upgrade": "websocket"}),
        ("POST", PATH, completion(), {"content-encoding": "gzip"}),
    ]
    for method, path, body, headers in asked:
        async with calling(gateway.router.address) as caller:
            answer = await caller.ask(body, headers, path, method)
            assert {*answer.endpoints} == {ONE, TWO}, path
            assert "x-warmpath-cached-tokens" not in answer.headers
            await ended(gateway, answer)


async def test_a_body_longer_than_the_limit_is_dropped_and_picked_for_by_load(
    tmp_path: Path,
) -> None:
    tables = f"[limits]\nmax-prompt-bytes = 1000\n{QUIET}{PODS}"
    async with (
        asking(tmp_path, tables=tables) as gateway,
        calling(gateway.router.address) as caller,
    ):
        answer = await caller.ask(completion(prompt="x" * 10_000_000))
        assert {*answer.endpoints} == {ONE, TWO}
        assert await gateway.metric("warmpath_endpoint_picker_held_bytes") == 0
        await ended(gateway, answer)


async def test_bodies_beyond_all_room_are_picked_for_by_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MOST_HELD_BYTES", 10)
    async with (
        asking(tmp_path) as gateway,
        calling(gateway.router.address) as slow,
        calling(gateway.router.address) as caller,
    ):
        slow.writer.write(written(b"x" * 100)[:-50])
        await gateway.until_it_is("warmpath_endpoint_picker_held_bytes", 50)
        caller.writer.write(written(completion())[:-100])
        await gateway.until_it_is("warmpath_endpoint_picker_held_bytes", 50)
        caller.writer.write(completion()[-100:])
        answer = await caller.read()
        assert "x-warmpath-cached-tokens" not in answer.headers
        await ended(gateway, answer)


async def test_a_body_that_must_change_is_left_to_the_other_filter(tmp_path: Path) -> None:
    async with (
        asking(tmp_path, picker='rewrites = { "gpt" = "demo" }') as gateway,
        calling(gateway.router.address) as caller,
    ):
        by_config = await caller.ask(completion(model="gpt"))
        by_header = await caller.ask(completion(), {"x-llm-d-model-name-rewrite": "empty"})
        for answer in (by_config, by_header):
            assert (answer.status, answer.headers["x-warmpath-through"]) == (200, "exchange")
            assert DESTINATION not in answer.headers
        assert await gateway.decisions() == []
        assert not await gateway.metric('warmpath_requests_total{code="OK",method="/pick"}')


async def test_refusals_have_a_reason_and_503_goes_out_as_403(gateway: Gateway) -> None:
    async with calling(gateway.router.address) as caller:
        for headers in ({}, {"x-gateway-destination-endpoint-subset": "9.9.9.9:1, "}):
            model = "demo" if headers else "empty"
            answer = await caller.ask(completion(model=model), headers)
            reason = "SUBSET_UNMATCHED" if headers else "NO_POD"
            assert answer.status == 403
            assert answer.headers["x-warmpath-reason"] == reason
            assert answer.headers["content-type"] == "application/json"
            assert json.loads(answer.body)["error"]["code"] == reason
        only = await caller.ask(completion(), {"x-gateway-destination-endpoint-subset": TWO})
        assert only.endpoints == [TWO]
        await ended(gateway, only)


@pytest.mark.parametrize(
    ("owner", "method", "does", "status", "reason", "dropped"),
    [
        (Admission, "enter", busy, 429, "OVERLOADED", "rejected-saturated"),
        (PickAnswerer, "pick", failing, 403, "INTERNAL_ERROR", None),
        (PickAnswerer, "pick", hanging, 403, "PICK_LATE", "rejected-ttl-expired"),
    ],
)
async def test_a_router_that_cannot_pick_refuses_or_lets_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, method: str, does: Any,
    status: int, reason: str, dropped: str | None,
) -> None:  # fmt: skip
    monkeypatch.setattr(owner, method, does)
    monkeypatch.setattr(Admission, "is_free", False)
    picker = "pick-seconds = 0.05" if does is hanging else ""
    async with (
        asking(tmp_path, picker=picker) as gateway,
        calling(gateway.router.address) as caller,
    ):
        answer = await caller.ask(completion())
        assert (answer.status, answer.headers["x-warmpath-reason"]) == (status, reason)
        assert answer.headers.get("x-llm-d-request-dropped-reason") == dropped
        assert answer.headers.get("retry-after") == ("2" if does is busy else None)
    picker = f'failure-mode = "fail-open"\n{picker}'
    async with (
        asking(tmp_path, picker=picker) as gateway,
        calling(gateway.router.address) as caller,
    ):
        answer = await caller.ask(completion())
        assert (answer.status, answer.headers["x-warmpath-through"]) == (200, "pick")
        assert DESTINATION not in answer.headers


async def test_a_shadow_pick_names_no_endpoint(tmp_path: Path) -> None:
    async with (
        running_router(tmp_path, f'[[models]]\nname = "demo"\n{QUIET}{PODS}', shadow=ShadowMode()) as (router, _),
        calling(router.address) as caller,
    ):  # fmt: skip
        answer = await caller.ask(completion())
        assert answer.headers["x-warmpath-booking"]
        assert {DESTINATION, "x-warmpath-told"}.isdisjoint(answer.headers)
        refused = await caller.ask(completion(model="unknown"))
        assert refused.status == 200


async def test_a_caller_that_leaves_before_its_answer_is_counted_as_gone(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = asyncio.Event()

    async def slow(*_: Any, **__: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(PickAnswerer, "pick", slow)
    async with calling(gateway.router.address) as caller:
        caller.writer.write(written(completion()))
        await begun.wait()
    gone = 'warmpath_endpoint_picks_total{outcome="gone"}'
    await gateway.until_it_is(gone, 1)


async def test_an_answer_that_is_hardly_read_is_withdrawn(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_calls, "GONE_SECONDS", 3600.0)
    async with calling(gateway.router.address) as caller:
        first = await caller.ask(completion())
        second = await caller.ask(completion())
        await ended(gateway, first)
        assert await gateway.metric("warmpath_bookings") == 1
        assert second.endpoints
    await gateway.until_it_is("warmpath_bookings", 0)


async def test_a_pick_that_waits_for_nothing_is_answered_as_it_is_received(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, tasks = plain_calls.Connection.data_received, []

    def taken(one: plain_calls.Connection, data: bytes) -> None:
        take(one, data)
        tasks.append(one._task)

    monkeypatch.setattr(plain_calls.Connection, "data_received", taken)
    async with calling(gateway.router.address) as caller:
        await ended(gateway, await caller.ask(completion()))
        assert {*tasks} == {None}


async def test_requests_wait_behind_one_that_is_being_answered(gateway: Gateway) -> None:
    async with calling(gateway.router.address) as caller:
        caller.writer.write(written(completion()) * 3)
        answers = [await caller.read() for _ in range(3)]
        assert len({one.headers["x-warmpath-booking"] for one in answers}) == 3
        await ended(gateway, *answers)


async def test_a_malformed_request_is_answered_and_ends_its_connection(gateway: Gateway) -> None:
    for sent, status in (
        (b"GET / HTTP/1.1\r\nbad header\r\n\r\n", b"400"),
        (b"POST /pick/a HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n", b"501"),
        (b"GET /" + b"a" * (MOST_HEAD_BYTES + 1), b"431"),
        (b"PRO HTTP/2.0\r\n\r\n", b"400"),
    ):
        async with calling(gateway.router.address) as caller:
            caller.writer.write(sent)
            assert (await caller.reader.read()).startswith(b"HTTP/1.1 " + status)


async def test_other_paths_are_not_found_and_health_is_told_to_anybody(gateway: Gateway) -> None:
    async with calling(gateway.router.address) as caller:
        assert (await caller.ask(None, path="/v1/models", method="GET")).status == 404
        assert (await caller.ask(None, path="/health/nobody", method="GET")).status == 404
        for name in ("answering", "envoy.service.ext_proc.v3.ExternalProcessor"):
            answer = await caller.ask(None, path=f"/health/{name}", method="GET")
            assert (answer.status, answer.body) == (200, b"")


@pytest.mark.parametrize(
    ("sent", "limit"),
    [
        (b"", "handshake_seconds"),
        (b"PR", "handshake_seconds"),
        (b"POST /pick/a", "REQUEST_SECONDS"),
        (written(completion())[:-1], "REQUEST_SECONDS"),
        (written(None, path="/health/answering"), "idle_seconds"),
    ],
)
async def test_a_connection_that_is_slow_or_idle_is_closed(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, sent: bytes, limit: str
) -> None:
    # The limits of an idle connection and of its first bytes are those of HTTP/2.
    if limit == "REQUEST_SECONDS":
        monkeypatch.setattr(plain_calls, limit, 0.0)
    monkeypatch.setattr(plain_calls, "LOOK_SECONDS", 0.01)
    begun = nghttp2.FirstBytes.__init__

    def hasty(one: Any, place: Any, http2: Any, http1: Any, seconds: float) -> None:
        begun(one, place, http2, http1, 0.05 if limit == "handshake_seconds" else seconds)

    def look(one: plain_calls.Connection, now: float) -> None:
        looked(one, now + (1000.0 if limit == "idle_seconds" else 0.0))

    looked = plain_calls.Connection.look
    monkeypatch.setattr(nghttp2.FirstBytes, "__init__", hasty)
    monkeypatch.setattr(plain_calls.Connection, "look", look)
    async with calling(gateway.router.address) as caller:
        caller.writer.write(sent)
        rest = await caller.reader.read()
        assert not rest or rest.startswith(b"HTTP/1.1 200 ")
    await gateway.until_it_is("warmpath_endpoint_picker_held_bytes", 0)


@pytest.mark.parametrize("is_encrypted", [False, True])
async def test_only_callers_with_the_role_get_a_pick(tmp_path: Path, *, is_encrypted: bool) -> None:
    (tmp_path / "token").write_text("t" * 32)
    (tmp_path / "other").write_text("o" * 32)
    tables = '[[clients]]\nname = "a"\nroles = ["score"]\ntoken-file = "token"\n'
    tables += '[[clients]]\nname = "b"\nroles = ["read"]\ntoken-file = "other"\n'
    context = None
    if is_encrypted:
        authority = Authority(tmp_path)
        its, own = authority.certificate("router"), authority.certificate("gateway", "a.example")
        tables = (
            f'[server.tls]\ncert = "{its.cert}"\nkey = "{its.key}"\nclient-ca = "{authority.ca}"\n'
            '[[clients]]\nname = "a"\nroles = ["score"]\ncertificate = "a.example"\n'
            + tables.partition("\n")[0]
            + "\n"
            + 'name = "b"\nroles = ["read"]\ntoken-file = "other"\n'
        )
        context = ssl.create_default_context(cafile=authority.ca)
        context.load_cert_chain(own.cert, own.key)
        context.set_alpn_protocols(["http/1.1"])
    tables += f'[[models]]\nname = "demo"\n{QUIET}{PODS}'
    async with (
        running_router(tmp_path, tables) as (router, _),
        calling(router.address, context) as caller,
    ):
        right = {} if is_encrypted else {"authorization": f"Bearer {'t' * 32}"}
        assert (await caller.ask(completion(), right)).endpoints
        if not is_encrypted:
            for token in ("o" * 32, "x" * 32):
                answer = await caller.ask(completion(), {"authorization": f"Bearer {token}"})
                assert answer.status == 503, "for a gateway, the router is away"
                assert b"role 'score'" in answer.body
            assert (await caller.ask(completion())).status == 503
        assert (await caller.ask(None, path="/health/answering")).status == 200


async def test_a_router_that_ends_answers_503_and_closes(tmp_path: Path) -> None:
    tables = f'[[models]]\nname = "demo"\n{QUIET}{pod("pod-1", ONE)}'
    running = running_router(tmp_path, tables, drain_seconds=5)
    router, _ = await running.__aenter__()
    async with calling(router.address) as caller, calling(router.address) as idle:
        assert (await caller.ask(completion(prompt=IDS))).endpoints
        assert (await idle.ask(None, path="/health/answering")).status == 200
        ending = asyncio.create_task(running.__aexit__(None, None, None))
        await until(lambda: not router.readiness.ready())
        answer = await caller.ask(completion())
        while answer.status == 200:
            answer = await caller.ask(completion())
        assert (answer.status, answer.headers["connection"]) == (503, "close")
        assert await caller.reader.read() == b""
        await ending
        assert await idle.reader.read() == b""
