"""The real Envoy in front of a router and simulated engines, with the configuration of its page.

One file, since all tests start the same Envoy.
"""

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from aiohttp import web

from tests.lab.simworker.local_worker import LocalWorker
from tests.router.endpoint_picker.behind_envoy import (
    FAIL_CLOSE,
    FILTER,
    REQUEST_MODE,
    Change,
    Echo,
    Front,
    config,
    front,
    full_duplex,
)
from tests.router.endpoint_picker.gateway import IDS, Gateway, asking
from tests.router.pick_stand import QUIET, pod
from tests.servers.http import listening
from tests.waiting import until
from warmpath.h2grpc.http2.limits import Http2Limits
from warmpath.lab.local.cluster import WorkerSettings
from warmpath.lab.local.ports import HeldPorts
from warmpath.proto.pb.warmpath.v1 import router_pb2
from warmpath.router.calls import server
from warmpath.router.endpoint_picker import service

MODES = {"buffered": [], "full-duplex": full_duplex()}
TOKEN = b'data: {"choices":[{"text":"a"}]}\n\n'
SETTINGS = WorkerSettings(blocks=4000, block_size=16, speed=1000.0, vocab_size=2048)


@pytest.fixture(params=MODES)
def changes(request: pytest.FixtureRequest) -> list[Change]:
    return list(MODES[request.param])


@asynccontextmanager
async def echoing(
    folder: Path,
    changes: Sequence[Change] | Callable[[Echo, Echo], Sequence[Change]] = (),
    *,
    picker: str = "",
    is_watched: bool = False,
) -> AsyncIterator[tuple[Front, Gateway, Echo, Echo]]:
    """Run two engines that keep what they get, a router that picks them, and Envoy in front.

    With `is_watched` the router only watches.
    """
    async with Echo() as one, Echo() as two:
        tables = QUIET + pod("pod-1", one.address) + pod("pod-2", two.address)
        async with asking(folder, tables=tables, picker=picker) as gateway:
            addresses = [one.address, two.address]
            changed = changes(one, two) if callable(changes) else changes
            async with front(config([gateway.router.address], addresses, changed)) as envoy:
                if not is_watched:
                    await envoy.until_routers_are_asked()
                for echo in (one, two):
                    echo.requests.clear()
                yield envoy, gateway, one, two


@asynccontextmanager
async def simulating(
    folder: Path, model_folder: Path, changes: Sequence[Change] = (), *options: Sequence[str]
) -> AsyncIterator[tuple[Front, Gateway, list[LocalWorker]]]:
    """Run two simulated engines with a tokenizer, a router that follows them, and Envoy in front."""
    async with AsyncExitStack() as stack:
        workers = []
        tables = ""
        for number, more in enumerate(options or ((), ()), 1):
            worker = LocalWorker.of(
                SETTINGS, f"--tokenizer={model_folder}", "--stream-interval=1", *more
            )
            workers.append(await stack.enter_async_context(worker))
            tables += pod(
                f"pod-{number}", worker.address, events=worker.events, replay=worker.replay
            )
        model = f'tokenizer = "{model_folder}"'
        gateway = await stack.enter_async_context(asking(folder, tables=tables, model=model))
        addresses = [one.address for one in workers]

        async def is_exact() -> bool:
            listed = await gateway.stub.ListPods(router_pb2.ListPodsRequest(), timeout=30)
            levels = {rank.trust.level for one in listed.pods for rank in one.ranks}
            ready = all(one.ready and one.served_models for one in listed.pods)
            return ready and levels == {router_pb2.Trust.EXACT}

        await until(is_exact)
        text = config([gateway.router.address], addresses, changes)
        envoy = await stack.enter_async_context(front(text))
        await envoy.until_routers_are_asked()
        yield envoy, gateway, workers


