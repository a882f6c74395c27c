"""Depth of the deepest block held, gaps allowed: how far a pod once was with this prompt."""

from scorer.match import Match


def highest_block(match: Match) -> float:
    """Return the tokens from the prompt's start to the end of the deepest block held."""
    return float(match.spans[-1].stop * match.block_size) if match.spans else 0.0
