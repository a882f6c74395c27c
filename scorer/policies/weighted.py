"""Warmth, queue and memory, each a share, weighed and added."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from scorer.candidate import Candidate, Ranked, Request
from scorer.option import check_option
from scorer.order import in_order


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

    def rank(self, request: Request, candidates: Sequence[Candidate], rng: Random) -> list[Ranked]:
        """Return the candidates, the least cost first."""
        if self.min_max:
            missing = _shares([-one.cached for one in candidates])
        else:
            # Of a text that was not tokenised in time no token is known.
            whole = max(1, request.prompt_tokens)
            missing = [1 - one.cached / whole for one in candidates]
        queues = _shares([one.load.queue for one in candidates])
        ranked = []
        for one, cold, queue in zip(candidates, missing, queues, strict=True):
            terms = (self.prefix * cold, self.queue * queue, self.kv * one.load.kv_usage)
            names = zip(("prefix", "queue", "kv"), terms, strict=True)
            ranked.append(Ranked(one, sum(terms), tuple(names)))
        return in_order(ranked, rng)


def _shares(values: Sequence[int]) -> list[float]:
    """Return where each value lies between the least, 0, and the greatest, 1; all 0 if equal."""
    lowest = min(values)
    span = max(values) - lowest
    return [(value - lowest) / span if span else 0.0 for value in values]
