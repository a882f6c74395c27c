"""The transport of `warmpath.openai`: requests go to picked pods, by httpx2's clients and by OpenAI's own."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import httpx2
import pytest
from aiohttp import web

import warmpath
from tests.lab.simworker.local_worker import LocalWorker
from tests.router.pick_stand import pod, standing
from tests.waiting import until
from tests.warmpath.client.scripted_router import Refuse, ScriptedRouter, scripted, with_reason
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb

AT_ONCE = warmpath.Retry(first_seconds=0.0, most_seconds=0.0)
AWAY = Refuse(grpc.StatusCode.UNAVAILABLE)
KINDS = pytest.mark.parametrize("kind", ["asyncio", "blocking"])
PATH = "/v1/completions"
PROMPT = list(range(100, 140))
"""Ten blocks of four."""


class Answer(NamedTuple):
    status: int
    headers: Any
    text: str


async def post(
    kind: str, router: str, url: str, body: Any, *, chunks: int | None = None, **options: Any
) -> Answer:
    """Post a body through the transport; read the response, or only so many chunks of it."""
    if kind == "asyncio":
        async with warmpath.AsyncClient(router, model="demo", retry=AT_ONCE) as client:
            transport = warmpath.openai(client, timeout=60, **options)
            async with (
                httpx2.AsyncClient(transport=transport) as http,
                http.stream("POST", url, json=body) as response,
            ):
                read = b""
                async for number, chunk in anumbered(response.aiter_raw()):
                    read += chunk
                    if number == chunks:
                        break
        return Answer(response.status_code, response.headers, read.decode())

    def blocking() -> Answer:
        with warmpath.Client(router, model="demo", retry=AT_ONCE) as client:
            transport = warmpath.openai(client, timeout=60, **options)
            with (
                httpx2.Client(transport=transport) as http,
                http.stream("POST", url, json=body) as response,
            ):
                read = b""
                for number, chunk in enumerate(response.iter_raw(), 1):
                    read += chunk
                    if number == chunks:
                        break
        return Answer(response.status_code, response.headers, read.decode())

    return await asyncio.to_thread(blocking)


async def anumbered(chunks: AsyncIterator[bytes]) -> AsyncIterator[tuple[int, bytes]]:
    number = 0
    async for chunk in chunks:
        number += 1
        yield number, chunk


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as held:
        return f"127.0.0.1:{held.getsockname()[1]}"


@asynccontextmanager
async def fleet(folder: Path) -> AsyncIterator[str]:
    """Run two workers and a router; provide the router's address."""
    async with (
        LocalWorker() as one, LocalWorker() as other,
        standing(
            folder,
            "".join(
                pod(f"pod-{number}", worker.address, events=worker.events, replay=worker.replay)
                for number, worker in enumerate((one, other))
            ),
        ) as router,
        warmpath.AsyncClient(router.address) as client,
    ):  # fmt: skip
        await until(lambda: known(client))
        yield router.address


async def known(client: warmpath.AsyncClient) -> bool:
    return all(pod.ready for pod in (await client.pods()).pods)


async def decided(address: str, count: int) -> list[pb.Decision]:
    """Return all decisions of a router, oldest first, once so many have ended; nothing is booked then."""
    async with warmpath.AsyncClient(address) as client:

        async def over() -> list[pb.Decision]:
            found = list((await client.decisions()).decisions)[::-1]
            ends = (pb.Decision.FINISHED, pb.Decision.FAILED)
            return found if sum(one.state in ends for one in found) == count else []

        found: list[pb.Decision] = await until(over)
        assert [rank.running for pod in (await client.pods()).pods for rank in pod.ranks] == [0, 0]
        return found


