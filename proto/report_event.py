"""The events of a picked request that a report names, their numbers in the contract, and its limit."""

from typing import Literal

from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb

ReportEvent = Literal["started", "first_token", "finished", "failed"]

EVENTS: dict[ReportEvent, "pb.ReportRequest.Event.ValueType"] = {
    "started": pb.ReportRequest.STARTED,
    "first_token": pb.ReportRequest.FIRST_TOKEN,
    "finished": pb.ReportRequest.FINISHED,
    "failed": pb.ReportRequest.FAILED,
}

MOST_ALSO = 256
"""The most further reports of a call (`ReportRequest.also`)."""
