"""The gRPC service of Envoy's access log: `envoy.service.accesslog.v3.AccessLogService`.

Answers pass by the router; each thread of a gateway's Envoy tells on one stream how they ended.
"""

import logging
from typing import Literal

from warmpath.h2grpc.method import Method
from warmpath.router.calls.report import ReportAnswerer
from warmpath.router.ending import Drain, EndingError
from warmpath.router.endpoint_picker.access_log import EntryError, entries_of, report_of
from warmpath.router.transport.call import Call

log = logging.getLogger(__name__)

SERVICE = "envoy.service.accesslog.v3.AccessLogService"
FULL_NAME = f"{SERVICE}/StreamAccessLogs"

Outcome = Literal["reported", "unknown", "unpicked", "malformed"]
"""What an entry was good for. `unknown`: no router that can be reached has its booking; it has ended or
expired. `unpicked`: its request has none."""


class AnswerLog:
    """Takes the access logs of gateways, and reports each entry on the pick of its request."""

    def __init__(self, reports: ReportAnswerer, drain: Drain) -> None:
        self._reports = reports
        self._drain = drain
        self.counts: dict[Outcome, int] = {
            "reported": 0, "unknown": 0, "unpicked": 0, "malformed": 0
        }  # fmt: skip
        """Entries so far, by outcome; a message that cannot be read counts as one."""

    async def stream(self, call: Call) -> None:
        """Take the messages of a stream until it or the router ends; all are bytes."""
        with self._drain.streaming():
            try:
                while (message := await self._drain.before_end(call.read)) is not None:
                    self.take(message)
            except EndingError:
                # What has come by now is not lost; the gateway goes on at another router.
                while (message := call.take()) is not None:
                    self.take(message)
        call.put(b"")

    def take(self, message: bytes) -> None:
        """Report the entries of a message, as far as they can be read."""
        try:
            for entry in entries_of(message):
                self.counts[self._outcome(entry)] += 1
        except EntryError as error:
            self.counts["malformed"] += 1
            log.warning("a gateway's access log: %s", error)

    def _outcome(self, entry: object) -> Outcome:
        try:
            report = report_of(entry)
        except EntryError as error:
            log.warning("a gateway's access log: an entry is left out: %s", error)
            return "malformed"
        if report is None:
            return "unpicked"
        return "reported" if self._reports.take(report) else "unknown"

    def methods(self) -> dict[str, Method]:
        """Return the only method by its full name; all messages are bytes."""
        return {f"/{FULL_NAME}": Method(self.stream)}
