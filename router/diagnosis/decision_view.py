"""A decision as the live page and the log of decisions show it."""

import msgspec

from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb


class CandidateView(msgspec.Struct, frozen=True):
    """One candidate of a decision."""

    pod: str
    rank: int
    matched_tokens: int
    cost: float
    predicted_ttft: float


class DecisionView(msgspec.Struct, frozen=True):
    """One decision."""

    booking_id: str
    request_id: str
    """The `x-request-id` of the call or of the HTTP request; empty: none came."""
    trace_id: str
    """The trace of the pick; empty: it was not sampled."""
    at: float
    model: str
    policy: str
    prompt_tokens: int
    pod: str
    rank: int
    state: str
    reason: str
    shadow: bool
    waited_seconds: float
    cached_tokens: int | None
    """Tokens that the engine found cached; None before they are reported."""
    ttft: float | None
    """Seconds from the pick to the first token; None before it is reported."""
    candidates: list[CandidateView]


def decision_view(one: pb.Decision) -> DecisionView:
    """Return the view of a decision."""
    return DecisionView(
        booking_id=one.booking_id,
        request_id=one.request_id,
        trace_id=one.trace_id,
        at=one.at,
        model=one.model,
        policy=one.policy,
        prompt_tokens=one.prompt_tokens,
        pod=one.pod,
        rank=one.rank,
        state=pb.Decision.State.Name(one.state).lower(),
        reason=one.reason,
        shadow=one.shadow,
        waited_seconds=one.waited_seconds,
        cached_tokens=one.cached_tokens if one.HasField("cached_tokens") else None,
        ttft=one.ttft if one.HasField("ttft") else None,
        candidates=[
            CandidateView(each.pod, each.rank, each.matched_tokens, each.cost, each.predicted_ttft)
            for each in one.candidates
        ],
    )
