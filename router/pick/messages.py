"""Converts a weighed option to a protobuf Candidate, without details (Pick) or with them (Explain)."""

from collections.abc import Sequence

from warmpath.indexer.trust import Level, Trust
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.load.correction import Part
from warmpath.router.pick.options import Option
from warmpath.scorer.match import TIERS

LEVELS = {
    Level.COLD: pb.Trust.COLD,
    Level.EXACT: pb.Trust.EXACT,
    Level.DEGRADED: pb.Trust.DEGRADED,
    Level.STALE: pb.Trust.STALE,
}

MOST_CONTEXT = (1 << 32) - 1
"""The highest `context_tokens` that the message holds; an odd gauge of an engine may lead beyond it."""


def candidate_message(
    option: Option, wall_offset: float, parts: Sequence[Part] | None = None
) -> pb.Candidate:
    """Return a candidate; a time of the ingest + `wall_offset` is seconds since the Unix epoch.

    It has details if the parts of its load (`LoadTable.explain`, possibly empty) are given.
    """
    match, candidate = option.match, option.candidate
    load = candidate.load
    return pb.Candidate(
        pod=candidate.pod,
        rank=candidate.rank,
        address=option.address,
        matched_tokens=match.matched_tokens,
        believed_tokens=match.believed_tokens,
        outstanding_tokens=load.waiting_uncached_tokens,
        cost=option.cost,
        predicted_ttft=option.predicted_ttft,
        trust=trust_message(option.trust, wall_offset),
        ready=option.serves,
        details=None if parts is None else _details(option, parts),
    )


def _details(option: Option, parts: Sequence[Part]) -> pb.CandidateDetails:
    match, candidate = option.match, option.candidate
    load = candidate.load
    seen = next((part for part in parts if part.is_observed), None)
    return pb.CandidateDetails(
        tiers=[
            pb.TierTokens(tier=tier, tokens=match.tokens_by_tier[tier])
            for tier in TIERS
            if tier in match.tokens_by_tier
        ],
        arriving_tokens=match.arriving_tokens,
        assumed_tokens=match.assumed_tokens,
        counted_tokens=candidate.cached,
        wait_seconds=load.wait,
        prefill_seconds=candidate.prefill,
        waiting=load.waiting,
        in_flight=load.in_flight,
        context_tokens=min(load.context_tokens, MOST_CONTEXT),
        queue=load.queue,
        kv_usage=load.kv_usage,
        load_source=seen.source if seen else "bookings" if parts else "",
        load_age=seen.age if seen else None,
        calibration=option.calibration,
        terms=[pb.Term(name=name, value=value) for name, value in option.terms],
    )


def source_message(option: Option) -> pb.Source:
    """Return the message of the rank that holds more of the prefix than the pick (`Choice.source`)."""
    return pb.Source(
        pod=option.candidate.pod,
        rank=option.candidate.rank,
        address=option.address,
        matched_tokens=option.match.known_tokens,
    )


def trust_message(trust: Trust, wall_offset: float) -> pb.Trust:
    """Return the message of a rank's trust, with its time since the Unix epoch."""
    return pb.Trust(level=LEVELS[trust.level], reason=trust.reason, since=trust.since + wall_offset)
