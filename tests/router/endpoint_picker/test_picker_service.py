"""The service over gRPC, on both transports: exchanges from the first header to the reports.

One file, since each test is a whole exchange with one stand.
"""

import asyncio
import json
from contextlib import AsyncExitStack
from itertools import count, product
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.h2grpc.served import ends_with
from tests.router.endpoint_picker.gateway import IDS, ONE, PODS, TWO, Gateway, asking, completion
from tests.router.error_details import details_of
from tests.router.pick_stand import QUIET, pod
from tests.router.running_router import running_router
from warmpath.router.admission.admission import Admission, BusyError
from warmpath.router.calls.pick import PickAnswerer
from warmpath.router.endpoint_picker import service
from warmpath.router.endpoint_picker.protocol import DESTINATION, SERVICE, BodyMode
from warmpath.router.pods.table import Pod
from warmpath.scorer.prefill import PrefillModel

USAGE = {
    "prompt_tokens": 200, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 0}
}  # fmt: skip
ANSWER = json.dumps({"usage": USAGE}).encode()
NAMES = {ONE: "pod-1", TWO: "pod-2"}


async def test_a_request_is_picked_for_and_its_progress_is_reported(
    either_gateway: Gateway,
) -> None:
    one = either_gateway.exchange()
    destination = await one.routed(completion())
    assert set(destination.endpoints) == {ONE, TWO}
    where = NAMES[destination.endpoints[0]]
    assert await either_gateway.decisions() == [("PICKED", where)]
    assert await either_gateway.metric("warmpath_bookings") == 1
    headers = await one.answered(ANSWER, served=destination.endpoints[0])
    assert headers == {
        "x-warmpath-pod": where, "x-warmpath-cached-tokens": "0", "x-warmpath-saved-seconds": "0.000",
    }  # fmt: skip
    assert await one.ended() == grpc.StatusCode.OK
    assert await either_gateway.decisions() == [("FINISHED", where)]
    assert (await either_gateway.newest()).cached_tokens == 0
    assert await either_gateway.metric('warmpath_endpoint_picks_total{outcome="picked"}') == 1
    assert await either_gateway.metric('warmpath_requests_total{code="OK",method="Process"}') == 1


async def test_a_pod_that_holds_the_prompt_is_picked_and_the_saving_is_told(
    either_gateway: Gateway,
) -> None:
    before, _ = await either_gateway.whole(completion(), ANSWER)
    destination, headers = await either_gateway.whole(completion(), ANSWER)
    first = before.endpoints[0]
    assert destination.endpoints[0] == first
    model = PrefillModel()
    saved = model.seconds(200, 0) - model.seconds(8, 192)
    assert headers == {
        "x-warmpath-pod": NAMES[first], "x-warmpath-cached-tokens": "192", "x-warmpath-saved-seconds": f"{saved:.3f}",
    }  # fmt: skip


async def test_nothing_is_refused_for_what_it_asks(gateway: Gateway) -> None:
    bodies = (None, b"{}", b"", b"not json", completion(model="unknown"))
    asked = [*product(bodies, ("/v1/completions", "/v1/models", "/no/such/path"))]
    for body, path in asked:
        one = gateway.exchange()
        assert len((await one.routed(body, path=path)).endpoints) == 2, (body, path)
        await one.answered(status="404")
        await one.ended()
    assert [state for state, _ in await gateway.decisions()] == ["FAILED"] * len(asked)


RESPONSE = {"model": "demo", "input": "hi", "prompt_cache_key": "key"}
MESSAGE = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
OF_CLAUDE = {"user_id": "user_0f_account__session_0197a3c0-7d52-7f10-9a00-0123456789ab"}


@pytest.mark.parametrize("keys", ["", "session-in-body = false"])
async def test_a_body_names_its_session_where_no_header_does(tmp_path: Path, keys: str) -> None:
    async with asking(tmp_path, picker=keys) as gateway:
        for path, body, session in (
            ("/v1/completions", {"model": "demo", "prompt": IDS, "prompt_cache_key": "key"}, "key"),
            ("/v1/chat/completions", MESSAGE | {"prompt_cache_key": "key"}, "key"),
            ("/v1/responses", RESPONSE, "key"),
            # The router does not read the prompt.
            ("/v1/responses", RESPONSE | {"previous_response_id": "r"}, "key"),
            ("/v1/messages", MESSAGE | {"metadata": OF_CLAUDE}, OF_CLAUDE["user_id"][-36:]),
            ("/v1/messages", MESSAGE, ""),
        ):
            for headers, wanted in (
                ((), session if not keys else ""),
                ((("session-id", "s"),), "s"),
            ):
                await gateway.whole(json.dumps(body).encode(), ANSWER, *headers, path=path)
                assert (await gateway.newest()).session_id == wanted, (path, headers)


