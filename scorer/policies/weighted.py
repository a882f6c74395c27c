"""Warmth, queue and memory, each a share, weighed and added."""

from dataclasses import dataclass
from random import Random

from scorer.candidate import Request
from scorer.columns import Columns, Costs
from scorer.load_columns import Column
from scorer.option import check_option


@dataclass(frozen=True, slots=True)
class Weighted:
    """llm-d's built-in scorers (`shared/bench/peer-features.md`, 3): the weighted sum of three shares.

    The prefix: what of the prompt is not cached. The queue, as the engine said last: between the
    shortest and the longest of the candidates. The KV cache: how full it is, as the engine said
    last. llm-d adds up what is good and takes the most; here what is missing of it, and the least.
    The cost has no unit: from 0 to the sum of the weights.
    """

    prefix: float = 3.0
    queue: float = 2.0
    kv: float = 2.0
    min_max: float = 0.0
    """1: the prefix counts between the coldest and the warmest candidate, as llm-d once published.

    A first block that every prompt has in common then counts as much as a whole prompt, and its
    holder drowns (`shared/bench/policy-study.md`, "Surprises").
    """

    def __post_init__(self) -> None:
        check_option("prefix", self.prefix)
        check_option("queue", self.queue)
        check_option("kv", self.kv)
        if self.min_max not in {0.0, 1.0}:
            raise ValueError(f"option min-max is {self.min_max:g}: 0 or 1 is allowed")

    def costs(self, request: Request, columns: Columns, rng: Random) -> Costs:
        """Return the weighted sums of what is missing."""
        del rng
        if self.min_max:
            missing = _shares(-columns.cached)
        else:
            # Of a text that was not tokenised in time no token is known.
            missing = 1 - columns.cached / max(1, request.prompt_tokens)
        return Costs.sum_of(
            ("prefix", self.prefix * missing),
            ("queue", self.queue * _shares(columns.load.queue)),
            ("kv", self.kv * columns.load.kv_usage),
        )


def _shares(values: Column) -> Column:
    """Return where each value lies between the least, 0, and the greatest, 1; all 0 if equal."""
    lowest = values.min()
    span: float = values.max() - lowest
    shares: Column = (values - lowest) / (span or 1.0)
    return shares
