"""Dynamo's unit: leading blocks in the fastest tier, and how far each slower tier extends them."""

from typing import NamedTuple

from warmpath.scorer.match import TIERS, Match


class Reach(NamedTuple):
    """Leading blocks of a prompt; each number includes the one before it."""

    gpu: int = 0
    cpu: int = 0
    disk: int = 0
    """With the disk and remote tiers."""


def reach_of(match: Match) -> Reach:
    """Return how far a rank's tiers reach.

    Each tier goes on from the end of the tier before it, and cannot go back to a faster one.

    Source: `query_lower_tiers` in Dynamo's `lib/kv-router/src/indexer/lower_tier_indexers.rs`, and
    `build_mooncake_overlap_summaries` in `lib/kv-router/src/services/overlap.rs`.
    """
    known = match.known_tokens // match.block_size if match.block_size else 0
    at = 0
    ends = []
    for tier in TIERS:
        for start, stop, of in sorted(match.held):
            if of == tier and start <= at < stop:
                at = min(stop, known)
        ends.append(at)
    gpu, cpu, _, remote = ends
    return Reach(gpu, cpu, remote)
