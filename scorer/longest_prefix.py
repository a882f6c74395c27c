"""The strategy `longest-prefix`: leading tokens without a gap, which an engine would find cached."""

from warmpath.scorer.match import Match


def longest_prefix(match: Match) -> float:
    """Return the number of leading tokens held without a gap."""
    return float(match.matched_tokens)
