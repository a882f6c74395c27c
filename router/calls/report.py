"""Answers Report, for our own bookings and, through other routers, for theirs. No sockets."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from google.protobuf.message import DecodeError

from warmpath.indexer.ranks import Ingest
from warmpath.process.loop import in_turns
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.report_event import EVENTS
from warmpath.router.calls.parse import check_report
from warmpath.router.load.engine_metrics import Observed
from warmpath.router.peers import booking_id
from warmpath.router.pick.picking import Picking
from warmpath.router.pick.report import EVENT_NAMES, Report, carry_out, check_event, report_of
from warmpath.router.pick.underway import Underway
from warmpath.router.pods.table import PodTable
from warmpath.router.prompt.bad_request import BadRequestError
from warmpath.router.queue.held_picks import HeldPicks

log = logging.getLogger(__name__)

AT_ONCE = 64
"""Loads recorded before other tasks get a turn: about two milliseconds' work."""


ENDS = frozenset({pb.ReportRequest.FINISHED, pb.ReportRequest.FAILED})


class ReportAnswerer:
    """Answers reports on picks, hands those of other routers' bookings on, and records ranks' loads.

    Gateways report the loads in their requests.
    """

    def __init__(
        self,
        pods: PodTable,
        ingest: Ingest,
        picking: Picking,
        *,
        clock: Callable[[], float],
        held: HeldPicks | None,
    ) -> None:
        self._pods = pods
        self._ingest = ingest
        self._picker = picking.picker
        self._loads = picking.loads
        self._peers = picking.peers
        self._clock = clock
        self._held = held
        self.underway = Underway()
        """The picks that still wait: a report of their end ends them."""

    async def observe(self, loads: Sequence[pb.PodLoad]) -> None:
        """Record the checked loads of known ranks; yield to other tasks within and after a long list."""
        if not loads:
            return
        now = self._clock()
        async for one in in_turns(loads, AT_ONCE):
            if self._ingest.rank(one.pod, one.rank) is not None:
                seen = Observed(one.running, one.waiting, one.kv_usage, now - one.age)
                self._loads.observe(one.pod, one.rank, seen, "gateway")
                # The table caches the result, so the next pick need not compute it for all ranks.
                self._loads.load(one.pod, one.rank, self._clock())
        if len(loads) > AT_ONCE:
            await asyncio.sleep(0)

    async def report(
        self, request: pb.ReportRequest, *, is_refusal: bool = False
    ) -> pb.ReportResponse:
        """Answer Report; the contract does not say `is_refusal` (`Report.is_refusal`)."""
        await check_report(request)
        await self.observe(request.loads)
        report = self._checked(request, is_refusal=is_refusal)
        now = self._clock()
        known = self._reported(report, now)
        if not known:
            known = self._hand_on(request, now)
        elif request.event in ENDS and not booking_id.router_of(request.booking_id):
            # Another router may have booked an earlier pick with this id, whose answer was lost.
            released = pb.ReportRequest(
                booking_id=request.booking_id, event=pb.ReportRequest.FAILED
            )
            if self._peers is not None:
                self._peers.release(released.SerializeToString(), now)
        return pb.ReportResponse(known=known)

    def handed_on(self, report: bytes) -> None:
        """Carry out a report of our booking that another router received; it may be late or repeated.

        That router has already refused faulty reports; errors remain if the routers' pods differ.
        """
        try:
            request = pb.ReportRequest.FromString(report)
            checked = self._checked(request)
        except (DecodeError, BadRequestError) as error:
            log.warning("a report that another router handed on is ignored: %s", error)
            return
        if request.event in {pb.ReportRequest.STARTED, pb.ReportRequest.FIRST_TOKEN}:
            self._picker.late(request.booking_id)
        self._reported(checked, self._clock())

    def _hand_on(self, request: pb.ReportRequest, now: float) -> bool:
        """Hand a report on to the routers that may have its booking; return False if there are none."""
        if self._peers is None:
            return False
        report = pb.ReportRequest(booking_id=request.booking_id, event=request.event)
        if request.event == pb.ReportRequest.STARTED:
            report.pod, report.rank = request.pod, request.rank
        for name in ("cached_tokens", "prompt_tokens", "output_tokens"):
            if request.HasField(name):
                setattr(report, name, getattr(request, name))
        return self._peers.hand_on(report.booking_id, report.SerializeToString(), now)

    def _reported(self, report: Report, now: float) -> bool:
        is_end = report.event in ("finished", "failed")
        was_underway = is_end and self.underway.end(report.booking_id)
        is_known = carry_out(report, self._picker, now)
        if self._held is not None:
            self._held.news()
        return is_known or was_underway

    def _checked(self, request: pb.ReportRequest, *, is_refusal: bool = False) -> Report:
        if request.event not in EVENT_NAMES:
            problem = f"is {request.event}, not an event" if request.event else "is missing"
            names = (pb.ReportRequest.Event.Name(event) for event in EVENTS.values())
            raise BadRequestError("event", f"{problem}; give {', '.join(names)}")
        check_event(report := report_of(request, is_refusal=is_refusal), self._pods)
        return report