async def test_streamed_chats_stay_where_they_are_cached(
    tmp_path: Path, model_folder: Path, changes: list[Change]
) -> None:
    async with simulating(tmp_path, model_folder, changes) as (envoy, gateway, _):
        said = [{"role": "user", "content": "one two three four five six seven eight " * 20}]
        pods, cached = set(), []
        for turn in range(4):
            body = {
                "model": "demo", "messages": said, "stream": True, "max_tokens": 8,
                "stream_options": {"include_usage": True},
            }  # fmt: skip
            answer = await envoy.post(body, path="/v1/chat/completions")
            assert answer.status == 200, answer.body
            events = [line for line in answer.body.split(b"\n\n") if line]
            assert events[-1] == b"data: [DONE]"
            told = [json.loads(one.removeprefix(b"data: ")) for one in events[:-1]]
            usage = next(one["usage"] for one in told if one.get("usage"))
            newest = await gateway.newest()
            assert newest.state == router_pb2.Decision.FINISHED
            assert newest.ttft > 0
            assert newest.prompt_tokens == usage["prompt_tokens"]
            assert newest.cached_tokens == usage["prompt_tokens_details"]["cached_tokens"]
            assert newest.pod == answer.pod
            pods.add(answer.pod)
            cached.append(answer.cached)
            if turn:
                # An event of the last answer's end may still be on its way.
                assert 0 <= newest.cached_tokens - answer.cached <= SETTINGS.block_size
                assert answer.cached > 0
                assert float(answer.headers["x-warmpath-saved-seconds"]) > 0
            text = "".join(
                choice["delta"].get("content") or "" for one in told for choice in one["choices"]
            )
            said += [{"role": "assistant", "content": text}, {"role": "user", "content": "go on"}]
            held = 16 * ((usage["prompt_tokens"] - 1) // 16)
            await until_held(gateway, answer.pod, held)
        assert len(pods) == 1
        assert cached == sorted(cached)


async def until_held(gateway: Gateway, name: str, tokens: int) -> None:
    async def is_held() -> bool:
        listed = await gateway.stub.ListPods(router_pb2.ListPodsRequest(), timeout=30)
        [one] = [one for one in listed.pods if one.id == name]
        return sum(tier.blocks for tier in one.ranks[0].tiers) * 16 >= tokens

    await until(is_held)


async def test_large_bodies_in_many_chunks_arrive_as_they_were_sent(
    tmp_path: Path, changes: list[Change]
) -> None:
    whole = json.dumps({"model": "demo", "prompt": list(range(300_000))}).encode()

    async def chunks() -> AsyncIterator[bytes]:
        for at in range(0, len(whole), 10_000):
            yield whole[at : at + 10_000]

    async with echoing(tmp_path, changes) as (envoy, gateway, one, two):
        one.answer = two.answer = bytes(range(256)) * 4000
        async with envoy.http.post(
            "/v1/completions", data=chunks(), headers={"content-type": "application/json"}
        ) as response:
            assert response.status == 200
            assert await response.read() == one.answer
        [(_, _, body)] = one.requests + two.requests
        assert hashlib.sha256(body).digest() == hashlib.sha256(whole).digest()
        assert (await gateway.newest()).prompt_tokens == 300_000


@pytest.mark.parametrize("mode", ["BUFFERED_PARTIAL", "FULL_DUPLEX_STREAMED"])
async def test_a_body_longer_than_envoys_buffer_or_the_limit_is_served_by_load(
    tmp_path: Path, mode: str
) -> None:
    changes = [
        (REQUEST_MODE, f"request_body_mode: {mode}"),
        ("request_trailer_mode: SKIP", "request_trailer_mode: SEND"),
        ("per_connection_buffer_limit_bytes: 8388608", "per_connection_buffer_limit_bytes: 65536"),
    ]
    whole = json.dumps({"model": "demo", "prompt": "x" * 20_000_000}).encode()
    async with echoing(tmp_path, changes) as (envoy, gateway, one, two):
        assert (await envoy.post(whole)).status == 200
        [(_, _, body)] = one.requests + two.requests
        assert body == whole
        assert (await gateway.newest()).model == "demo"


async def test_a_body_longer_than_envoys_buffer_is_refused_at_once_as_documented(
    tmp_path: Path,
) -> None:
    async with echoing(tmp_path, []) as (envoy, _, one, two):
        for size in (8_388_700, 9_000_000, 20_000_000):
            whole = json.dumps({"model": "demo", "prompt": "x" * size}).encode()
            assert (await envoy.post(whole, expect="100-continue")).status == 413
        whole = json.dumps({"model": "demo", "prompt": "x" * 8_000_000}).encode()
        assert (await envoy.post(whole, expect="100-continue")).status == 200
        [(_, _, body)] = one.requests + two.requests
        assert body == whole


async def test_spoofed_headers_neither_choose_nor_reach_an_engine(
    tmp_path: Path, changes: list[Change]
) -> None:
    async with echoing(tmp_path, changes) as (envoy, _, one, two):
        headers = [
            ("x-gateway-destination-endpoint", "9.9.9.9:1"),
            ("x-gateway-destination-endpoint", two.address),
            ("x-gateway-destination-endpoint-subset", "9.9.9.9:1"),
            ("X-Warmpath-Pod", "pod-9"), ("x-data-parallel-rank", "7"), ("x-other", "stays"),
        ]  # fmt: skip
        url, body = "/v1/completions", json.dumps({"model": "demo", "prompt": IDS})
        kept = {"content-type": "application/json"}
        sent = [*headers, *kept.items()]
        async with envoy.http.post(url, data=body, headers=sent) as response:
            pod_id = response.headers["x-warmpath-pod"]
            assert response.status == 200
        served = {"pod-1": one, "pod-2": two}[pod_id]
        [(_, seen, _)] = served.requests
        told = [value for name, value in seen if name == "x-gateway-destination-endpoint"]
        assert [value.split(",")[0] for value in told] == [served.address]
        names = {name for name, _ in seen}
        assert not names & {"x-gateway-destination-endpoint-subset", "x-warmpath-pod"}
        assert "x-data-parallel-rank" not in names
        assert ("x-other", "stays") in seen


async def test_a_subset_from_the_route_is_kept_and_unmatched_is_503(
    tmp_path: Path, changes: list[Change]
) -> None:
    def only(*endpoints: str) -> Change:
        listed = json.dumps(endpoints)
        return FILTER, (
            "                  - name: envoy.filters.http.set_metadata\n"
            "                    typed_config:\n"
            '                      "@type": type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config\n'
            "                      metadata:\n"
            "                        - metadata_namespace: envoy.lb.subset_hint\n"
            f"                          value: {{x-gateway-destination-endpoint-subset: {listed}}}\n{FILTER}"
        )

    own = echoing(tmp_path, lambda _, two: [*changes, only(two.address)])
    async with own as (envoy, _, one, _):
        for _ in range(4):
            answer = await envoy.post({"model": "demo", "prompt": IDS})
            assert (answer.status, answer.pod) == (200, "pod-2")
        assert not one.requests
    async with echoing(tmp_path, [*changes, only("127.0.0.1:1")]) as (envoy, *_):
        answer = await envoy.post({"model": "demo", "prompt": IDS})
        assert answer.status == 503
        assert answer.headers["x-warmpath-reason"] == "SUBSET_UNMATCHED"


async def test_an_engine_that_fails_is_followed_by_its_fall_back(
    tmp_path: Path, changes: list[Change]
) -> None:
    async with echoing(tmp_path, changes) as (envoy, gateway, one, two):
        one.status = 503
        for _ in range(4):
            answer = await envoy.post({"model": "demo", "prompt": IDS})
            assert (answer.status, answer.pod) == (200, "pod-2")
            assert await gateway.decisions()
            assert (await gateway.decisions())[0] == ("FINISHED", "pod-2")
        two.status = 503
        answer = await envoy.post({"model": "demo", "prompt": IDS})
        assert answer.status == 503
        assert "x-warmpath-reason" not in answer.headers, "an engine has said it"
        assert (await gateway.decisions())[0][0] == "FAILED"


async def test_clients_that_go_away_leave_no_booking(tmp_path: Path, changes: list[Change]) -> None:
    async with echoing(tmp_path, changes) as (envoy, gateway, one, two):
        one.pieces = two.pieces = [TOKEN, TOKEN]
        body = json.dumps({"model": "demo", "prompt": IDS, "stream": True})
        headers = {"content-type": "application/json"}
        responses = [
            await envoy.http.post("/v1/completions", data=body, headers=headers) for _ in range(5)
        ]
        for response in responses:
            assert await response.content.readuntil(b"\n\n") == TOKEN
        assert await gateway.metric("warmpath_bookings") == 5
        for response in responses:
            response.close()
        await gateway.until_nothing_is_left()
        assert {state for state, _ in (await gateway.decisions())[:5]} == {"FAILED"}
        while one.cut_off + two.cut_off != 5:
            await asyncio.sleep(0.01)
        # A client that stalls within its body, and goes away.
        host, _, port = envoy.envoy.address.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{"
        writer.write(head.encode())
        await gateway.until_it_is("warmpath_endpoint_picker_streams", 1)
        writer.close()
        await gateway.until_nothing_is_left()


@pytest.mark.parametrize(
    ("changes", "statuses"),
    [
        ([], [200, 200]),
        ([FAIL_CLOSE], [503, 503]),
        ([*full_duplex(), FAIL_CLOSE], [503, 503]),
        # Envoy knows by its health checks that it need not send the body.
        (full_duplex(), [200, 200]),
    ],
    ids=["open", "close", "full-duplex-close", "full-duplex-open"],
)
async def test_without_a_router_requests_go_on_or_fail_at_once(
    changes: list[Change], statuses: list[int], held_ports: HeldPorts
) -> None:
    async with Echo() as one, Echo() as two:
        nobody = f"127.0.0.1:{held_ports.take()}"
        async with front(config([nobody], [one.address, two.address], changes)) as envoy:
            begun = time.monotonic()
            post = await envoy.post({"model": "demo", "prompt": IDS})
            async with envoy.http.get("/v1/models") as get:
                assert [post.status, get.status] == statuses
            assert time.monotonic() - begun < 5, "no time-out was waited for"
            assert len(one.requests) + len(two.requests) == statuses.count(200)
            if statuses == [200, 200]:
                assert len(one.requests) == len(two.requests) == 1, "pods in turn"


async def test_requests_are_shadowed_where_envoy_only_shows_them(tmp_path: Path) -> None:
    changes = [
        ("failure_mode_allow: true", "observability_mode: true\n                      response_attributes: [upstream.address]"),
        ("                      status_on_error: {code: ServiceUnavailable}\n", ""),
        (REQUEST_MODE, "request_body_mode: STREAMED"),
    ]  # fmt: skip
    watched = echoing(tmp_path, changes, is_watched=True, picker="fall-backs = 0")
    async with watched as (envoy, gateway, _, _):
        first = count(100)

        async def tells_of_a_miss() -> bool:
            # Envoy sends the second one to the other pod.
            body = {"model": "demo", "prompt": [next(first), *IDS]}
            for _ in range(2):
                answer = await envoy.post(body)
                assert answer.status == 200
                assert "x-warmpath-pod" not in answer.headers
            return await gateway.metric('warmpath_shadow_better_requests_total{model="demo"}') > 0

        await until(tells_of_a_miss)
        assert not await gateway.metric('warmpath_pick_requests_total{pod="pod-1",model="demo"}')


async def test_an_adapter_that_only_an_engine_lists_is_picked_for_by_its_name(
    tmp_path: Path, model_folder: Path
) -> None:
    loaded = ("--lora-modules", "new=/adapters/new")
    async with simulating(tmp_path, model_folder, (), loaded, ()) as (envoy, gateway, _):
        for _ in range(3):
            answer = await envoy.post({"model": "new", "prompt": IDS, "max_tokens": 2})
            assert (answer.status, answer.pod) == (200, "pod-1"), answer.body
        newest = await gateway.newest()
        assert (newest.model, newest.prompt_tokens) == ("demo", 200)
        answer = await envoy.post({"model": "nobody", "prompt": IDS})
        assert answer.status == 404
        assert b"nobody" in answer.body, "the engine's own words"


async def test_a_response_has_the_name_of_the_model_that_its_client_gave(
    tmp_path: Path, changes: list[Change]
) -> None:
    picker = 'rewrites = { "gpt" = "demo" }'
    chunk = b'data: {"model":"demo","choices":[{"text":"a"}]}\n\n'
    async with echoing(tmp_path, changes, picker=picker) as (envoy, _, one, two):
        for echo in (one, two):
            echo.goes_on.set()
            echo.answer = b'{"id": "1", "model": "demo", "usage": null}'
        answer = await envoy.post({"model": "gpt", "prompt": IDS})
        assert answer.body == b'{"id": "1", "model": "gpt", "usage": null}'
        assert answer.headers.get("content-length") in (None, str(len(answer.body)))
        for echo in (one, two):
            echo.pieces = [chunk, chunk, b"data: [DONE]\n\n"]
        answer = await envoy.post({"model": "gpt", "prompt": IDS, "stream": True})
        renamed = chunk.replace(b"demo", b"gpt")
        assert answer.body == renamed + renamed + b"data: [DONE]\n\n"
        assert {
            json.loads(body)["model"] for echo in (one, two) for _, _, body in echo.requests
        } == {"demo"}
        # A request that asks for the engine's own name gets it.
        answer = await envoy.post({"model": "demo", "prompt": IDS, "stream": True})
        assert answer.body == chunk + chunk + b"data: [DONE]\n\n"


async def test_a_router_that_ends_cuts_off_no_response(tmp_path: Path) -> None:
    async with Echo() as one, Echo() as two, AsyncExitStack() as stack:
        tables = QUIET + pod("pod-1", one.address) + pod("pod-2", two.address)
        gateway = await stack.enter_async_context(asking(tmp_path, tables=tables))
        text = config([gateway.router.address], [one.address, two.address])
        async with front(text) as envoy:
            await envoy.until_routers_are_asked()
            one.pieces = two.pieces = [TOKEN] * 3
            body = json.dumps({"model": "demo", "prompt": IDS, "stream": True})
            headers = {"content-type": "application/json"}
            response = await envoy.http.post("/v1/completions", data=body, headers=headers)
            assert await response.content.readuntil(b"\n\n") == TOKEN
            gateway.until_nothing_is_left = no_wait  # type: ignore[method-assign]
            await stack.aclose()
            one.goes_on.set()
            two.goes_on.set()
            assert await response.content.read() == TOKEN * 2


async def no_wait() -> None:
    """Wait for nothing: the exchange is still open."""


async def test_envoys_resets_of_streams_do_not_count_as_an_attack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "Http2Limits", partial(Http2Limits, resets_per_second=1))
    async with echoing(tmp_path, [FAIL_CLOSE]) as (envoy, *_):
        for _ in range(100):
            assert (await envoy.post({"model": "demo", "prompt": IDS})).status == 200
        assert await envoy.counted("streams_failed") == 0


async def test_a_websocket_is_opened_at_once(
    tmp_path: Path, changes: list[Change], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def echo(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            await socket.send_str(message.data)
        return socket

    async with listening(echo) as engine:
        upgrades = (
            "stat_prefix: inference\n",
            "stat_prefix: inference\n                upgrade_configs: [{upgrade_type: websocket}]\n",
        )
        # A body that is waited for would hold the request up for longer than the test may last.
        monkeypatch.setattr(service, "BODY_SECONDS", 3600.0)
        async with asking(tmp_path, tables=QUIET + pod("pod-1", engine)) as gateway:
            text = config([gateway.router.address], [engine], [FAIL_CLOSE, upgrades, *changes])
            async with front(text) as envoy:
                await envoy.until_routers_are_asked()
                async with envoy.http.ws_connect("/v1/realtime") as socket:
                    await socket.send_str("hi")
                    assert await socket.receive_str() == "hi"
