"""Seconds until the first token, and what is decoded meanwhile."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from scorer.candidate import Candidate, Ranked, Request
from scorer.option import check_option
from scorer.order import in_order


@dataclass(frozen=True, slots=True)
class OverlapTime:
    """Dynamo's cost with its predicted prefill times (`dynamo_aic` in `shared/bench/policy-study.md`).

    The cost is in seconds: the wait for what is booked, which shrinks as it is computed, this prompt's
    prefill, and the prompts of all requests in flight, each token as if it were to be computed.
    """

    per_token: float = 70e-6
    """Seconds that a token in flight counts for."""

    def __post_init__(self) -> None:
        check_option("per-token", self.per_token)

    def rank(self, request: Request, candidates: Sequence[Candidate], rng: Random) -> list[Ranked]:
        """Return the candidates, the least cost first."""
        del request
        ranked = []
        for one in candidates:
            decode = self.per_token * one.load.context_tokens
            terms = (("wait", one.load.wait), ("prefill", one.prefill), ("decode", decode))
            ranked.append(Ranked(one, one.load.wait + one.prefill + decode, terms))
        return in_order(ranked, rng)
