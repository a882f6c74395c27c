"""Envoy's access log over gRPC (`AccessLogService`): one entry at the end of each request.

Answers pass by the router; each thread of a gateway's Envoy tells on one stream how they ended.
For a picked request the entry has the pick's booking in its metadata, and the usage that Envoy's filter
has found in the answer (`cli/gateway/answers.lua`). The messages are those of the package `xds-protos`.
"""

import logging
import zlib
from collections.abc import Iterator
from typing import Any, Literal

import msgspec
from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.service.accesslog.v3 import als_pb2
from google.protobuf.message import DecodeError

from warmpath.h2grpc.method import Method
from warmpath.process.address import HostPort
from warmpath.process.bytes import UNREADABLE
from warmpath.proto.report_event import ReportEvent
from warmpath.router.calls.report import ReportAnswerer
from warmpath.router.ending import Drain, EndingError
from warmpath.router.endpoint_picker.protocol import BOOKING, OF_AN_ENDPOINT, ROUTER, TIMED_OUT
from warmpath.router.inference_api.response import LEAST_ERROR, Usage, usage_of
from warmpath.router.peers.booking_id import problem_of
from warmpath.router.pick.report import Report
from warmpath.router.pods.table import endpoint
from warmpath.router.transport.call import Call

PICK_SPACE = "envoy.filters.http.ext_authz"
"""Namespace of the metadata of a pick, whose key BOOKING has the booking's id."""
ANSWER_SPACE, USAGE = "warmpath", "usage"
"""Namespace of the metadata of an answer, and its key for the usage: numbers by their names, as JSON."""
ENDS = (accesslog_pb2.NotSet, accesslog_pb2.DownstreamEnd)
"""The types of entries that are a request's last; Envoys before 1.26 set none."""
MOST_USAGE_BYTES = 1024


class EntryError(Exception):
    """A message, or an entry, cannot be read."""


def is_read_whole(booking: str, share: float) -> bool:
    """Return whether the gateway reads a streamed answer to its end, for its usage.

    `share`, from 0 to 1, of all bookings are chosen, by a hash of their ids.
    """
    return zlib.crc32(booking.encode()) < share * (1 << 32)


def entries_of(message: bytes) -> Iterator[Any]:
    """Yield the entries of a StreamAccessLogsMessage that end a request. Raises EntryError."""
    try:
        told = als_pb2.StreamAccessLogsMessage.FromString(message)
    except DecodeError as error:
        raise EntryError("a message is not a StreamAccessLogsMessage") from error
    for entry in told.http_logs.log_entry:
        if entry.common_properties.access_log_type in ENDS:
            yield entry


def report_of(entry: Any) -> Report | None:
    """Return the report that an HTTPAccessLogEntry makes; None if its request was not picked for.

    Raises EntryError.
    """
    common, response = entry.common_properties, entry.response
    spaces = common.metadata.filter_metadata
    if PICK_SPACE not in spaces or BOOKING not in (of_pick := spaces[PICK_SPACE].fields):
        return None
    booking = of_pick[BOOKING].string_value
    if not booking or (problem := problem_of(booking)):
        raise EntryError(f"{BOOKING} {problem if booking else 'is empty'}")
    status, is_ours = response.response_code.value, response.response_code_details
    is_answered = is_ours == OF_AN_ENDPOINT
    event: ReportEvent = "finished" if is_answered and 0 < status < LEAST_ERROR else "failed"
    usage = _usage(spaces) if event == "finished" else Usage()
    return Report(
        booking,
        event,
        cached_tokens=usage.cached_tokens,
        prompt_tokens=usage.prompt_tokens,
        output_tokens=usage.output_tokens,
        served=_served(common),
        router=of_pick[ROUTER].string_value if ROUTER in of_pick else "",
        is_refusal=event == "failed" and is_answered and str(status) not in TIMED_OUT,
    )


def _usage(spaces: Any) -> Usage:
    """Return the usage in the metadata; none if it has none that can be read."""
    if ANSWER_SPACE not in spaces or USAGE not in (fields := spaces[ANSWER_SPACE].fields):
        return Usage()
    text = fields[USAGE].string_value
    if len(text) > MOST_USAGE_BYTES:
        return Usage()
    try:
        # Report refuses what is not possible.
        return usage_of(msgspec.json.decode(text)).possible()
    except UNREADABLE:
        return Usage()


def _served(common: Any) -> str:
    """Return the address of the last endpoint that a request was sent to; empty: it was sent to none."""
    address = common.upstream_remote_address.socket_address
    if not address.address:
        return ""
    return endpoint(str(HostPort(address.address, address.port_value)))


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