OTHER = pod("other", "10.0.0.3:80").replace('"demo"', '"empty"')
"""A pod of another model."""


@pytest.mark.parametrize(
    ("path", "body"), [("/generate", {"input_ids": IDS}), ("/v1/completions", {"prompt": IDS})]
)
async def test_a_body_without_a_model_is_for_that_of_the_header_or_the_only_one_that_pods_serve(
    tmp_path: Path, path: str, body: dict[str, Any]
) -> None:
    name = "x-llm-d-model-name-rewrite"
    demo, empty, unknown = (name, "demo"), (name, "empty"), (name, "nobody's")
    # The engine takes its base model, whatever adapter the header names.
    adapter = (name, "tuned")
    for pods, headers, cached in (
        (PODS, (), "192"),
        (PODS + OTHER, (), None),
        (PODS + OTHER, (demo,), "192"),
        (PODS + OTHER, (adapter,), "192"),
        (PODS + OTHER, (empty,), "192"),
        (PODS + OTHER, (unknown,), None),
    ):
        async with asking(tmp_path, tables=QUIET + pods) as gateway:
            for asked in ((demo,), headers) if adapter in headers else (headers, headers):
                whole = gateway.whole(json.dumps(body).encode(), ANSWER, *asked, path=path)
                to, told = await whole
            assert told.get("x-warmpath-cached-tokens") == cached
            if empty in headers:
                assert to.endpoints == ["10.0.0.3:80"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"model": "demo", "prompt": [IDS, IDS]}),
        ("/generate", {"input_ids": [IDS, IDS]}),
        ("/v1/models", None),
    ],
)
async def test_nothing_is_predicted_of_a_prompt_that_is_not_known(
    gateway: Gateway, path: str, body: dict[str, Any] | None
) -> None:
    raw = None if body is None else json.dumps(body).encode()
    _, told = await gateway.whole(raw, ANSWER, path=path)
    assert "x-warmpath-pod" in told
    assert not {"x-warmpath-cached-tokens", "x-warmpath-saved-seconds"} & set(told)


SPLIT = '[endpoint-picker.headers]\nprefill = "x-prefiller-host-port"'
DECODING = pod("pod-1", ONE, role="decode") + pod("pod-2", TWO, role="decode")
PREFILLING = pod("pod-3", "10.0.0.3:80", role="prefill")


async def test_a_pod_that_decodes_is_told_which_one_prefills(tmp_path: Path) -> None:
    tables = QUIET + DECODING + PREFILLING
    async with asking(tmp_path, picker=SPLIT, tables=tables) as gateway:
        for cached in ("0", "192"):
            one = gateway.exchange()
            spoofed = ("x-prefiller-host-port", "9.9.9.9:1")
            destination = await one.routed(completion(), spoofed)
            assert set(destination.endpoints) == {ONE, TWO}
            assert destination.headers["x-prefiller-host-port"] == "10.0.0.3:80"
            assert await gateway.metric("warmpath_bookings") == 2
            served = destination.endpoints[1]
            headers = await one.answered(ANSWER, served=served)
            assert headers["x-warmpath-pod"] == NAMES[served]
            assert headers["x-warmpath-cached-tokens"] == cached
            await one.ended()
            newest = await gateway.newest()
            # The booking stays on the pod that prefills, and the other's usage does not tell its cache.
            assert (newest.pod, newest.HasField("cached_tokens")) == ("pod-3", False)


async def test_while_no_pod_that_prefills_is_well_those_that_decode_do_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pod, "serves", property(lambda pod: pod.role != "prefill"))
    async with asking(tmp_path, picker=SPLIT, tables=QUIET + DECODING + PREFILLING) as gateway:
        one = gateway.exchange()
        destination = await one.routed(completion())
        assert set(destination.endpoints) == {ONE, TWO}
        assert "x-prefiller-host-port" not in destination.headers
        assert (await gateway.newest()).pod in ("pod-1", "pod-2")


@pytest.mark.parametrize(
    ("picker", "tables", "endpoints"),
    [
        (SPLIT, DECODING, 2),
        (SPLIT, PODS, 2),
        ("", DECODING + PREFILLING, 3),
        ("fall-backs = 0", PODS, 1),
    ],
    ids=["no role prefill", "no role", "no header for it", "no fall-backs either"],
)
async def test_without_roles_or_a_header_for_it_one_pod_does_both(
    tmp_path: Path, picker: str, tables: str, endpoints: int
) -> None:
    async with asking(tmp_path, picker=picker, tables=QUIET + tables) as gateway:
        one = gateway.exchange()
        destination = await one.routed(completion())
        assert len(destination.endpoints) == endpoints
        assert "x-prefiller-host-port" not in destination.headers


