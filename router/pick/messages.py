"""Converts a weighed option to a protobuf Candidate, without details (Pick) or with them (Explain)."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple

from warmpath.indexer.trust import Level, Trust
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.load.correction import Part
from warmpath.router.pick.options import Option
from warmpath.scorer.candidate import Candidate
from warmpath.scorer.match import TIERS, Match

LEVELS = {
    Level.COLD: pb.Trust.COLD,
    Level.EXACT: pb.Trust.EXACT,
    Level.DEGRADED: pb.Trust.DEGRADED,
    Level.STALE: pb.Trust.STALE,
}

MOST_CONTEXT = (1 << 32) - 1
"""The highest `context_tokens` that the message holds; an odd gauge of an engine may lead beyond it."""
AT_ONCE = 64
"""Candidates converted before other tasks get a turn: with details, about two milliseconds' work."""


class Weighed(NamedTuple):
    """The parts of an `Option` that a protobuf Candidate shows.

    A kept decision may outlive its pods, so they hold no Pod.
    """

    address: str
    match: Match
    trust: Trust
    candidate: Candidate
    cost: float
    terms: tuple[tuple[str, float], ...]
    calibration: float
    serves: bool


def weighed(option: Option) -> Weighed:
    """Return the parts of an option that a protobuf Candidate shows."""
    return Weighed(
        option.pod.address,
        option.match,
        option.trust,
        option.candidate,
        option.cost,
        option.terms,
        option.calibration,
        option.pod.serves,
    )


async def candidate_messages(
    options: Sequence[Option],
    wall_offset: float,
    parts_of: Callable[[Option], Sequence[Part]] | None = None,
) -> AsyncIterator[list[pb.Candidate]]:
    """Yield candidates in lists of AT_ONCE; other tasks get a turn before each list.

    With `parts_of`, which returns the parts of an option's load, they have details.
    """
    for at in range(0, len(options), AT_ONCE):
        await asyncio.sleep(0)
        yield [
            candidate_message(one, wall_offset, parts_of(one) if parts_of else None)
            for one in options[at : at + AT_ONCE]
        ]


def candidate_message(
    option: Option | Weighed, wall_offset: float, parts: Sequence[Part] | None = None
) -> pb.Candidate:
    """Return a candidate; a time of the ingest + `wall_offset` is seconds since the Unix epoch.

    It has details if the parts of its load (`LoadTable.explain`, possibly empty) are given.
    """
    one = option if isinstance(option, Weighed) else weighed(option)
    match, candidate = one.match, one.candidate
    load = candidate.load
    return pb.Candidate(
        pod=candidate.pod,
        rank=candidate.rank,
        address=one.address,
        matched_tokens=match.matched_tokens,
        believed_tokens=match.believed_tokens,
        outstanding_tokens=load.waiting_uncached_tokens,
        cost=one.cost,
        predicted_ttft=load.wait + candidate.prefill,
        trust=trust_message(one.trust, wall_offset),
        ready=one.serves,
        details=None if parts is None else _details(one, parts),
    )


def _details(option: Weighed, parts: Sequence[Part]) -> pb.CandidateDetails:
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
        address=option.pod.address,
        matched_tokens=option.match.known_tokens,
    )


def trust_message(trust: Trust, wall_offset: float) -> pb.Trust:
    """Return the message of a rank's trust, with its time since the Unix epoch."""
    return pb.Trust(level=LEVELS[trust.level], reason=trust.reason, since=trust.since + wall_offset)