@KINDS
async def test_a_prompt_goes_where_its_beginning_is_and_the_router_learns_how_it_went(
    tmp_path: Path, kind: str
) -> None:
    body = {"model": "demo", "prompt": PROMPT, "max_tokens": 3}
    streamed = body | {"stream": True, "stream_options": {"include_usage": True}}
    async with fleet(tmp_path) as router:
        answers = [
            await post(kind, router, f"http://nowhere.invalid{PATH}", one)
            for one in (body, streamed)
        ]
        first, second = await decided(router, 2)
    assert [one.status for one in answers] == [200, 200]
    assert answers[1].text.endswith("data: [DONE]\n\n")
    assert second.pod == first.pod
    assert [one.state for one in (first, second)] == [pb.Decision.FINISHED] * 2
    assert (first.cached_tokens, second.cached_tokens) == (0, 36)
    # A response in one piece does not tell when its first token was there.
    assert (first.HasField("ttft"), second.HasField("ttft")) == (False, True)


@KINDS
async def test_openai_s_own_client_gets_its_answer_from_the_picked_pod(
    tmp_path: Path, kind: str
) -> None:
    openai = pytest.importorskip("openai")
    asked: dict[str, Any] = {"model": "demo", "prompt": PROMPT, "max_tokens": 3, "stream": True}
    asked["stream_options"] = {"include_usage": True}
    there = {"base_url": "http://nowhere.invalid/v1", "api_key": "none"}
    async with fleet(tmp_path) as router:
        if kind == "asyncio":
            async with (
                warmpath.AsyncClient(router) as client,
                httpx2.AsyncClient(transport=warmpath.openai(client, timeout=60)) as http,
            ):
                asker = openai.AsyncOpenAI(http_client=http, **there)
                chunks = [chunk async for chunk in await asker.completions.create(**asked)]
                with pytest.raises(openai.NotFoundError, match="no model is called 'other'"):
                    await asker.completions.create(model="other", prompt=PROMPT)
        else:

            def blocking() -> list[Any]:
                with (
                    warmpath.Client(router) as client,
                    httpx2.Client(transport=warmpath.openai(client, timeout=60)) as http,
                ):
                    asker = openai.OpenAI(http_client=http, **there)
                    with pytest.raises(openai.NotFoundError, match="no model is called 'other'"):
                        asker.completions.create(model="other", prompt=PROMPT)
                    return list(asker.completions.create(**asked))

            chunks = await asyncio.to_thread(blocking)
        [decision] = await decided(router, 1)
    assert chunks[-1].usage.completion_tokens == 3
    # OpenAI's client stops to read at the last event.
    assert decision.state == pb.Decision.FINISHED
    assert decision.HasField("ttft")
    assert decision.HasField("cached_tokens")


@pytest.fixture
async def router() -> AsyncIterator[ScriptedRouter]:
    async with scripted() as router:
        router.only = "Pick"
        yield router


