"""Requests through a real Envoy, with a router in the test's process and pods that report what they got.

One file: all tests start one kind of gateway.
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.router.pick_stand import QUIET, pod
from tests.router.running_router import metrics_of, running_router
from tests.servers.certificates import Authority
from tests.servers.http import listening
from tests.waiting import until
from warmpath.cli.gateway.bootstrap import (
    FailureMode,
    Fields,
    GatewayDescription,
    address_of,
    bootstrap,
)
from warmpath.cli.gateway.process import EnvoyProcess, find_envoy
from warmpath.lab.local.ports import HOST, HeldPorts
from warmpath.process.tls import TlsPaths
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc
from warmpath.router.config.read import parse

PATH = "/v1/completions"
PATIENT = "[endpoint-picker]\npick-seconds = 60\n"
"""Lets a pick take long, as it may on a busy machine."""
BODY_BYTES = 8 << 20
PATIENT_TIMES = {
    '"message_timeout": "5s"': '"message_timeout": "120s"',
    '"timeout": "5s"': '"timeout": "120s"',
}
Serve = Callable[[web.Request], Awaitable[web.Response]]


async def tell(name: str, request: web.Request) -> web.Response:
    body = await request.read()
    got = sorted(header.lower() for header in request.headers)
    told = {"pod": name, "sha256": hashlib.sha256(body).hexdigest(), "got": got}
    own = dict.fromkeys(("x-warmpath-pod", "x-llm-d-request-dropped-reason"), "a pod's own word")
    return web.json_response(told, headers=own)


@asynccontextmanager
async def pods(*names: str, serve: Serve | None = None) -> AsyncIterator[dict[str, str]]:
    """Run pods that answer with their name and what they got, or by `serve`; yield their addresses."""
    async with AsyncExitStack() as stack:
        found = {}
        for name in names:
            pod = listening(serve or partial(tell, name), most_bytes=64 << 20)
            found[name] = await stack.enter_async_context(pod)
        yield found


def tables(addresses: dict[str, str], picker: str = "") -> str:
    listed = "".join(pod(name, address) for name, address in addresses.items())
    return (
        QUIET
        + PATIENT
        + picker
        + '[[models]]\nname = "demo"\n[[models]]\nname = "empty"\n'
        + listed
    )


@asynccontextmanager
async def gateway(
    router: str,
    addresses: dict[str, str],
    mode: FailureMode = "fail-close",
    times: dict[str, str] = PATIENT_TIMES,
    **fields: Any,
) -> AsyncIterator[aiohttp.ClientSession]:
    """Run Envoy, with other `times` in its configuration; yield a session of its clients."""

    def configured(described: GatewayDescription) -> Fields:
        text = json.dumps(bootstrap(described))
        for usual, other in times.items():
            assert usual in text
            text = text.replace(usual, other)
        return json.loads(text)  # type: ignore[no-any-return]

    described = GatewayDescription(
        listen=address_of(f"{HOST}:0"), router=address_of(router),
        pods=[address_of(one) for one in addresses.values()], failure_mode=mode, **fields,
    )  # fmt: skip
    async with (
        EnvoyProcess(find_envoy(None), described, configured) as envoy,
        aiohttp.ClientSession(
            f"http://{envoy.address}", connector=aiohttp.TCPConnector(limit=0)
        ) as session,
    ):
        yield session


@asynccontextmanager
async def through(
    folder: Path,
    *names: str,
    mode: FailureMode = "fail-close",
    serve: Serve | None = None,
    more: str = "",
    picker: str = "",
    **fields: Any,
) -> AsyncIterator[tuple[aiohttp.ClientSession, router_pb2_grpc.RouterStub]]:
    """Run pods (pod-1, unless others are named), a router with more tables, and Envoy before them.

    `picker` has keys of [endpoint-picker].
    """
    async with (
        pods(*(names or ("pod-1",)), serve=serve) as addresses,
        running_router(folder, more + tables(addresses, picker)) as (router, channel),
        gateway(router.address, addresses, mode, **fields) as session,
    ):
        yield session, router_pb2_grpc.RouterStub(channel)


async def states(stub: router_pb2_grpc.RouterStub) -> list[int]:
    """Return the states of the router's decisions."""
    listed = (await stub.ListDecisions(pb.ListDecisionsRequest())).decisions
    return [one.state for one in listed]


