"""The strategy `coverage`: tokens held anywhere in the prompt, for engines that can fill gaps."""

from warmpath.scorer.match import Match


def coverage(match: Match) -> float:
    """Return the number of tokens in all held blocks, at any position."""
    return float(sum(span.stop - span.start for span in match.spans) * match.block_size)