async def test_a_body_that_depends_on_the_chat_template_is_read_with_it(
    tmp_path: Path, model_folder: Path
) -> None:
    model = f'tokenizer = "{model_folder}"\n'
    said = [
        {"role": "user", "content": "one two three four five six seven eight " * 20},
        {"role": "system", "content": "nine"},
    ]
    body = json.dumps({"model": "demo", "max_tokens": 1, "messages": said}).encode()
    async with asking(tmp_path, model=model) as gateway:
        cached = []
        for _ in range(2):
            _, told = await gateway.whole(body, ANSWER, path="/v1/messages")
            cached.append(int(told["x-warmpath-cached-tokens"]))
        assert cached[0] == 0
        assert cached[1] > 100


async def test_only_endpoints_of_the_subset_are_picked(gateway: Gateway) -> None:
    subsets: list[tuple[Any, list[str]]] = [
        ([TWO], [TWO]), ("10.0.0.2:80,10.0.0.9:80", [TWO]), (["10.0.0.2"], [TWO]), ([ONE, TWO], [ONE, TWO]),
    ]  # fmt: skip
    for (subset, endpoints), body in product(subsets, (completion(), None)):
        destination = await gateway.exchange().routed(body, subset=subset)
        assert sorted(destination.endpoints) == endpoints, subset


async def test_a_subset_that_matches_nothing_is_unavailable(tmp_path: Path) -> None:
    subsets: list[Any] = [[], "", ["10.0.0.9:80"], ["10.0.0.2:81"]]
    async with asking(tmp_path, picker='failure-mode = "fail-open"') as gateway:
        for number, subset in enumerate(subsets, 1):
            one = gateway.exchange()
            await one.request(ends=True, subset=subset)
            status, error, headers = await one.refused()
            assert (status, error["code"]) == (503, "SUBSET_UNMATCHED")
            assert headers["x-warmpath-reason"] == "SUBSET_UNMATCHED"
            assert headers["x-llm-d-request-dropped-reason"] == "rejected-no-endpoints"
            metric = 'warmpath_endpoint_picks_total{outcome="subset_unmatched"}'
            assert await gateway.metric(metric) == number
            metric = 'warmpath_refusals_total{method="Process",reason="SUBSET_UNMATCHED"}'
            assert await gateway.metric(metric) == number


async def test_a_model_without_pods_is_unavailable(either_gateway: Gateway) -> None:
    one = either_gateway.exchange()
    await one.request()
    await one.body(completion(model="empty"))
    status, error, _ = await one.refused()
    assert status == 503
    assert error == {
        "message": "no pod serves 'empty'", "type": "service_unavailable", "code": "NO_POD",
    }  # fmt: skip


async def test_an_adapter_is_picked_for_by_its_name(gateway: Gateway) -> None:
    one = gateway.exchange()
    await one.routed(completion(model="tuned"))
    newest = await gateway.newest()
    assert (newest.model, newest.prompt_tokens) == ("demo", 200)


async def test_a_model_is_asked_for_by_another_name(tmp_path: Path, transport: str) -> None:
    picker = 'rewrites = { "gpt" = "demo" }'
    asked = completion(model="gpt")
    async with asking(tmp_path, picker=picker, transport=transport) as gateway:
        for headers in ((), (("x-gateway-model-name-rewrite", "tuned"),)):
            target = headers[0][1] if headers else "demo"
            expected = asked.replace(b'"gpt"', b'"%s"' % target.encode())
            one = gateway.exchange()
            await one.request(*headers)
            await one.body(asked)
            destination = await one.destination()
            assert destination.headers["content-length"] == str(len(expected))
            assert destination.removed >= {"x-gateway-model-name-rewrite"}
            assert await one.passed() == expected
            assert (await gateway.newest()).prompt_tokens == 200
            two = gateway.exchange(BodyMode.BUFFERED, BodyMode.NONE)
            await two.request(*headers)
            await two.read()
            await two.body(asked)
            got = await two.read()
            assert got.request_body.response.body_mutation.body == expected