def completion(*ids: int, model: str = "demo") -> dict[str, Any]:
    return {"model": model, "prompt": [*ids]}


async def test_a_request_gets_to_the_picked_pod_and_its_answer_says_so(tmp_path: Path) -> None:
    async with through(tmp_path, "pod-1", "pod-2") as (session, stub):
        served = set()

        async def have_ended(count: int) -> bool:
            return await states(stub) == [pb.Decision.FINISHED] * count

        for count, cached in enumerate(("0", "192"), 1):
            async with session.post(PATH, json=completion(*range(200))) as answer:
                assert answer.status == 200
                told = await answer.json()
                assert answer.headers["x-warmpath-pod"] == told["pod"]
                assert answer.headers["x-warmpath-cached-tokens"] == cached
                served.add(told["pod"])
            # Until its end is told, the pod counts as busy.
            await until(partial(have_ended, count))
        assert len(served) == 1


async def test_a_large_body_arrives_as_it_was_sent_and_a_larger_one_is_refused(
    tmp_path: Path,
) -> None:
    body = json.dumps(completion(*range(1_000_000))).encode()
    assert 4 << 20 < len(body) < BODY_BYTES
    async with through(tmp_path, "pod-1", "pod-2") as (session, _):
        async with session.post(PATH, data=BytesIO(body)) as answer:
            assert answer.status == 200
            assert (await answer.json())["sha256"] == hashlib.sha256(body).hexdigest()
        async with session.post(PATH, data=BytesIO(bytes(BODY_BYTES + 1))) as answer:
            assert answer.status == 413
            assert answer.headers["x-warmpath-reason"] == "TOO_LARGE"
            error = (await answer.json())["error"]
            assert error["code"] == "TOO_LARGE"
            assert str(BODY_BYTES) in error["message"]


@pytest.mark.parametrize("mode", ["fail-close", "fail-open"])
async def test_a_body_beyond_what_the_router_reads_is_served_all_the_same(
    tmp_path: Path, mode: FailureMode
) -> None:
    body = bytes(BODY_BYTES + (1 << 20))
    async with (
        through(tmp_path, "pod-1", "pod-2", mode=mode, body_bytes=2 * len(body)) as (session, _),
        session.post(PATH, data=BytesIO(body)) as answer,
    ):
        assert answer.status == 200
        assert (await answer.json())["sha256"] == hashlib.sha256(body).hexdigest()


async def hang(_: web.Request) -> web.Response:
    await asyncio.Event().wait()
    raise AssertionError


async def test_a_client_that_goes_away_leaves_no_booking(tmp_path: Path) -> None:
    async with through(tmp_path, serve=hang) as (session, stub):

        async def are(*expected: int) -> bool:
            return await states(stub) == [*expected]

        asking = asyncio.create_task(session.post(PATH, json=completion(1)).__aenter__())
        await until(partial(are, pb.Decision.PICKED))
        asking.cancel()
        await until(partial(are, pb.Decision.FAILED))


async def test_a_pod_that_is_away_is_passed_over_for_the_next(tmp_path: Path) -> None:
    with HeldPorts() as ports:
        async with pods("pod-2") as alive:
            addresses = {"pod-1": f"{HOST}:{ports.take()}", **alive}
            async with (
                running_router(tmp_path, tables(addresses)) as (router, channel),
                gateway(router.address, addresses) as session,
            ):
                for start in range(8):
                    ids = range(start * 1000, start * 1000 + 50)
                    async with session.post(PATH, json=completion(*ids)) as answer:
                        assert answer.status == 200
                        assert answer.headers["x-warmpath-pod"] == "pod-2"
                stub = router_pb2_grpc.RouterStub(channel)

                async def is_booked_where_it_was_served() -> bool:
                    first = (await stub.ListDecisions(pb.ListDecisionsRequest())).decisions[-1]
                    return first.pod == "pod-2"

                await until(is_booked_where_it_was_served)


