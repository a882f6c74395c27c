"""A request that a pod does not serve goes to its fall-backs, unless its answer has begun."""

import json
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port

from warmpath.lab.demo.traffic import Part, prepare
from warmpath.lab.demo.traffic_run import run_traffic
from warmpath.lab.local.choices import Chooser, PodChoice
from warmpath.lab.local.measure import TrafficRun
from warmpath.lab.local.tokenizer import TEMPLATE, write_tokenizer
from warmpath.lab.simulate.closed_loop import ClosedLoop
from warmpath.lab.simulate.traffic.requests import LoggedRequest
from warmpath.lab.simulate.traffic.sessions import Session, Thread
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


class Noted(Chooser):
    """Chooses the pods in their order; notes its calls."""

    def __init__(self, pods: int) -> None:
        self._choice = PodChoice(tuple(range(pods)))
        self.calls: list[tuple[object, ...]] = []

    async def choose(self, packed: bytes) -> PodChoice:
        self.calls.append(("chosen", len(packed)))
        return self._choice

    async def fell_back(self, choice: PodChoice, pod: int) -> None:
        del choice
        self.calls.append(("fell back", pod))

    async def finished(self, choice: PodChoice, cached: int | None) -> None:
        del choice
        self.calls.append(("finished", cached))


def request(tokens: int, at: float = 0.0, pause: float | None = None) -> LoggedRequest:
    return LoggedRequest(at, tokens, 1, (7,), "s", pause=pause)


async def sent(
    addresses: Sequence[str], *requests: LoggedRequest, until: float = inf
) -> tuple[TrafficRun, Noted]:
    """Send a session, of one request by default, to pods at these addresses, in this order."""
    chooser = Noted(len(addresses))
    part = Part([Session("s", [Thread(requests or [request(8)])])], 16)
    run = await run_traffic(
        ClosedLoop(part.sessions, rng=Random(0)), [*prepare(part)], chooser, addresses,
        speed=100.0, progress=lambda _: None, until=until,
    )  # fmt: skip
    return run, chooser


async def test_a_sessions_request_comes_its_pause_after_the_answer_before(
    addresses: dict[str, str],
) -> None:
    turns = request(8, at=5.0), request(9, pause=3.0), request(10, pause=0.0)
    run, chooser = await sent([addresses["answer"]], *turns)
    first, second, third = run.served
    assert first.arrived == pytest.approx(5.0)
    assert second.arrived >= first.arrived + first.finished + 3.0
    assert third.arrived >= second.arrived + second.finished
    assert [size for kind, size in chooser.calls if kind == "chosen"] == [32, 36, 40]
    early, _ = await sent([addresses["answer"]], *turns, until=7.0)
    assert len(early.served) == 1


@pytest.mark.parametrize("first", ["nobody", "end_early", "be_ill"])
async def test_a_request_falls_back_before_its_first_token(
    addresses: dict[str, str], first: str
) -> None:
    result, policy = await sent([addresses[first], addresses["nobody"], addresses["answer"]])
    assert (result.failed, result.fell_back, result.problem) == (0, 1, "")
    [served] = result.served
    assert (served.pod, served.cached_tokens) == (2, 3)
    assert policy.calls[1:] == [("fell back", 1), ("fell back", 2), ("finished", 3)]


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
    assert policy.calls[1:] == [("finished", None)]


async def test_a_request_that_no_pod_serves_fails_once(addresses: dict[str, str]) -> None:
    result, policy = await sent([addresses["be_ill"], addresses["nobody"]])
    assert (result.failed, result.fell_back) == (1, 1)
    assert result.problem == f"{addresses['nobody']} cannot be reached"
    assert policy.calls[-1] == ("finished", None)


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
