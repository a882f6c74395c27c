"""Leading tokens held without a gap: what a request would really find cached."""

from scorer.match import Match


def longest_prefix(match: Match) -> float:
    """Return the leading tokens held without a gap."""
    return float(match.matched_tokens)