async def test_a_router_that_is_away_or_goes_closes_the_gateway(tmp_path: Path) -> None:
    async with pods("pod-1") as addresses, AsyncExitStack() as stack:
        router, _ = await stack.enter_async_context(running_router(tmp_path, tables(addresses)))
        async with gateway(router.address, addresses) as session:
            async with session.post(PATH, json=completion(1)) as answer:
                assert answer.status == 200
            await stack.aclose()
            async with session.post(PATH, json=completion(1)) as answer:
                assert answer.status == 503
                assert answer.headers["x-warmpath-reason"] == "ROUTER_AWAY"
                assert (await answer.json())["error"]["code"] == "ROUTER_AWAY"
        async with (
            gateway(router.address, addresses) as session,
            session.post(PATH, json=completion(1)) as answer,
        ):
            assert answer.status == 503


async def test_the_router_may_have_a_name_with_addresses_of_two_families(tmp_path: Path) -> None:
    async with (
        pods("pod-1") as addresses,
        running_router(tmp_path, tables(addresses)) as (router, _),
        gateway(router.address.replace(HOST, "localhost"), addresses) as session,
    ):

        async def is_asked() -> bool:
            # The address at which no router listens is tried first, perhaps.
            async with session.post(PATH, json=completion(1)) as answer:
                return answer.status == 200

        await until(is_asked)


async def test_without_a_router_an_open_gateway_serves_by_any_pod_in_turn(tmp_path: Path) -> None:
    async with pods("pod-1", "pod-2") as addresses, AsyncExitStack() as stack:
        router, _ = await stack.enter_async_context(running_router(tmp_path, tables(addresses)))
        async with gateway(router.address, addresses, "fail-open") as session:
            async with session.post(PATH, json=completion(1)) as answer:
                assert answer.headers["x-warmpath-pod"] in addresses
            await stack.aclose()
            served = set()
            for _ in range(20):
                # A client that names an endpoint or a rank is not heeded.
                spoofed = {
                    "x-gateway-destination-endpoint": addresses["pod-1"],
                    "x-data-parallel-rank": "5",
                }
                async with session.post(PATH, json=completion(1), headers=spoofed) as answer:
                    assert answer.status == 200
                    assert "x-warmpath-pod" not in answer.headers, "the pod's own word"
                    told = await answer.json()
                assert not set(spoofed) & set(told["got"])
                served.add(told["pod"])
            assert served == {"pod-1", "pod-2"}


async def test_what_the_router_refuses_is_told_with_its_reason(tmp_path: Path) -> None:
    # The header changes the body, which the plain call leaves to ext_proc.
    renamed = completion(1), {"x-llm-d-model-name-rewrite": "empty"}
    async with through(tmp_path) as (session, _):
        for body, headers in ((completion(1, model="empty"), {}), renamed):
            async with session.post(PATH, json=body, headers=headers) as answer:
                assert answer.status == 503
                assert answer.headers["x-warmpath-reason"] == "NO_POD"
                dropped = answer.headers["x-llm-d-request-dropped-reason"]
                assert dropped == "rejected-no-endpoints"
                assert (await answer.json())["error"]["code"] == "NO_POD"