async def test_a_rank_is_told_by_the_engines_own_number(tmp_path: Path) -> None:
    tables = QUIET + pod("pod-1", ONE, ranks=2, first_rank=4)
    async with asking(tmp_path, tables=tables) as gateway:
        ranks = set()
        for number in count():
            one = gateway.exchange()
            destination = await one.routed(completion(prompt=[*range(number, number + 100)]))
            assert destination.endpoints == [ONE], "one address, however many ranks"
            ranks.add(destination.headers["x-data-parallel-rank"])
            if len(ranks) == 2:
                break
        assert ranks == {"4", "5"}


async def test_fall_backs_get_the_rank_that_the_header_names(tmp_path: Path) -> None:
    """A gateway sends them the same header; a pod without that rank would refuse the request."""
    tables = QUIET + pod("pod-1", ONE, ranks=2) + pod("pod-2", TWO, ranks=2)
    tables += pod("pod-3", "10.0.0.3:80", first_rank=0)
    ranks = set()
    async with asking(tmp_path, tables=tables) as gateway:
        for number in count():
            one = gateway.exchange()
            destination = await one.routed(completion(prompt=[number] * 64))
            rank = destination.headers.get("x-data-parallel-rank")
            ranks.add(rank)
            if rank is not None:
                assert ("10.0.0.3:80" in destination.endpoints) == (rank == "0")
                last = destination.endpoints[-1]
                await one.answered(ANSWER, served=last)
                newest = await gateway.newest()
                assert newest.rank == int(rank)
            else:
                await one.answered(ANSWER)
            await one.ended()
            if ranks == {"0", "1", None}:
                break


async def test_requests_of_a_conversation_go_to_one_pod(tmp_path: Path) -> None:
    policy = '[pick]\npolicy = "session-hash"\n'
    async with asking(tmp_path, tables=policy + QUIET + PODS) as gateway:
        found = set()
        for number in range(6):
            body = completion(prompt=list(range(1000 * number, 1000 * number + 100)))
            session = ("x-warmpath-session", "conversation-17")
            destination, _ = await gateway.whole(body, ANSWER, session)
            found.add(destination.endpoints[0])
        assert len(found) == 1


async def test_headers_of_ours_have_the_names_that_are_configured(tmp_path: Path) -> None:
    picker = (
        '[endpoint-picker.headers]\npod = "x-served-by"\ncached-tokens = ""\nsaved-seconds = ""'
    )
    async with asking(tmp_path, picker=picker) as gateway:
        destination, headers = await gateway.whole(completion(), ANSWER)
        assert "x-served-by" in destination.removed
        assert headers == {"x-served-by": NAMES[destination.endpoints[0]]}


async def hanging(*_: object, **__: object) -> None:
    await asyncio.Event().wait()


async def failing(*_: object, **__: object) -> None:
    raise RuntimeError("unforeseen")


def busy(*_: object, **__: object) -> None:
    raise BusyError(2.0, 1.5)


@pytest.mark.parametrize(
    ("owner", "method", "does", "status", "reason"),
    [
        (Admission, "enter", busy, 429, "OVERLOADED"),
        (PickAnswerer, "pick", failing, 503, "INTERNAL_ERROR"),
        (PickAnswerer, "pick", hanging, 503, "PICK_LATE"),
    ],
)
async def test_a_router_that_cannot_pick_refuses_or_lets_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    owner: type, method: str, does: Any, status: int, reason: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(owner, method, does)
    monkeypatch.setattr(Admission, "is_free", False)
    picker = "pick-seconds = 0.05" if does is hanging else ""
    async with asking(tmp_path, picker=picker) as gateway:
        one = gateway.exchange()
        await one.request()
        await one.body(completion())
        code, error, headers = await one.refused()
    assert (code, error["code"]) == (status, reason)
    assert headers.get("retry-after") == ("2" if does is busy else None)
    assert ("unforeseen" in caplog.text) == (does is failing)
    async with asking(tmp_path, picker=f'failure-mode = "fail-open"\n{picker}') as gateway:
        destination, told = await gateway.whole(completion(), ANSWER, (DESTINATION, "9.9.9.9:1"))
        assert destination.endpoints == []
        assert DESTINATION in destination.removed
        assert told == {}
        assert not await gateway.metric('warmpath_endpoint_picks_total{outcome="picked"}')
        assert not await gateway.metric("warmpath_bookings")


