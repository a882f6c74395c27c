"""A request from its pick to its end, by both clients: it never raises for a router's sake, and leaves no booking."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Literal

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.warmpath.client.scripted_router import Refuse, ScriptedRouter, scripted, with_reason
from warmpath import AsyncClient, CallError, Client, Prompt, Request, Retry
from warmpath.client import background
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb

AT_ONCE = Retry(first_seconds=0.0, most_seconds=0.0)
AWAY = Refuse(grpc.StatusCode.UNAVAILABLE)
ENDING = with_reason(grpc.StatusCode.UNAVAILABLE, "ENDING")
CANDIDATES = [pb.Candidate(pod="a", address="a:1"), pb.Candidate(pod="b", address="b:1", rank=1)]
PICKED = pb.PickResponse(candidates=CANDIDATES)
TAKEN = pb.ReportResponse(known=True)
KINDS = pytest.mark.parametrize("kind", ["asyncio", "blocking"])

Step = Literal["first_token", "usage", "next", "finish", "fail"]
Exit = Literal["return", "raise", "cancel"]
STEPS = st.lists(st.sampled_from(("first_token", "usage", "next", "finish", "fail")), max_size=6)


class LeftError(Exception):
    """What a block is left with."""


def use(request: Request, steps: list[Step], left: Exit) -> None:
    endpoints = request.endpoints()
    for number, step in enumerate(steps):
        if step == "next":
            next(endpoints, None)
        elif step == "usage":
            request.usage({"prompt_tokens": 9, "completion_tokens": number}, cached_tokens=4)
        elif step == "first_token":
            request.first_token()
        elif step == "finish":
            request.finish()
        else:
            request.fail()
    if left == "raise":
        raise LeftError
    if left == "cancel":
        raise asyncio.CancelledError


def reports_of(steps: list[Step], left: Exit, *, is_picked: bool) -> list[pb.Report]:
    """Return the reports that the router must get, without their booking."""
    event, report = pb.ReportRequest, pb.Report
    if not is_picked:
        return [report(event=event.FAILED)]
    told: list[pb.Report] = []
    counted: dict[str, int] = {}
    tried = 0
    for number, step in enumerate([*steps, "finish" if left == "return" else "fail"]):
        if step == "next":
            tried += 1
            if tried == 2:
                told.append(report(event=event.STARTED, pod="b", rank=1))
        elif step == "usage":
            counted = {"prompt_tokens": 9, "cached_tokens": 4, "output_tokens": number}
        elif step == "first_token":
            if report(event=event.FIRST_TOKEN) not in told:
                told.append(report(event=event.FIRST_TOKEN))
        elif step == "finish":
            return [*told, report(event=event.FINISHED, **counted)]  # type: ignore[arg-type]
        else:
            return [*told, report(event=event.FAILED)]
    raise AssertionError


async def live(kind: str, address: str, steps: list[Step], left: Exit) -> None:
    """Make a request that raises only what its block raises."""
    try:
        if kind == "asyncio":
            async with (
                AsyncClient(address, model="m", retry=AT_ONCE) as client,
                client.request("hi", otherwise=["c:1"], timeout=60) as request,
            ):
                use(request, steps, left)
            return

        def blocking() -> None:
            with (
                Client(address, model="m", retry=AT_ONCE) as client,
                client.request("hi", otherwise=["c:1"], timeout=60) as request,
            ):
                use(request, steps, left)

        await asyncio.to_thread(blocking)
    except (LeftError, asyncio.CancelledError):
        assert left != "return"


@KINDS
@given(
    steps=STEPS,
    left=st.sampled_from(("return", "raise", "cancel")),
    lost=st.lists(st.integers(0, 2), max_size=6),
    lost_picks=st.integers(0, 3),
    how=st.sampled_from((AWAY, ENDING)),
    is_old=st.booleans(),
)
@settings(max_examples=examples(400), deadline=None)
def test_whatever_fails_when_the_router_learns_of_each_step_once_in_order(
    kind: str,
    steps: list[Step],
    left: Exit,
    lost: list[int],
    lost_picks: int,
    how: Refuse,
    is_old: bool,
) -> None:
    async def check() -> None:
        is_picked = lost_picks < 3
        async with scripted() as router:
            router.is_old = is_old
            router.script.extend([how] * lost_picks)
            router.script.extend([PICKED] if is_picked else [])
            for times in lost:
                router.script.extend([*[how] * times, TAKEN])
            await live(kind, router.address, steps, left)
        reports = router.reports()
        assert len({one.booking_id for one in (router.asked[0][1], *reports)}) == 1
        for one in reports:
            one.booking_id = ""
        assert reports == reports_of(steps, left, is_picked=is_picked)

    asyncio.run(check())


@pytest.fixture
async def router() -> AsyncIterator[ScriptedRouter]:
    async with scripted() as router:
        yield router


async def test_a_pick_that_is_cancelled_leaves_no_booking(router: ScriptedRouter) -> None:
    async with AsyncClient(router.address) as client:
        await client.pods()
        router.hangs = True
        task = asyncio.create_task(client.begin("hi", timeout=600))
        while router.methods[-1] != "Pick":
            await asyncio.sleep(0.001)
        router.hangs = False
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert [method for method, _ in router.asked] == ["ListPods", "Pick", "Report"]
    assert router.asked[1][1].booking_id == router.asked[2][1].booking_id
    assert router.asked[2][1].event == pb.ReportRequest.FAILED


def begun(kind: str, address: str, *calls: dict[str, Any]) -> list[Request | CallError]:
    """Begin requests with one client, and end them; return each, or its error."""
    got: list[Request | CallError] = []
    if kind == "blocking":
        with Client(address, model="m", retry=AT_ONCE) as client:
            for call in calls:
                try:
                    with client.request(**call) as request:
                        got.append(request)
                except CallError as error:
                    got.append(error)
        return got

    async def run() -> None:
        async with AsyncClient(address, model="m", retry=AT_ONCE) as client:
            for call in calls:
                try:
                    async with client.request(**call) as request:
                        got.append(request)
                except CallError as error:
                    got.append(error)

    asyncio.run(run())
    return got


@KINDS
async def test_without_a_router_a_request_goes_to_pods_that_were_given_or_picked_before(
    router: ScriptedRouter, kind: str
) -> None:
    router.only = "Pick"
    router.script.extend([PICKED, *[AWAY] * 12])
    first, known, named, given_, none = await asyncio.to_thread(
        begun, kind, router.address,
        {"prompt": "hi"}, {"prompt": "hi"}, {"prompt": "hi", "pods": ["b"]},
        {"prompt": "hi", "model": "other", "otherwise": ["c:1"]}, {"prompt": "hi", "model": "other"},
    )  # fmt: skip
    assert isinstance(first, Request)
    assert (first.address, first.failure, first.pick) == ("a:1", None, PICKED)
    assert isinstance(known, Request)
    assert known.pick is None
    assert known.failure is not None
    assert sorted(one.address for one in known.candidates) == ["a:1", "b:1"]
    assert isinstance(named, Request)
    assert named.address == "b:1"
    assert isinstance(given_, Request)
    assert given_.address == "c:1"
    assert isinstance(none, CallError)


@KINDS
async def test_a_request_without_a_router_is_told_in_one_line(
    router: ScriptedRouter, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    router.script.extend([AWAY] * 6)
    call = {"prompt": "hi", "otherwise": ["c:1"]}
    await asyncio.to_thread(begun, kind, router.address, call)
    assert router.methods == ["Pick"] * 3 + ["Report"] * 3
    assert caplog.messages == ["a request goes on without a pick: UNAVAILABLE: refused"]


@KINDS
async def test_the_router_learns_of_an_end_before_the_next_pick(
    router: ScriptedRouter, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "CATCH_UP_SECONDS", 60)
    router.only = "Pick"
    router.script.extend([PICKED] * 4)
    await asyncio.to_thread(begun, kind, router.address, *[{"prompt": "hi"}] * 4)
    assert router.methods == ["Pick", "Report"] * 4


@KINDS
@pytest.mark.parametrize("reason", ["NO_POD", "QUEUE_FULL", "UNKNOWN_MODEL"])
async def test_a_request_that_no_pod_may_take_is_an_error(
    router: ScriptedRouter, kind: str, reason: str
) -> None:
    router.script.append(with_reason(grpc.StatusCode.FAILED_PRECONDITION, reason))
    [error] = await asyncio.to_thread(
        begun, kind, router.address, {"prompt": "hi", "otherwise": ["c:1"]}
    )
    assert isinstance(error, CallError)
    assert error.reason == reason


@KINDS
async def test_a_prompt_that_the_router_cannot_read_is_picked_for_by_load(
    router: ScriptedRouter, kind: str
) -> None:
    router.script.extend([with_reason(grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST"), PICKED])
    [request] = await asyncio.to_thread(begun, kind, router.address, {"tokens": [1, 2]})
    assert isinstance(request, Request)
    assert (request.address, request.failure is None) == ("a:1", False)
    assert [one.prompt for method, one in router.asked if method == "Pick"] == [
        pb.Prompt(model="m", token_ids_packed=bytes([1, 0, 0, 0, 2, 0, 0, 0])), pb.Prompt(model="m"),
    ]  # fmt: skip


@KINDS
async def test_a_prompt_is_given_in_one_of_its_forms(router: ScriptedRouter, kind: str) -> None:
    chat = [{"role": "user", "content": "hi"}]
    body = b'{"model": "its own"}'
    router.only = "Pick"
    router.script.extend([PICKED] * 4)
    calls: list[dict[str, Any]] = [
        {"messages": chat}, {"prompt": Prompt(chat_body=body)}, {"prompt": "hi", "model": "x"}, {},
    ]  # fmt: skip
    await asyncio.to_thread(begun, kind, router.address, *calls)
    assert [one.prompt for method, one in router.asked if method == "Pick"] == [
        pb.Prompt(model="m", chat_body=b'{"messages": [{"role": "user", "content": "hi"}]}'),
        pb.Prompt(chat_body=body), pb.Prompt(model="x", text="hi"), pb.Prompt(model="m"),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="a request has prompt and messages; give at most one"):
        await asyncio.to_thread(begun, kind, router.address, {"prompt": "hi", "messages": chat})


async def test_counts_that_cannot_be_do_not_keep_the_end_from_being_reported(
    router: ScriptedRouter,
) -> None:
    router.script.append(PICKED)
    async with AsyncClient(router.address) as client, client.request("hi") as request:
        request.usage({"prompt_tokens": "many", "completion_tokens": -1})
        request.usage(prompt_tokens=3, cached_tokens=4)
    [_, (_, report)] = router.asked
    assert report == pb.ReportRequest(
        booking_id=request.booking_id, event=pb.ReportRequest.FINISHED
    )