@pytest.mark.parametrize("mode", ["fail-close", "fail-open"])
async def test_a_request_for_a_model_without_pods_waits_longer_than_envoy_does_for_the_router(
    tmp_path: Path, mode: FailureMode
) -> None:
    cold = "[queue]\ncold-start-seconds = 600\n"
    # The look for a pod comes later than this.
    hasty = {**PATIENT_TIMES, '"message_timeout": "5s"': '"message_timeout": "0.2s"'}
    async with (
        pods("pod-1", "pod-2") as addresses,
        running_router(tmp_path, cold + tables({"pod-1": addresses["pod-1"]})) as (router, _),
        gateway(router.address, addresses, mode, hasty) as session,
    ):
        asking = asyncio.create_task(
            session.post(PATH, json=completion(1, model="empty")).__aenter__()
        )

        async def waits() -> bool:
            told = await metrics_of(router.http_address)
            return told.get('warmpath_engine_awaited_requests{model="empty"}') == 1

        await until(waits)
        async with session.post(PATH, json=completion(1)) as answer:
            assert answer.headers["x-warmpath-pod"] == "pod-1"
        started = pod("pod-2", addresses["pod-2"], model="empty")
        both = cold + tables({"pod-1": addresses["pod-1"]}) + started
        await router.reload(parse(f'[server]\nmetrics-listen = "{HOST}:0"\n{both}', "test"))
        async with await asking as answer:
            assert answer.status == 200
            assert answer.headers["x-warmpath-pod"] == "pod-2"


async def test_headers_for_the_router_reach_no_pod_and_it_hears_of_the_tenant(
    tmp_path: Path,
) -> None:
    asked = {
        "x-llm-d-inference-fairness-id": "new", "x-gateway-inference-fairness-id": "old",
        "x-llm-d-inference-objective": "o", "x-gateway-inference-objective": "o",
        "x-warmpath-priority": "high", "x-llm-d-model-name-rewrite": "demo",
    }  # fmt: skip
    async with (
        pods("pod-1") as addresses,
        running_router(tmp_path, tables(addresses)) as (router, _),
    ):
        async with (
            gateway(router.address, addresses) as session,
            session.post(PATH, json=completion(*range(200)), headers=asked) as answer,
        ):
            assert not set(asked) & set((await answer.json())["got"])
            assert "x-llm-d-request-dropped-reason" not in answer.headers
        labels = 'model="demo",tenant="new"'
        told = await metrics_of(router.http_address)
        assert any(labels in one and "client_prompt_tokens" in one for one in told)


async def test_that_no_pod_is_left_is_told_as_the_reason(tmp_path: Path) -> None:
    probed = '[probe]\ninterval-seconds = 0.05\n[[models]]\nname = "demo"\n'
    with HeldPorts() as ports:
        addresses = {"pod-1": f"{HOST}:{ports.take()}"}
        async with (
            running_router(tmp_path, probed + pod("pod-1", addresses["pod-1"])) as (
                router,
                channel,
            ),
            gateway(router.address, addresses) as session,
        ):
            stub = health_pb2_grpc.HealthStub(channel)

            async def is_unwell() -> bool:
                found = await stub.Check(health_pb2.HealthCheckRequest())
                return bool(found.status == health_pb2.HealthCheckResponse.NOT_SERVING)

            await until(is_unwell)
            async with session.post(PATH, json=completion(1)) as answer:
                assert answer.status == 503
                assert answer.headers.get("x-warmpath-reason") == "NO_POD", (
                    dict(answer.headers),
                    await answer.text(),
                )


async def test_certificates_are_read_again_when_they_are_replaced(
    tmp_path: Path, held_ports: HeldPorts
) -> None:
    address = f"{HOST}:{held_ports.take()}"
    live = tmp_path / "live"
    live.mkdir()
    files = TlsPaths(live / "ca.pem", live / "gateway.pem", live / "gateway.key")

    def replaced(number: int) -> str:
        """Make a new authority and its certificates the gateway's; return the router's configuration."""
        folder = tmp_path / str(number)
        folder.mkdir()
        authority = Authority(folder)
        its, own = authority.certificate("router"), authority.certificate("gateway", "a.example")
        for new, old in ((authority.ca, files.ca), (own.cert, files.cert), (own.key, files.key)):
            assert old is not None
            new.replace(old)
        return (
            f'[server.tls]\ncert = "{its.cert}"\nkey = "{its.key}"\nclient-ca = "{files.ca}"\n'
            '[[clients]]\nname = "gateway"\nroles = ["score"]\ncertificate = "a.example"\n'
        )

    tls = replaced(1)
    async with pods("pod-1") as addresses, AsyncExitStack() as stack:
        router = running_router(tmp_path, tls + tables(addresses), listen=address)
        await stack.enter_async_context(router)
        async with gateway(address, addresses, router_tls=files) as session:
            async with session.post(PATH, json=completion(1)) as answer:
                assert answer.headers["x-warmpath-pod"] == "pod-1"
            tls = replaced(2)
            await stack.aclose()
            # This one trusts only the new authority, and only that one vouches for it.
            async with running_router(tmp_path, tls + tables(addresses), listen=address):

                async def is_served() -> bool:
                    async with session.post(PATH, json=completion(1)) as answer:
                        return answer.status == 200

                await until(is_served)


