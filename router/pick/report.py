"""A report on a picked request, and the changes that it makes."""

from collections.abc import Iterable

import msgspec

from warmpath.indexer.index.slot import RankName
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.report_event import EVENTS, ReportEvent
from warmpath.router.pick.pick import Pick
from warmpath.router.pick.picker import Picker
from warmpath.router.pods.table import Pod, PodTable
from warmpath.router.prompt.limits import BadRequestError

EVENT_NAMES = {number: name for name, number in EVENTS.items()}
NOWHERE = PodTable()


class Report(msgspec.Struct, frozen=True):
    """A report, as `ReportRequest` of the contract describes its fields."""

    booking_id: str
    event: ReportEvent
    pod: str = ""
    """With `started`: where the request went; empty: to the first candidate."""
    rank: int = 0
    cached_tokens: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    served: str = ""
    """The address of the pod that serves it; empty: it is not known, or is where it was sent."""
    router: str = ""
    """The address of the router that made the pick; empty: it is not known."""
    is_refusal: bool = False
    """With `failed`: whether its rank refused it (`Pick.is_refused`); the contract has no such field."""


def report_of(request: pb.ReportRequest | pb.Report) -> Report:
    """Return a report of the contract. Raises BadRequestError for an unknown event."""
    if request.event not in EVENT_NAMES:
        problem = f"is {request.event}, not an event" if request.event else "is missing"
        names = (pb.ReportRequest.Event.Name(event) for event in EVENTS.values())
        raise BadRequestError("event", f"{problem}; give {', '.join(names)}")
    return Report(
        request.booking_id,
        EVENT_NAMES[request.event],
        pod=request.pod,
        rank=request.rank,
        cached_tokens=request.cached_tokens if request.HasField("cached_tokens") else None,
        prompt_tokens=request.prompt_tokens if request.HasField("prompt_tokens") else None,
        output_tokens=request.output_tokens if request.HasField("output_tokens") else None,
        served=request.served,
        router=request.router,
    )


def check_event(report: Report, pods: Iterable[Pod]) -> None:
    """Raise BadRequestError for a report that contradicts itself, or names an unknown rank."""
    # `cached_tokens` may exceed the router's own count of the prompt's tokens: the engine's template
    # may make more tokens, and only the beginning of a long text may have been tokenised in time.
    cached, most = report.cached_tokens, report.prompt_tokens
    if cached is not None and most is not None and cached > most:
        raise BadRequestError("cached_tokens", f"is {cached}; the prompt has {most} tokens")
    if report.event != "started" or not report.pod:
        return
    name, number = report.pod, report.rank
    pod = next((pod for pod in pods if pod.id == name), None)
    if pod is None:
        raise BadRequestError("pod", f"is {name!r}; the router knows no such pod")
    if not 0 <= number < len(pod.ranks):
        problem = f"is {number}; the ranks of pod {name!r} are 0 to {len(pod.ranks) - 1}"
        raise BadRequestError("rank", problem)


def rank_at(address: str, placed: Pick, pods: PodTable) -> RankName | None:
    """Return the rank that serves a pick at an address; None if no pod has that address.

    Of a pod with several ranks it is the one that the pick expected to answer first.
    """
    ids = pods.at(address)
    if placed.went.pod in ids:
        return placed.went
    there = [name for name in placed.predicted if name.pod in ids]
    if there:
        expected = placed.predicted
        return min(there, key=lambda name: expected[name].wait + expected[name].prefill)
    return RankName(min(ids), 0) if ids else None


def carry_out(report: Report, picker: Picker, now: float, pods: PodTable = NOWHERE) -> bool:
    """Carry out a report; return False if its booking is not known.

    A report proves that the pick's answer has arrived, so the pick counts as settled. `pods` are those
    among which the address in `served` is looked for; a request that none of them serves has failed.
    """
    name = report.booking_id
    placed = picker.get(name)
    if placed is not None:
        if not placed.is_settled:
            picker.settle(placed, now)
        placed.is_reported = True
        placed.is_refused = report.is_refusal
        if report.served:
            report = _served(report, placed, picker, now, pods)
    if report.event == "started":
        return picker.started(name, now, RankName(report.pod, report.rank) if report.pod else None)
    if report.cached_tokens is not None:
        picker.found_cached(name, report.cached_tokens, report.prompt_tokens)
    if report.event == "first_token":
        return picker.first_token(name, now)
    return picker.ended(name, report.event, now, output_tokens=report.output_tokens or 0)


def _served(report: Report, placed: Pick, picker: Picker, now: float, pods: PodTable) -> Report:
    """Record where a pick is served, if that is news; return the report that is still to carry out."""
    where = rank_at(report.served, placed, pods)
    if where is None:
        return msgspec.structs.replace(report, event="failed")
    if placed.decoding is not None:
        # A pod that decodes counts what it is sent as cached.
        return msgspec.structs.replace(report, cached_tokens=None, prompt_tokens=None)
    if where != placed.went or placed.booking is None:
        picker.started(placed.booking_id, now, where)
    return report
