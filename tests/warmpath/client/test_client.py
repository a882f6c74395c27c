"""Both clients of a router: what is sent, what is sent again, and what an error contains.

One file: each test calls one scripted router.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.servers.certificates import Authority
from tests.warmpath.client.scripted_router import (
    CLIENTS,
    Refuse,
    ScriptedRouter,
    scripted,
    with_reason,
)
from warmpath.client.calls import PodLoad, Prompt
from warmpath.client.connection import Retry
from warmpath.client.credentials import SettingError
from warmpath.client.failure import CallError
from warmpath.client.sync_client import Client
from warmpath.indexer.keys.key import Item, pack_tokens
from warmpath.process.tls import TlsPaths
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb

AWAY = Refuse(grpc.StatusCode.UNAVAILABLE)
BUSY = Refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, trailing=(("grpc-retry-pushback-ms", "1"),))
AT_ONCE = Retry(first_seconds=0.0, most_seconds=0.0)
IDS = [1, 2, 3]


@pytest.fixture
async def router() -> AsyncIterator[ScriptedRouter]:
    async with scripted() as router:
        yield router


@pytest.fixture(params=CLIENTS)
async def client(request: pytest.FixtureRequest, router: ScriptedRouter) -> AsyncIterator[Any]:
    async with CLIENTS[request.param](router.address, model="m", retry=AT_ONCE) as client:
        yield client


async def test_every_call_is_the_contracts_own(router: ScriptedRouter, client: Any) -> None:
    router.script.append(pb.ScoreResponse(prompt_tokens=3))
    assert (await client.score(IDS, pods=["a"], strategy="tiered", explain=True)).prompt_tokens == 3
    prompt = Prompt(IDS, lora="l", cache_salt="s", extra_key="e", items=[Item("image", 1, 2)])
    load = PodLoad("a", 1, running=2, waiting=3, kv_usage=0.5, age=0.25)
    await client.pick(
        prompt, pods=["a"], policy="p", session="s", loads=[load], shadow=True, disaggregated=True,
        booking_id="mine", priority="high", tenant="t", parent_session="p", session_final=True,
        client="agent/1",
    )  # fmt: skip
    await client.explain("text", session="s", loads=[load], priority="high", tenant="t")
    router.script.append(pb.ReportResponse(known=True))
    assert await client.report("mine", "finished", cached_tokens=0, output_tokens=7) is True
    assert (
        await client.report("mine", "started", pod="a", rank=1, prompt_tokens=3, prompt="text")
        is False
    )
    await client.pods("m")
    await client.decisions(5, model="m", pod="a")
    await client.diagnose()
    message = pb.Prompt(model="m", token_ids_packed=pack_tokens(IDS))
    told = pb.PodLoad(pod="a", rank=1, running=2, waiting=3, kv_usage=0.5, age=0.25)
    items = [pb.MultimodalItem(hash="image", offset=1, length=2)]
    full = pb.Prompt(
        model="m", token_ids_packed=pack_tokens(IDS), lora="l", cache_salt="s", extra_key="e",
        multimodal=items,
    )  # fmt: skip
    assert router.asked == [
        ("Score", pb.ScoreRequest(prompt=message, pods=["a"], strategy="tiered", explain=True)),
        (
            "Pick",
            pb.PickRequest(
                prompt=full, pods=["a"], policy="p", session_id="s", loads=[told], shadow=True,
                disaggregated=True, booking_id="mine", priority="high", tenant="t",
                parent_session_id="p", session_final=True, client="agent/1",
            ),
        ),
        (
            "Explain",
            pb.ExplainRequest(
                prompt=pb.Prompt(model="m", text="text"), session_id="s", loads=[told],
                priority="high", tenant="t",
            ),
        ),
        (
            "Report",
            pb.ReportRequest(
                booking_id="mine", event=pb.ReportRequest.FINISHED, cached_tokens=0, output_tokens=7
            ),
        ),
        (
            "Report",
            pb.ReportRequest(
                booking_id="mine", event=pb.ReportRequest.STARTED, pod="a", rank=1, prompt_tokens=3,
                prompt=pb.Prompt(model="m", text="text"),
            ),
        ),
        ("ListPods", pb.ListPodsRequest(model="m")),
        ("ListDecisions", pb.ListDecisionsRequest(limit=5, model="m", pod="a")),
        ("Diagnose", pb.DiagnoseRequest()),
    ]  # fmt: skip


async def test_what_stays_away_is_an_error_after_the_last_attempt(
    router: ScriptedRouter, client: Any
) -> None:
    router.script.extend([AWAY] * 9)
    with pytest.raises(CallError, match="UNAVAILABLE: refused") as raised:
        await client.pods()
    assert router.methods == ["ListPods"] * 3
    error = raised.value
    assert (error.code, error.reason, error.retry_after) == (
        grpc.StatusCode.UNAVAILABLE, None, None,
    )  # fmt: skip


async def test_a_report_that_nobody_takes_is_no_error(
    router: ScriptedRouter, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    router.script.extend([AWAY] * 6)
    assert await client.report("mine", "first_token") is False
    assert await client.report("mine", "finished") is False
    assert router.methods == ["Report"] * 6
    assert caplog.messages == ["the router took no report on a request: UNAVAILABLE: refused"]


@pytest.mark.parametrize(
    ("script", "call", "asked"),
    [
        ([AWAY, AWAY], lambda client: client.score(IDS), ["Score"] * 3),
        ([AWAY], lambda client: client.pick(IDS, booking_id="mine"), ["Pick"] * 2),
        ([BUSY], lambda client: client.pick(IDS), ["Pick"] * 2),
    ],
    ids=["away", "a named pick", "busy"],
)
async def test_a_router_that_is_away_or_busy_for_a_moment_is_asked_again(
    router: ScriptedRouter, client: Any, script: list[Refuse], call: Any, asked: list[str]
) -> None:
    router.script.extend(script)
    await call(client)
    assert router.methods == asked


async def test_a_pick_without_the_callers_name_is_not_made_again_after_a_lost_answer(
    router: ScriptedRouter, client: Any
) -> None:
    router.script.append(AWAY)
    with pytest.raises(CallError):
        await client.pick(IDS)
    assert router.methods == ["Pick"]


async def test_a_busy_router_that_asks_for_more_time_than_is_left_is_an_error_at_once(
    router: ScriptedRouter, client: Any
) -> None:
    later = (("grpc-retry-pushback-ms", "3600000"),)
    router.script.append(Refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, trailing=later))
    with pytest.raises(CallError) as raised:
        await client.score(IDS)
    assert raised.value.retry_after == 3600.0
    assert router.methods == ["Score"]


async def test_an_error_has_the_routers_reason(router: ScriptedRouter, client: Any) -> None:
    router.script.append(with_reason(grpc.StatusCode.UNAVAILABLE, "NO_POD"))
    with pytest.raises(CallError) as raised:
        await client.explain(IDS)
    assert raised.value.reason == "NO_POD"
    # Pods do not come in tenths of a second, and a gateway can go on without a pick.
    assert router.methods == ["Explain"]


async def test_a_call_that_lasts_too_long_ends_at_its_deadline(
    router: ScriptedRouter, client: Any
) -> None:
    await client.pods()
    router.hangs = True
    with pytest.raises(CallError) as raised:
        await client.pods(timeout=0.05)
    assert raised.value.code is grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize("kind", CLIENTS)
async def test_the_token_of_the_file_is_shown_in_every_call(
    router: ScriptedRouter, kind: str, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("correct-horse-battery\n")
    async with CLIENTS[kind](router.address, token_file=file) as client:
        await client.pods()
        _ = [answer async for answer in client.score_stream([IDS])]
    shown = [one["authorization"] for one in router.metadata]
    assert shown == ["Bearer correct-horse-battery"] * 2


@pytest.mark.parametrize("kind", CLIENTS)
def test_files_may_be_named_by_texts(kind: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    shown = authority.certificate("gateway")
    token = tmp_path / "token"
    token.write_text("correct-horse-battery")
    tls = TlsPaths(str(authority.ca), str(shown.cert), str(shown.key))
    assert tls == TlsPaths(authority.ca, shown.cert, shown.key)
    CLIENTS[kind]("127.0.0.1:1", tls=tls, token_file=str(token))
    with pytest.raises(SettingError, match=r"^tls\.ca: there is no file /nope$"):
        CLIENTS[kind]("127.0.0.1:1", tls=TlsPaths("/nope"))
    with pytest.raises(SettingError, match=r"^tls\.cert: needs a key, and a key a cert: give both"):
        CLIENTS[kind]("127.0.0.1:1", tls=TlsPaths(None, "/nope"))
    with pytest.raises(SettingError, match=r"^token_file: /nope: there is no such file"):
        CLIENTS[kind]("127.0.0.1:1", token_file="/nope")


@pytest.mark.parametrize("kind", CLIENTS)
async def test_a_closed_client_makes_no_call(router: ScriptedRouter, kind: str) -> None:
    async with CLIENTS[kind](router.address) as client:
        pass
    with pytest.raises(RuntimeError, match="the client is closed"):
        await client.pods()


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_token_in_plain_text_goes_to_this_machine_only(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("correct-horse-battery")
    with pytest.raises(SettingError, match=r"token_file: would go to router\.example:1 in plain"):
        CLIENTS[kind]("router.example:1", token_file=file)


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize(
    "target",
    [
        "", "foo", ":7400", "127.0.0.1:99999", "http://127.0.0.1:7400", "dns:///router.example",
        "dns:///127.0.0.1:99999", "ipv4:127.0.0.1:1,127.0.0.1:99999", "ipv6:::1", None,
    ],
)  # fmt: skip
def test_an_address_that_is_none_is_refused_before_any_call(kind: str, target: Any) -> None:
    # gRPC would ask port 34463 where 99999 is given.
    with pytest.raises(
        SettingError, match=r"^target: ('.*'|None) is not HOST:PORT, such as 127"
    ) as raised:
        CLIENTS[kind](target)
    assert raised.value.argument == "target"


@pytest.mark.parametrize(
    "target",
    [
        "localhost:1", "[::1]:7400", "unix:/run/router", "unix:///run/router", "unix-abstract:router",
        "dns:router.example:7400", "dns:///router.example:7400", "dns://10.0.0.1/router.example:7400",
        "ipv4:10.0.0.1:1,10.0.0.2:1", "ipv6:[::1]:1,[::2]:1", "xds:///router",
    ],
)  # fmt: skip
def test_each_form_of_an_address_that_grpc_knows_is_taken(target: str) -> None:
    Client(target).close()


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), 1e10, "3"])
async def test_a_timeout_without_sense_is_refused(client: Any, timeout: float) -> None:
    limits = "it must be a number of seconds above 0, at most 1e+09"
    with pytest.raises(SettingError, match=re.escape(f"timeout: is {timeout!r}; {limits}")):
        Client("127.0.0.1:1", timeout=timeout)
    with pytest.raises(SettingError, match=r"^timeout: "):
        await client.score(IDS, timeout=timeout)
    with pytest.raises(SettingError, match=r"^timeout: "):
        _ = [answer async for answer in client.score_stream([IDS], timeout=timeout)]


@pytest.mark.parametrize("field", ["cached_tokens", "prompt_tokens", "output_tokens", "rank"])
@pytest.mark.parametrize("value", [-3, 1 << 32])
async def test_a_figure_that_cannot_be_is_refused_with_its_field_and_limit(
    router: ScriptedRouter, client: Any, field: str, value: int
) -> None:
    with pytest.raises(ValueError, match=f"^{field} is {value}; it must be 0 to 4294967295$"):
        await client.report("mine", "finished", **{field: value})
    with pytest.raises(ValueError, match=f"^limit is {value}; it must be 0 to 4294967295$"):
        await client.decisions(value)
    with pytest.raises(ValueError, match=f"^rank is {value}; it must be 0 to 4294967295$"):
        PodLoad("a", value)
    with pytest.raises(ValueError, match=f"^items: offset is {value}; it must be 0 to 4294967295$"):
        await client.score(Prompt(IDS, items=[Item("image", value, 2)]))
    assert router.methods == []


async def test_an_event_that_is_none_is_not_sent(router: ScriptedRouter, client: Any) -> None:
    with pytest.raises(ValueError, match="event is 'over'; it must be one of started, first_token"):
        await client.report("mine", "over")
    assert router.methods == []


# Streams


async def test_a_stream_answers_each_prompt_by_its_position(
    router: ScriptedRouter, client: Any
) -> None:
    prompts = [IDS, b"", IDS + IDS]
    answers = [answer async for answer in client.score_stream(prompts, pods=["a"], strategy="s")]
    assert [answer.position for answer in answers] == [1, 0, 2]
    found = {one.position: one for one in answers}
    assert found[0].scores is not None
    assert (found[0].scores.prompt_tokens, found[0].error) == (3, None)
    assert found[2].scores is not None
    assert found[2].scores.prompt_tokens == 6
    assert found[1].scores is None
    assert str(found[1].error) == "INVALID_ARGUMENT: no ids"
    assert found[1].error.reason == "BAD_REQUEST"
    assert {tuple(request.pods) for _, request in router.asked} == {("a",)}


async def test_a_stream_that_breaks_off_is_an_error(router: ScriptedRouter, client: Any) -> None:
    router.script.append(with_reason(grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED"))
    with pytest.raises(CallError) as raised:
        _ = [answer async for answer in client.score_stream([IDS])]
    assert (raised.value.code, raised.value.reason) == (
        grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED",
    )  # fmt: skip


async def test_a_prompt_that_cannot_be_sent_is_an_answer_and_the_others_go_on(client: Any) -> None:
    prompts = [IDS, [1, -1], 7, Prompt(text="\ud800"), IDS + IDS]
    answers = [answer async for answer in client.score_stream(prompts)]
    found = {answer.position: answer for answer in answers}
    assert [found[at].scores.prompt_tokens for at in (0, 4)] == [3, 6]
    errors = [found[at].error for at in (1, 2, 3)]
    assert [(error.code, error.reason) for error in errors] == [
        (grpc.StatusCode.INVALID_ARGUMENT, None)
    ] * 3
    assert errors[0].message == "tokens: a token id must be an unsigned 32-bit integer"
    assert [found[at].scores for at in (1, 2, 3)] == [None] * 3
    assert len(answers) == 5


async def test_the_answer_to_a_prompt_that_cannot_be_sent_waits_for_no_other_prompt(
    router: ScriptedRouter,
) -> None:
    answered = asyncio.Event()

    async def prompts() -> AsyncIterator[list[int]]:
        yield IDS
        yield [-1]
        await answered.wait()

    async with CLIENTS["asyncio"](router.address) as client:
        async for answer in client.score_stream(prompts()):
            if answer.error is not None:
                answered.set()
    assert answered.is_set()


async def test_prompts_that_break_off_end_their_stream_with_their_own_error(client: Any) -> None:
    def prompts() -> Iterator[list[int]]:
        yield IDS
        raise OSError("no more of the file")

    with pytest.raises(OSError, match="no more of the file"):
        _ = [answer async for answer in client.score_stream(prompts())]
    with pytest.raises(TypeError):
        _ = [answer async for answer in client.score_stream([IDS], pods=[1])]


@pytest.mark.parametrize("kind", CLIENTS)
async def test_a_stream_that_is_left_early_is_ended(router: ScriptedRouter, kind: str) -> None:
    async with CLIENTS[kind](router.address) as client:
        answers = client.score_stream([IDS] * 10)
        assert (await anext(answers)).position in (0, 1)
        await answers.aclose()
        await client.pods()