@pytest.mark.parametrize(("mode", "most"), [("fail-close", 256), ("fail-open", 64)])
async def test_a_burst_over_a_new_connection_is_picked_for_whatever_the_router_allows_on_one(
    tmp_path: Path, mode: FailureMode, most: int
) -> None:
    count = 600
    # 600 clients, the pod and the router share this test's process.
    times = PATIENT_TIMES | {'": "1s"': '": "60s"'}
    arrived, may_answer = 0, asyncio.Event()

    async def hold(_: web.Request) -> web.Response:
        nonlocal arrived
        arrived += 1
        await may_answer.wait()
        return web.json_response({})

    more = f"[limits]\nwait-seconds = 60.0\n[server.http2]\nmax-streams = {most}\n"
    async with through(tmp_path, mode=mode, serve=hold, more=more, times=times) as (session, _):

        async def ask(start: int) -> tuple[int, str]:
            async with session.post(PATH, json=completion(start)) as answer:
                headers = answer.headers
                return answer.status, headers.get("x-warmpath-pod", await answer.text())

        asking = [asyncio.create_task(ask(start)) for start in range(count)]

        async def are_settled() -> bool:
            return arrived + sum(one.done() for one in asking) >= count

        await until(are_settled)
        may_answer.set()
        assert {await one for one in asking} == {(200, "pod-1")}


async def test_a_pod_that_says_nothing_for_too_long_gives_a_504_with_a_reason(
    tmp_path: Path,
) -> None:
    times = PATIENT_TIMES | {'"300s"': '"0.5s"'}
    async with (
        through(tmp_path, serve=hang, times=times) as (session, _),
        session.post(PATH, json=completion(1)) as answer,
    ):
        assert answer.status == 504
        assert answer.headers["x-warmpath-reason"] == "SILENT"
        assert (await answer.json())["error"]["code"] == "SILENT"


@pytest.mark.parametrize(
    "headers", [{"x-a": "a" * (61 << 10)}, {f"x-{n}": "a" for n in range(101)}]
)
async def test_headers_above_envoys_limits_are_refused_by_their_limits(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    async with (
        through(tmp_path) as (session, _),
        session.post(PATH, json=completion(1), headers=headers) as answer,
    ):
        assert answer.status == 431
        assert answer.headers["x-warmpath-reason"] == "TOO_LARGE"
        error = (await answer.json())["error"]
        assert error["code"] == "TOO_LARGE"
        assert error["type"] == "invalid_request_error"
        assert "headers are longer than 60 KiB or more than 100" in error["message"]


async def test_every_response_of_envoys_own_has_a_reason_and_is_json(tmp_path: Path) -> None:
    times = PATIENT_TIMES | {'"10s"': '"0.2s"'}
    async with through(tmp_path, times=times) as (session, _):
        assert session._base_url is not None
        reader, writer = await asyncio.open_connection(HOST, session._base_url.port)
        writer.write(b"POST / HTTP/1.1\r\nhost: a\r\n")
        answer = await reader.read()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b'"code":"GATEWAY_ERROR"' in answer
        assert b'"message":"request_header_timeout"' in answer
