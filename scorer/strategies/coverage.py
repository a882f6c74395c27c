"""Tokens held anywhere in the prompt, gaps allowed: what a pod that can fill gaps would save."""

from scorer.match import Match


def coverage(match: Match) -> float:
    """Return the tokens of all blocks held, wherever they lie."""
    return float(sum(span.stop - span.start for span in match.spans) * match.block_size)
