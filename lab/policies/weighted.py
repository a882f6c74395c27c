"""The policy of a weighted sum of uncached prompt, queue and KV cache usage."""

from dataclasses import dataclass
from random import Random

from warmpath.scorer.candidate import Request
from warmpath.scorer.columns import Column, Columns, Costs
from warmpath.scorer.policy import check_option


@dataclass(frozen=True, slots=True)
class Weighted:
    """llm-d's scorers: the weighted sum of three shares.

    Prefix: the share of the prompt that is not cached. Queue: the engine's latest queue length, scaled
    from the shortest (0) to the longest (1) of the candidates. KV: the engine's latest KV cache usage.
    llm-d maximises scores; here the complements are costs to be minimised. The cost has no unit and
    lies between 0 and the sum of the weights.
    """

    prefix: float = 3.0
    queue: float = 2.0
    kv: float = 2.0
    min_max: float = 0.0
    """1: the prefix is scaled from the coldest to the warmest candidate, as llm-d once published.

    Then a first block that all prompts share counts as much as a whole prompt, and its holder is
    overloaded.
    """

    def __post_init__(self) -> None:
        check_option("prefix", self.prefix)
        check_option("queue", self.queue)
        check_option("kv", self.kv)
        if self.min_max not in {0.0, 1.0}:
            raise ValueError(f"option min-max is {self.min_max:g}: 0 or 1 is allowed")

    def costs(self, request: Request, columns: Columns, rng: Random) -> Costs:
        del rng
        if self.min_max:
            missing = _shares(-columns.cached)
        else:
            # A text that was not tokenised in time may have 0 tokens.
            missing = 1 - columns.cached / max(1, request.prompt_tokens)
        return Costs.sum_of(
            ("prefix", self.prefix * missing),
            ("queue", self.queue * _shares(columns.load.queue)),
            ("kv", self.kv * columns.load.kv_usage),
        )


def _shares(values: Column) -> Column:
    """Return values scaled from the least (0) to the greatest (1); all 0 if they are equal."""
    lowest = values.min()
    span: float = values.max() - lowest
    shares: Column = (values - lowest) / (span or 1.0)
    return shares