@pytest.mark.parametrize("queue", ["off", "on"])
async def test_exchanges_that_are_cancelled_at_any_moment_leave_nothing(
    tmp_path: Path, transport: str, queue: str
) -> None:
    tables = f'{QUIET}[pick]\nqueue = "{queue}"\n{pod("pod-1", ONE)}'
    loop = asyncio.get_running_loop()
    async with asking(tmp_path, tables=tables, transport=transport) as gateway:

        async def ask(number: int) -> None:
            one = gateway.exchange()
            loop.call_later(0.0002 * number, one.call.cancel)
            await one.routed(completion())

        asked = [asyncio.ensure_future(ask(number)) for number in range(60)]
        await asyncio.sleep(0)
        while not all(one.call.done() for one in gateway.exchanges):
            await asyncio.sleep(0.01)
        for one in asked:
            # gRPC's client leaves some writes waiting whose call was cancelled.
            one.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        await gateway.until_nothing_is_left()


async def test_a_body_that_stalls_passes_while_it_comes(
    tmp_path: Path, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "BODY_SECONDS", 0.1)
    async with asking(tmp_path, transport=transport) as gateway:
        one = gateway.exchange()
        await one.request()
        await one.body(b'{"model":"demo",', ends=False)
        assert len((await one.destination()).endpoints) == 2
        await one.body(b'"prompt":"x"}')
        assert await one.passed() == b'{"model":"demo","prompt":"x"}'


async def test_held_bodies_have_room_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MOST_HELD_BYTES", 10)
    async with asking(tmp_path) as gateway:
        first, second = gateway.exchange(), gateway.exchange()
        await first.request()
        await first.body(b"12345678", ends=False)
        await gateway.until_it_is("warmpath_endpoint_picker_held_bytes", 8)
        await second.request()
        await second.body(b"123", ends=False)
        assert len((await second.destination()).endpoints) == 2
        assert await gateway.metric("warmpath_endpoint_picker_held_bytes") == 8
        await first.body(b"9")
        assert len((await first.destination()).endpoints) == 2
        assert await first.passed() == b"123456789"


@pytest.mark.parametrize("is_booked", [False, True])
async def test_a_gateway_that_breaks_the_order_is_refused_and_leaves_no_booking(
    either_gateway: Gateway, is_booked: bool
) -> None:
    one = either_gateway.exchange()
    if is_booked:
        await one.routed(completion())
    await one.body(b"late", ends=False)
    with ends_with(grpc.StatusCode.INVALID_ARGUMENT) as raised:
        await one.read()
    assert details_of(raised.value).reason == "BAD_REQUEST"
    await either_gateway.until_nothing_is_left()


async def test_gateways_ask_for_health_by_many_names(tmp_path: Path, transport: str) -> None:
    async with asking(tmp_path, tables=QUIET, transport=transport) as gateway:
        stub = health_pb2_grpc.HealthStub(gateway.channel)
        status = health_pb2.HealthCheckResponse
        for name, expected in (
            (SERVICE, status.NOT_SERVING), ("inference-extension", status.NOT_SERVING),
            ("readiness", status.NOT_SERVING), ("", status.NOT_SERVING), ("liveness", status.SERVING),
            ("answering", status.SERVING),
        ):  # fmt: skip
            request = health_pb2.HealthCheckRequest(service=name)
            assert (await stub.Check(request)).status == expected, name
            watched = stub.Watch(request)
            assert (await watched.read()).status == expected, name
            watched.cancel()


async def test_a_stream_ends_with_its_exchange(either_gateway: Gateway) -> None:
    one = either_gateway.exchange()
    await one.routed(completion())
    await one.answered(ANSWER)
    assert await one.call.read() is grpc.aio.EOF
    assert await one.call.code() == grpc.StatusCode.OK


async def test_a_router_that_ends_answers_what_has_begun_and_lets_go_of_the_rest(
    tmp_path: Path, transport: str
) -> None:
    tables = f'[[models]]\nname = "demo"\n{QUIET}{PODS}'
    async with AsyncExitStack() as stack:
        ending_later = running_router(tmp_path, tables, transport=transport, drain_seconds=5)
        router, _ = await stack.enter_async_context(ending_later)
        async with grpc.aio.insecure_channel(router.address) as channel:
            gateway = Gateway(router, channel)
            waiting, begun = gateway.exchange(), gateway.exchange()
            await waiting.routed(completion())
            await begun.request()
            await begun.body(b"{", ends=False)
            # An exchange has begun for the router once it has read its first message.
            await gateway.until_it_is("warmpath_endpoint_picker_held_bytes", 1)
            ending = asyncio.create_task(stack.aclose())
            assert await waiting.call.read() is grpc.aio.EOF
            assert await waiting.call.code() == grpc.StatusCode.OK
            late = gateway.exchange()
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await late.read()
            assert details_of(raised.value).reason == "ENDING"
            await begun.body(b"}")
            assert len((await begun.destination()).endpoints) == 2
            assert await begun.passed() == b"{}"
            await ending
