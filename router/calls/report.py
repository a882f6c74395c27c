"""Answers Report, for our own bookings and, through other routers, for theirs. No sockets."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from google.protobuf.message import DecodeError

from warmpath.indexer.ranks import Ingest
from warmpath.process.loop import in_turns
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.report_event import EVENTS, MOST_ALSO
from warmpath.router.calls.parse import check_names, check_report, check_reported
from warmpath.router.load.engine_metrics import Observed
from warmpath.router.peers import booking_id
from warmpath.router.peers.passed_on import PassedOn
from warmpath.router.pick.picking import Picking
from warmpath.router.pick.report import Report, carry_out, check_event, report_of
from warmpath.router.pick.underway import Underway
from warmpath.router.pods.table import PodTable
from warmpath.router.prompt.limits import BadRequestError, check_count
from warmpath.router.queue.held_picks import HeldPicks

log = logging.getLogger(__name__)

AT_ONCE = 64
"""Loads recorded before other tasks get a turn: about two milliseconds' work."""
REPORTS_AT_ONCE = 32
"""Reports carried out before other tasks get a turn: as long."""

ENDS = ("finished", "failed")

KNOWN = pb.ReportResponse(known=True).SerializeToString()


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
        passed_on: PassedOn | None = None,
    ) -> None:
        """Without `passed_on`, reports are passed on to no router by its address."""
        self._pods = pods
        self._ingest = ingest
        self._picker = picking.picker
        self._loads = picking.loads
        self._peers = picking.peers
        self._clock = clock
        self._held = held
        self._passed_on = passed_on
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

    def report_at_once(self, request: pb.ReportRequest) -> bytes | None:
        """Answer Report in bytes; the result is None for one with loads or a prompt."""
        if request.loads or request.HasField("prompt"):
            return None
        first, *others = [self._take(one) for one in self._reports(request)]
        if others:
            return pb.ReportResponse(known=first, also_known=others).SerializeToString()
        return KNOWN if first else b""

    async def checked(self, request: pb.ReportRequest) -> list[Report]:
        """Return all reports of a call. Raises BadRequestError for anything in it that cannot be."""
        reports = self._reports(request)
        await check_report(request)
        return reports

    async def report(
        self, request: pb.ReportRequest, reports: Iterable[Report]
    ) -> pb.ReportResponse:
        """Answer Report, whose checked reports these are."""
        await self.observe(request.loads)
        first, *others = [self._take(one) async for one in in_turns(reports, REPORTS_AT_ONCE)]
        return pb.ReportResponse(known=first, also_known=others)

    def _reports(self, request: pb.ReportRequest) -> list[Report]:
        """Return all reports of a call, checked, but not its loads and its prompt."""
        reports = [self._report(request)]
        if also := request.also:
            check_count("also", len(also), MOST_ALSO)
            for position, one in enumerate(also):
                try:
                    check_names(one)
                    reports.append(self._report(one))
                except BadRequestError as error:
                    field = f"also[{position}].{error.field}"
                    raise BadRequestError(field, error.problem) from error
        return reports

    def _report(self, given: pb.ReportRequest | pb.Report) -> Report:
        check_reported(given)
        report = report_of(given)
        check_event(report, self._pods)
        return report

    def take(self, report: Report) -> bool:
        """Carry out a report, or hand it on; return False if nobody knows its booking.

        Raises BadRequestError for one that contradicts itself.
        """
        check_event(report, self._pods)
        return self._take(report)

    def _take(self, report: Report) -> bool:
        now = self._clock()
        if not self._reported(report, now):
            return self._hand_on(report, now)
        if (
            self._peers is not None
            and report.event in ENDS
            and not booking_id.router_of(report.booking_id)
        ):
            # Another router may have booked an earlier pick with this id, whose answer was lost.
            released = pb.ReportRequest(booking_id=report.booking_id, event=EVENTS["failed"])
            self._peers.release(released.SerializeToString(), now)
        return True

    def handed_on(self, report: bytes) -> None:
        """Carry out a report of our booking that another router received; it may be late or repeated.

        That router has already refused faulty reports; errors remain if the routers' pods differ.
        """
        try:
            told = report_of(pb.ReportRequest.FromString(report))
            check_event(told, self._pods)
        except (DecodeError, BadRequestError) as error:
            log.warning("a report that another router handed on is ignored: %s", error)
            return
        if told.event not in ENDS:
            self._picker.late(told.booking_id)
        self._reported(told, self._clock())

    def _hand_on(self, report: Report, now: float) -> bool:
        """Hand a report on to the routers that may have its booking; return False if there are none."""
        if self._peers is None and self._passed_on is None:
            return False
        request = pb.ReportRequest(
            booking_id=report.booking_id,
            event=EVENTS[report.event],
            cached_tokens=report.cached_tokens,
            prompt_tokens=report.prompt_tokens,
            output_tokens=report.output_tokens,
            served=report.served,
        )
        if report.event == "started":
            request.pod, request.rank = report.pod, report.rank
        raw = request.SerializeToString()
        if self._peers is not None:
            return self._peers.hand_on(report.booking_id, raw, now)
        assert self._passed_on is not None
        return self._passed_on.add(report.booking_id, report.router, raw)

    def _reported(self, report: Report, now: float) -> bool:
        was_underway = report.event in ENDS and self.underway.end(report.booking_id)
        is_known = carry_out(report, self._picker, now, self._pods)
        if self._held is not None:
            self._held.news()
        return is_known or was_underway
