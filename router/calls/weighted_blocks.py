"""llm-d's unit: leading blocks, each times the weight of its tier."""

import math
from collections.abc import Mapping

from warmpath.scorer.match import TIERS, Match, spans_of


class WeightedBlocks:
    """Counts the leading blocks of a match as llm-d does; `weights` has one for each tier.

    A block in several tiers has the highest of their weights. `block_size` is in tokens; a block that
    consists of several of the engine's has the lowest of their weights.

    Source: llm-d-kv-cache 7be76e1, `LongestPrefixScorer` in `pkg/kvcache/kvblock_scorer.go`; sizes:
    `Index.Add` in `pkg/kvcache/kvblock/index.go`.
    """

    def __init__(self, block_size: int, weights: Mapping[str, float]) -> None:
        self._block_size = block_size
        self._weights = weights
        self._heaviest_first = sorted(TIERS, key=lambda tier: -weights[tier])

    def score(self, match: Match) -> float | None:
        """Return the weighted number of blocks; None if not even the first block is held."""
        size = self._block_size
        done, score = 0, 0.0
        least = math.inf
        """The lowest weight in the last block, which ends in a later span."""
        for start, stop, tier in spans_of(match.held, self._heaviest_first):
            end = min(stop * match.block_size, match.known_tokens)
            if start * match.block_size >= end:
                break
            weight = self._weights[tier]
            least = min(least, weight)
            blocks = end // size - done
            if blocks:
                score += least + (blocks - 1) * weight
                done += blocks
                least = weight if end % size else math.inf
        return score if done else None
