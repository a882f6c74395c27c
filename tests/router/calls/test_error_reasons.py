"""Every error of a running router has the reason why the call failed, on both transports."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.h2grpc.served import BOTH, Caller, new_server
from tests.router.error_details import ErrorDetails, details_of
from tests.router.pick_calls import Codes
from tests.router.pick_stand import QUIET, Stand, pod, prompt, standing
from tests.router.running_router import running_router
from tests.waiting import until
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc
from warmpath.router.admission.in_flight import InFlight
from warmpath.router.calls.intake import Intake
from warmpath.router.calls.pick import PickAnswerer
from warmpath.router.calls.score import Answerer
from warmpath.router.pick.picker import Picker

pytestmark = pytest.mark.parametrize("transport", BOTH)

STATUS = grpc.StatusCode
TABLES = QUIET + pod("a") + '[[models]]\nname = "podless"\n'
UNKNOWN = pb.Prompt(model="unheard-of", token_ids=pb.TokenIds(ids=[1]))
TEXT = pb.Prompt(model="demo", text="hi")


async def refused(call: Any) -> ErrorDetails:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return details_of(raised.value)


def raw(stand: Stand, method: str, message: bytes) -> Any:
    channel = grpc.aio.insecure_channel(stand.address)
    return channel.unary_unary(f"/warmpath.v1.Router/{method}")(message)


@pytest.fixture
async def stand(tmp_path: Path, transport: str) -> AsyncIterator[Stand]:
    async with standing(tmp_path, TABLES, transport=transport) as stand:
        yield stand


CASES: list[tuple[str, Any, STATUS, str, dict[str, str]]] = [
    ("Score", pb.ScoreRequest(prompt=UNKNOWN), STATUS.NOT_FOUND, "UNKNOWN_MODEL", {}),
    ("Pick", pb.PickRequest(prompt=UNKNOWN), STATUS.NOT_FOUND, "UNKNOWN_MODEL", {}),
    ("Explain", pb.ExplainRequest(prompt=UNKNOWN), STATUS.NOT_FOUND, "UNKNOWN_MODEL", {}),
    ("Score", pb.ScoreRequest(prompt=TEXT), STATUS.INVALID_ARGUMENT, "NO_TOKENIZER", {"field": "prompt.text"}),
    ("Pick", pb.PickRequest(prompt=prompt(model="podless")), STATUS.UNAVAILABLE, "NO_POD", {}),
    ("Explain", pb.ExplainRequest(prompt=prompt(), pods=["b"]), STATUS.UNAVAILABLE, "NO_POD", {}),
    ("Pick", pb.PickRequest(prompt=prompt(), policy="x"), STATUS.INVALID_ARGUMENT, "BAD_REQUEST", {"field": "policy"}),
    ("Pick", pb.PickRequest(prompt=pb.Prompt(chat_body=b"{")), STATUS.INVALID_ARGUMENT, "BAD_REQUEST", {"field": "prompt.chat_body"}),
    ("Report", pb.ReportRequest(), STATUS.INVALID_ARGUMENT, "BAD_REQUEST", {"field": "booking_id"}),
    ("Score", b"\xff", STATUS.INVALID_ARGUMENT, "BAD_REQUEST", {"field": "request"}),
    ("Pick", b"\xff", STATUS.INVALID_ARGUMENT, "BAD_REQUEST", {"field": "request"}),
    ("Report", b"\x0a\x01\xff", STATUS.INVALID_ARGUMENT, "BAD_REQUEST", {"field": "booking_id"}),
    ("ListPods", b"\x0a\x01\xff", STATUS.INVALID_ARGUMENT, "BAD_REQUEST", {"field": "model"}),
    ("Diagnose", b"\xff", STATUS.INVALID_ARGUMENT, "BAD_REQUEST", {"field": "request"}),
    ("ListDecisions", b"\xff", STATUS.INVALID_ARGUMENT, "BAD_REQUEST", {"field": "request"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("method", "message", "code", "reason", "metadata"),
    CASES,
    ids=[f"{method}-{reason}-{number}" for number, (method, _, _, reason, _) in enumerate(CASES)],
)
async def test_a_refused_request_is_told_its_reason(
    stand: Stand, method: str, message: Any, code: STATUS, reason: str, metadata: dict[str, str]
) -> None:
    sent = message if isinstance(message, bytes) else message.SerializeToString()
    assert await refused(raw(stand, method, sent)) == ErrorDetails(
        code, reason, metadata, None, None
    )


async def test_a_request_of_a_stream_is_told_its_reason_and_the_stream_goes_on(
    stand: Stand,
) -> None:
    requests = [
        pb.ScoreRequest(request_id=1, prompt=UNKNOWN),
        pb.ScoreRequest(request_id=2, prompt=TEXT),
        pb.ScoreRequest(request_id=3),
        pb.ScoreRequest(request_id=4, prompt=prompt()),
    ]
    replies = {one.request_id: one async for one in stand.stub.ScoreStream(iter(requests))}
    told = {number: (one.error.code, one.error.reason) for number, one in replies.items()}
    assert told == {
        1: (STATUS.NOT_FOUND.value[0], pb.RequestError.UNKNOWN_MODEL),
        2: (STATUS.INVALID_ARGUMENT.value[0], pb.RequestError.NO_TOKENIZER),
        3: (STATUS.INVALID_ARGUMENT.value[0], pb.RequestError.BAD_REQUEST),
        4: (0, pb.RequestError.REASON_UNSPECIFIED),
    }


async def test_a_pick_that_was_ended_is_told_so(
    tmp_path: Path, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def waits(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Picker, "is_asking", True)
    monkeypatch.setattr(Picker, "refresh", waits)
    async with standing(tmp_path, TABLES, transport=transport) as stand:
        asked = asyncio.ensure_future(stand.pick(prompt(), booking_id="attempt-1"))
        while not await stand.report("attempt-1", "FAILED"):
            await asyncio.sleep(0)
        [outcome] = await asyncio.gather(asked, return_exceptions=True)
        assert details_of(outcome) == ErrorDetails(STATUS.ABORTED, "PICK_ENDED", {}, None, None)


async def test_a_fault_is_logged_and_told_as_one_without_its_text(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ZeroDivisionError("the odd thing")

    fault = ErrorDetails(STATUS.INTERNAL, "INTERNAL_ERROR", {}, None, None)
    monkeypatch.setattr(Answerer, "list_pods", fails)
    monkeypatch.setattr(Answerer, "score", fails)
    monkeypatch.setattr(Answerer, "score_at_once", fails)
    monkeypatch.setattr(PickAnswerer, "_ask", fails)
    assert await refused(stand.pods()) == fault
    assert await refused(stand.pick(prompt())) == fault
    assert await refused(stand.explain(prompt())) == fault
    assert await refused(stand.score("hi")) == fault
    assert await refused(stand.stub.Score(pb.ScoreRequest(prompt=prompt()))) == fault
    stream = stand.stub.ScoreStream(iter([pb.ScoreRequest(request_id=7, prompt=prompt())]))
    [reply] = [one async for one in stream]
    assert reply.error.reason == pb.RequestError.INTERNAL_ERROR
    assert (reply.request_id, reply.error.code) == (7, STATUS.INTERNAL.value[0])
    assert "odd" not in reply.error.message
    faults = [one for one in caplog.records if one.levelno >= logging.ERROR]
    assert [one.getMessage() for one in faults] == [
        f"{method}: unexpected"
        for method in ("ListPods", "Pick", "Explain", "Score", "Score", "ScoreStream")
    ]
    assert all(one.exc_info for one in faults)


async def test_callers_that_may_not_ask_are_told_whether_they_are_known(
    tmp_path: Path, transport: str
) -> None:
    (tmp_path / "token").write_text("correct-horse-battery")
    clients = '[[clients]]\nname = "gateway"\nroles = ["score"]\ntoken-file = "token"\n'
    tables = f'[[models]]\nname = "demo"\n{TABLES}{clients}'
    async with running_router(tmp_path, tables, metrics="", transport=transport) as (_, channel):
        stub = router_pb2_grpc.RouterStub(channel)
        known = (("authorization", "Bearer correct-horse-battery"),)
        request = pb.PickRequest(prompt=prompt())
        stranger = await refused(stub.Pick(request))
        assert stranger == ErrorDetails(STATUS.UNAUTHENTICATED, "UNKNOWN_CALLER", {}, None, None)
        assert (await stub.Pick(request, metadata=known)).candidates
        reader = await refused(stub.ListPods(pb.ListPodsRequest(), metadata=known))
        assert reader == ErrorDetails(STATUS.PERMISSION_DENIED, "NO_ROLE", {}, None, None)


async def test_calls_without_room_are_told_the_limit_and_when_room_will_be_free(
    transport: str,
) -> None:
    if transport == "nghttp2":
        pytest.skip("it asks for no room before a call's message has begun to come")
    now = 0.0
    room = InFlight(1000, 1000, seconds=7.5, clock=lambda: now, most_waiting=1)
    counted = Codes()
    intake = Intake(room, room, counted, seconds=7.5)

    async def take(message: bytes, call: Any) -> None:
        call.put(message)

    server = new_server(transport, {"/test.Echo/su": intake.method("su", take)})
    address = await server.start("127.0.0.1:0")
    async with Caller(address) as call:

        def begun() -> Any:
            return call.channel.stream_unary("/test.Echo/su")()

        first = begun()
        await until(lambda: room.bytes)
        second = begun()
        await until(lambda: room.waiting)
        full = await refused(begun())
        limit = {"limit": "limits.max-in-flight-bytes"}
        assert full == ErrorDetails(STATUS.RESOURCE_EXHAUSTED, "OVERLOADED", limit, 7.5, 7500)
        now = 10.0
        late = await refused(first)
        assert late == ErrorDetails(STATUS.RESOURCE_EXHAUSTED, "MESSAGE_LATE", {}, None, None)
        assert counted.reasons == [full.reason, late.reason]
        second.cancel()
    await server.stop(0)


async def test_an_errors_text_of_any_size_and_script_reaches_its_caller(stand: Stand) -> None:
    for character in ("\U0001f4a5", "é", "%", "a"):
        body = json.dumps({"model": "demo", "messages": [], character * 3000: 1}).encode()
        names = pb.Prompt(model=character * 250, chat_body=body)
        assert (await refused(stand.pick(names))).reason == "BAD_REQUEST"
        told = await refused(stand.pick(prompt(model=character * 250)))
        assert told.reason == "UNKNOWN_MODEL"
