"""The warmest until its queue is long, then the least loaded."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from scorer.candidate import Candidate, Ranked, Request
from scorer.option import check_option
from scorer.order import in_order
from scorer.places import places


@dataclass(frozen=True, slots=True)
class StickyQueue:
    """A cliff in place of a weight (`sticky` in `shared/bench/policy-study.md`).

    The longest prefix, among equals the fewest prompt tokens that wait for a prefill; the cost is
    the place in that order. When more than `q` requests wait there, the cost is those tokens.
    """

    q: float = 4.0
    """Requests without their first token."""

    def __post_init__(self) -> None:
        check_option("q", self.q)

    def rank(self, request: Request, candidates: Sequence[Candidate], rng: Random) -> list[Ranked]:
        """Return the candidates, the least cost first."""
        keys = [
            (
                float(request.prompt_tokens - one.cached),
                float(one.load.waiting_prompt_tokens),
                float(one.load.waiting > self.q),
            )
            for one in candidates
        ]
        too_long = min(keys)[2]
        costs = [waiting for _, waiting, _ in keys] if too_long else places(keys)
        names = ("uncached", "waiting", "too_long")
        return in_order(
            [
                Ranked(one, cost, tuple(zip(names, key, strict=True)))
                for one, key, cost in zip(candidates, keys, costs, strict=True)
            ],
            rng,
        )
