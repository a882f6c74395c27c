"""A request that a pod does not serve goes to its fall-backs, unless its answer has begun; policies that know no caches."""

import json
from array import array
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port

from warmpath.lab.local.measure import TrafficRun
from warmpath.lab.local.rules import LeastLoad, PodChoice, RoundRobin
from warmpath.lab.local.tokenizer import TEMPLATE, write_tokenizer
from warmpath.lab.local.traffic_run import prepare, run_traffic
from warmpath.lab.local.workload import Arrival
from warmpath.lab.simworker.server.text import FolderText
from warmpath.prefixstore.chats.chat import Chat, ModelTemplate
from warmpath.prefixstore.chats.template import ChatTemplate

USAGE = {"usage": {"prompt_tokens_details": {"cached_tokens": 3}}}


async def answer(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"data: {}\n\n")
    await response.write(f"data: {json.dumps(USAGE)}\n\n".encode())
    return response


async def break_off(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"data: {}\n\n")
    assert request.transport is not None
    request.transport.close()
    return response


async def end_early(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def refuse(request: web.Request) -> web.Response:
    del request
    return web.Response(status=400, text="too long")


async def be_ill(request: web.Request) -> web.Response:
    del request
    return web.Response(status=503, text="ill")


@pytest.fixture
async def addresses() -> AsyncIterator[dict[str, str]]:
    servers = {}
    for handler in (answer, break_off, end_early, refuse, be_ill):
        app = web.Application()
        app.router.add_post("/v1/completions", handler)
        servers[handler.__name__] = TestServer(app)
    for server in servers.values():
        await server.start_server()
    yield {
        "nobody": f"127.0.0.1:{unused_port()}",
        **{name: f"127.0.0.1:{server.port}" for name, server in servers.items()},
    }
    for server in servers.values():
        await server.close()


class Noted(RoundRobin):
    """Notes its calls."""

    def __init__(self, pods: int) -> None:
        super().__init__(pods)
        self.calls: list[tuple[object, ...]] = []

    async def fell_back(self, choice: PodChoice, left: int, pod: int) -> None:
        del choice
        self.calls.append(("fell back", left, pod))

    async def finished(self, choice: PodChoice, pod: int, cached: int | None) -> None:
        del choice
        self.calls.append(("finished", pod, cached))


async def sent(addresses: Sequence[str]) -> tuple[TrafficRun, Noted]:
    """Send one request to pods at these addresses, in this order."""
    policy = Noted(len(addresses))
    requests = prepare([Arrival(0.0, array("I", range(8)), 1)])
    run = await run_traffic(requests, policy, addresses, speed=1.0, progress=lambda _: None)
    return run, policy


@pytest.mark.parametrize("first", ["nobody", "end_early", "be_ill"])
async def test_a_request_falls_back_before_its_first_token(
    addresses: dict[str, str], first: str
) -> None:
    result, policy = await sent([addresses[first], addresses["nobody"], addresses["answer"]])
    assert (result.failed, result.fell_back, result.problem) == (0, 1, "")
    [served] = result.served
    assert (served.pod, served.cached_tokens) == (2, 3)
    assert policy.calls == [("fell back", 0, 1), ("fell back", 1, 2), ("finished", 2, 3)]


@pytest.mark.parametrize(
    ("first", "why"),
    [("break_off", "broke off after its first token"), ("refuse", "400: too long")],
)
async def test_an_answer_that_broke_off_and_a_refused_request_fail(
    addresses: dict[str, str], first: str, why: str
) -> None:
    result, policy = await sent([addresses[first], addresses["answer"]])
    assert (result.failed, result.fell_back, result.served) == (1, 0, [])
    assert why in result.problem
    assert policy.calls == [("finished", 0, None)]


async def test_a_request_that_no_pod_serves_fails_once(addresses: dict[str, str]) -> None:
    result, policy = await sent([addresses["be_ill"], addresses["nobody"]])
    assert (result.failed, result.fell_back) == (1, 1)
    assert result.problem == f"{addresses['nobody']} cannot be reached"
    assert policy.calls[-1] == ("finished", 1, None)


CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}


@pytest.mark.parametrize(
    "said",
    [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "assistant", "tool_calls": [CALL]},
    ],
)
def test_a_message_without_content_has_an_empty_text(tmp_path: Path, said: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": "Look."}, said]
    text = "user: Look.\nassistant: \nassistant:"
    router = ChatTemplate(ModelTemplate(TEMPLATE), lambda: datetime.now(UTC))
    assert router.render(Chat(messages)) == text
    write_tokenizer(tmp_path)
    engine = FolderText(tmp_path)
    assert engine.detokenize(engine.render(messages, {})) == text


async def test_round_robin_goes_round() -> None:
    policy = RoundRobin(3)
    assert [(await policy.choose(b"")).pods[0] for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


async def test_least_load_takes_the_pod_with_the_fewest_in_flight() -> None:
    policy = LeastLoad(3)
    choices = [await policy.choose(b"") for _ in range(3)]
    assert [choice.pods[0] for choice in choices] == [0, 1, 2]
    await policy.finished(choices[1], 1, 0)
    assert (await policy.choose(b"")).pods[0] == 1


async def test_least_load_breaks_ties_by_who_waited_longest() -> None:
    policy = LeastLoad(2)
    for expected in (0, 1, 0, 1):
        choice = await policy.choose(b"")
        assert choice.pods[0] == expected
        await policy.finished(choice, expected, None)


async def test_fall_backs_are_all_other_pods_and_a_request_counts_where_it_went() -> None:
    assert (await RoundRobin(3).choose(b"")).pods == (0, 1, 2)
    policy = LeastLoad(3)
    choice = await policy.choose(b"")
    assert choice.pods == (0, 1, 2)
    await policy.fell_back(choice, 0, 1)
    assert [(await policy.choose(b"")).pods[0] for _ in range(2)] == [2, 0]
    await policy.finished(choice, 1, 0)
    assert (await policy.choose(b"")).pods[0] == 1
