"""Leading tokens held without a gap: what a request would really find cached."""

from scorer.match import Match


def longest_prefix(match: Match) -> float:
    """Return the leading tokens held without a gap."""
    spans = match.leading()
    return float(spans[-1].stop * match.block_size) if spans else 0.0