@asynccontextmanager
async def engine(
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> AsyncIterator[tuple[str, list[web.Request]]]:
    """Run an engine; provide its address and what it is asked."""
    seen: list[web.Request] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        seen.append(request)
        await request.read()
        return await answer(request)

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield "{}:{}".format(*runner.addresses[0]), seen
    finally:
        await runner.cleanup()


async def json_answer(_: web.Request) -> web.StreamResponse:
    return web.json_response({"usage": {"prompt_tokens": 9, "completion_tokens": 2}})


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    while True:
        try:
            await response.write(b'data: {"choices": [{"text": "a"}]}\n\n')
        except ConnectionResetError:
            return response


def reports(router: ScriptedRouter) -> list[pb.Report]:
    found = router.reports()
    for one in found:
        one.booking_id = ""
    return found


def picks(*addresses: str) -> pb.PickResponse:
    return pb.PickResponse(
        candidates=[
            pb.Candidate(pod=f"pod-{number}", rank=number, address=address)
            for number, address in enumerate(addresses)
        ]
    )


@KINDS
async def test_a_pod_that_cannot_be_reached_is_left_for_the_next_one(
    router: ScriptedRouter, kind: str
) -> None:
    async with engine(json_answer) as (address, seen):
        router.script.append(picks(closed_port(), address))
        answer = await post(kind, router.address, f"http://nowhere.invalid{PATH}?a=b", {"n": 1})
        assert (answer.status, len(seen)) == (200, 1)
        assert (seen[0].path_qs, await seen[0].text()) == (f"{PATH}?a=b", '{"n":1}')
        assert (seen[0].headers["host"], seen[0].headers["x-data-parallel-rank"]) == (address, "1")
    event, report = pb.ReportRequest, pb.Report
    assert reports(router) == [
        report(event=event.STARTED, pod="pod-1", rank=1),
        report(event=event.FINISHED, prompt_tokens=9, output_tokens=2),
    ]


@KINDS
async def test_where_no_pod_can_be_reached_the_caller_gets_the_error(
    router: ScriptedRouter, kind: str
) -> None:
    router.script.append(picks(closed_port(), closed_port()))
    with pytest.raises(httpx2.ConnectError):
        await post(kind, router.address, f"http://nowhere.invalid{PATH}", {})
    assert reports(router)[-1] == pb.Report(event=pb.ReportRequest.FAILED)


@KINDS
async def test_a_response_that_is_left_or_an_error_is_reported_as_failed(
    router: ScriptedRouter, kind: str
) -> None:
    async def refuse(_: web.Request) -> web.StreamResponse:
        return web.json_response({"error": "bad"}, status=400)

    async with engine(endless) as (streaming, _), engine(refuse) as (refusing, _):
        router.script.extend([picks(streaming), picks(refusing)])
        url = f"http://nowhere.invalid{PATH}"
        await post(kind, router.address, url, {}, chunks=1)
        assert (await post(kind, router.address, url, {})).status == 400
    event, report = pb.ReportRequest, pb.Report
    assert reports(router) == [
        report(event=event.FIRST_TOKEN), report(event=event.FAILED), report(event=event.FAILED),
    ]  # fmt: skip


@KINDS
async def test_without_a_router_requests_go_to_their_own_host(
    router: ScriptedRouter, kind: str
) -> None:
    router.script.extend([AWAY] * 3)
    async with engine(json_answer) as (address, seen):
        answer = await post(kind, router.address, f"http://{address}{PATH}", {"model": "m"})
    assert (answer.status, len(seen)) == (200, 1)


@KINDS
@pytest.mark.parametrize(
    ("reason", "status"), [("NO_POD", 503), ("QUEUE_FULL", 429), ("UNKNOWN_MODEL", 404)]
)
async def test_a_refusal_of_the_router_is_the_response(
    router: ScriptedRouter, kind: str, reason: str, status: int
) -> None:
    refused = with_reason(grpc.StatusCode.FAILED_PRECONDITION, reason)
    later = (*refused.trailing, ("grpc-retry-pushback-ms", "1500"))
    router.script.append(Refuse(refused.code, refused.text, later))
    answer = await post(kind, router.address, f"http://nowhere.invalid{PATH}", {})
    assert (answer.status, answer.headers["retry-after"]) == (status, "2")
    assert f'"code":"{reason}"' in answer.text


@KINDS
async def test_chats_and_completions_are_read_and_other_requests_go_by_load(
    router: ScriptedRouter, kind: str
) -> None:
    async with engine(json_answer) as (address, _):
        for path in ("/v1/chat/completions", PATH, "/v1/embeddings"):
            router.script.append(picks(address))
            url = f"http://nowhere.invalid{path}"
            await post(kind, router.address, url, {"model": "x"}, tenant="t", session_final=True)
    asked = [one for method, one in router.asked if method == "Pick"]
    assert [one.prompt for one in asked] == [
        pb.Prompt(model="x", chat_body=b'{"model":"x"}'),
        pb.Prompt(model="x", completions_body=b'{"model":"x"}'),
        pb.Prompt(model="x"),
    ]
    assert {(one.tenant, one.session_final) for one in asked} == {("t", True)}
    assert all(one.client.startswith("python-httpx2/") for one in asked)
