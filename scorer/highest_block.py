"""The strategy `highest-block`: tokens up to the end of the last held block, gaps allowed."""

from warmpath.scorer.match import Match


def highest_block(match: Match) -> float:
    """Return the number of tokens from the prompt's start to the end of the last held block."""
    return float(match.spans[-1].stop * match.block_size) if match.spans else 0.0
