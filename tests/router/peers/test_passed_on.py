"""Reports reach the router that made the pick, by the address that a gateway names."""

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.router.pick_stand import QUIET, pod
from tests.router.running_router import metrics_of, running_router
from tests.waiting import until
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc
from warmpath.router.peers.passed_on import PassedOn

TABLES = (
    QUIET
    + '[[models]]\nname = "demo"\n'
    + pod("pod-1", "10.0.0.1:80")
    + pod("pod-2", "10.0.0.2:80")
)
ASKED = pb.PickRequest(prompt=pb.Prompt(model="demo", token_ids=pb.TokenIds(ids=range(64))))


async def test_a_report_reaches_the_router_that_made_the_pick(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        one, to_one = await stack.enter_async_context(running_router(tmp_path, TABLES))
        two, to_two = await stack.enter_async_context(running_router(tmp_path, TABLES))
        picking, other = map(router_pb2_grpc.RouterStub, (to_one, to_two))
        pick = await picking.Pick(ASKED, timeout=30)
        served = next(
            f"10.0.0.{number}:80" for number in (1, 2) if pick.candidates[0].pod != f"pod-{number}"
        )

        async def told(event: "pb.ReportRequest.Event.ValueType", router: str) -> bool:
            request = pb.ReportRequest(
                booking_id=pick.booking_id, event=event, served=served, router=router
            )
            return bool((await other.Report(request, timeout=30)).known)

        async def newest() -> pb.Decision:
            listed = await picking.ListDecisions(pb.ListDecisionsRequest(limit=1), timeout=30)
            return listed.decisions[0]

        async def has_ended() -> bool:
            return (await newest()).state == pb.Decision.FINISHED

        assert not await told(pb.ReportRequest.FINISHED, "")
        assert await told(pb.ReportRequest.FINISHED, one.address)
        await until(has_ended)
        assert (await newest()).pod != pick.candidates[0].pod
        # It has ended there, and the other one itself never had it.
        assert not await told(pb.ReportRequest.FINISHED, "somewhere:80")
        assert await told(pb.ReportRequest.FINISHED, one.address)

        async def is_known_as_lost() -> bool:
            figures = await metrics_of(two.http_address)
            return figures['warmpath_reports_passed_on_total{outcome="lost"}'] == 2

        await until(is_known_as_lost)
        figures = await metrics_of(two.http_address)
        assert figures['warmpath_reports_passed_on_total{outcome="taken"}'] == 1


async def test_a_report_for_a_router_that_has_gone_is_lost() -> None:
    passed_on = PassedOn("0123456789ab")
    booking = "ba9876543210-0123456789abcdef"
    assert not passed_on.add("0123456789ab-0123456789abcdef", "127.0.0.1:9", b"")
    assert not passed_on.add("a caller's own name", "127.0.0.1:9", b"")
    assert passed_on.add(booking, "127.0.0.1:9", b"")
    await passed_on.close()
    assert (passed_on.taken, passed_on.lost) == (0, 1)


@pytest.mark.parametrize("address", ["", "router:7400", "127.0.0.1", "[::1", "127.0.0.1:99999"])
async def test_a_report_goes_to_addresses_only(address: str) -> None:
    assert not PassedOn("0123456789ab").add("ba9876543210-0123456789abcdef", address, b"")
