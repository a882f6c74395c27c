"""A router in shadow: no pick of it books anything; requests are reported without a pick before."""

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from tests.router.pick_stand import QUIET, UNENDING, Stand, by_pod, pod, prompt, standing
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.assemble.means import ShadowMode

TABLES = QUIET + UNENDING + pod("a") + pod("b")


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    async with standing(tmp_path, TABLES, shadow=ShadowMode()) as made:
        yield made


async def in_flight(stand: Stand) -> dict[str, int]:
    told = by_pod((await stand.explain(prompt(1000))).candidates)
    return {name: one.details.in_flight for name, one in told.items()}


async def test_a_pick_is_in_shadow_whatever_its_caller_says(stand: Stand) -> None:
    await stand.pick(prompt(1000))
    assert await in_flight(stand) == {"a": 0, "b": 0}
    assert [one.shadow for one in await stand.decisions()] == [True]


async def test_requests_that_are_only_reported_are_booked_and_compared(stand: Stand) -> None:
    for name, where in (("one", "a"), ("two", "b")):
        assert await stand.report(name, "STARTED", pod=where, prompt=prompt(1000))
        assert (await in_flight(stand))[where] == 1
        await stand.report(name, "FIRST_TOKEN")
        await stand.report(name, "FINISHED", cached_tokens=0, prompt_tokens=1000)
    [row] = (await stand.diagnose()).shadows
    assert (row.requests, row.better, row.better_tokens, row.exact) == (2, 1, 960, 0)


@pytest.mark.parametrize(
    ("event", "fields", "problem"),
    [
        ("STARTED", {}, "prompt: needs the event STARTED, and a pod"),
        ("FINISHED", {"pod": "a"}, "prompt: needs the event STARTED, and a pod"),
        ("STARTED", {"pod": "c"}, "pod: is 'c'; the router knows no such pod"),
    ],
)
async def test_a_reported_prompt_needs_the_place_it_went_to(
    stand: Stand, event: str, fields: dict[str, str], problem: str
) -> None:
    report = stand.report("one", event, prompt=prompt(1000), **fields)
    assert await stand.refused(report) == (grpc.StatusCode.INVALID_ARGUMENT, problem)
    assert not (await stand.decisions())


async def test_a_router_that_decides_takes_no_prompt_with_a_report(tmp_path: Path) -> None:
    async with standing(tmp_path, TABLES) as stand:
        request = pb.ReportRequest(
            booking_id="x", event=pb.ReportRequest.STARTED, pod="a", prompt=prompt(9)
        )
        code, text = await stand.refused(stand.stub.Report(request, timeout=30))
        assert (code, text) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "prompt: is only for a router in shadow: serve --shadow",
        )
