"""The warmest of those that are not far above the least loaded."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from scorer.candidate import Candidate, Ranked, Request
from scorer.option import check_option
from scorer.order import in_order
from scorer.places import places


@dataclass(frozen=True, slots=True)
class LoadBand:
    """The longest prefix within a band of load (`band` in `shared/bench/policy-study.md`).

    Load is prompt tokens that wait for a prefill; the band ends at factor x the least of the candidates
    + slack. Those outside follow, the least loaded first. The cost is the place in that order.
    """

    factor: float = 1.5
    slack: float = 20_000.0
    """Tokens."""

    def __post_init__(self) -> None:
        check_option("factor", self.factor, lowest=1.0)
        check_option("slack", self.slack)

    def rank(self, request: Request, candidates: Sequence[Candidate], rng: Random) -> list[Ranked]:
        """Return the candidates, the warmest within the band first."""
        lightest = min(one.load.waiting_prompt_tokens for one in candidates)
        end = self.factor * lightest + self.slack
        keys = []
        for one in candidates:
            waiting = float(one.load.waiting_prompt_tokens)
            uncached = float(request.prompt_tokens - one.cached)
            keys.append((0.0, uncached, waiting) if waiting <= end else (1.0, waiting, uncached))
        return in_order(
            [
                Ranked(one, place, _terms(key))
                for one, key, place in zip(candidates, keys, places(keys), strict=True)
            ],
            rng,
        )


def _terms(key: tuple[float, float, float]) -> tuple[tuple[str, float], ...]:
    outside, first, second = key
    waiting, uncached = (first, second) if outside else (second, first)
    return (("outside", outside), ("uncached", uncached), ("waiting", waiting))
