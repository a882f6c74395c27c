"""Compares the pods that somebody else's gateway chose with those that the policy would have picked.

The caches are those that the gateway's choices filled; with the policy's own they would be warmer.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.pick.pick import Pick, Predicted

MOST_TIMES = 4096
"""The saved seconds of this many last requests of a model are kept, for their quantiles."""


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the value that a `share` (0 to 1) of ordered values does not exceed; 0 of none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


@dataclass(slots=True)
class _Compared:
    """The requests of one model."""

    counts: pb.Shadow
    saved: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_TIMES))
    """Predicted seconds by which the first tokens would have come earlier."""
    work: dict[str, list[float]] = field(default_factory=dict)
    """By pod: the seconds of prefill that the gateway gave it, and that the policy would have."""


class ShadowComparison:
    """Sums up both choices, by model. A request counts if its pod was a candidate of the pick."""

    def __init__(self) -> None:
        # Bounded by the number of configured models.
        self._models: dict[str, _Compared] = {}

    def add(self, placed: Pick) -> None:
        """Count a shadow pick whose request went to one of its candidates."""
        model = self._models.setdefault(placed.model, _Compared(pb.Shadow(model=placed.model)))
        row, tokens = model.counts, placed.prompt_tokens
        chosen, ours = placed.predicted[placed.went], placed.predicted[placed.picked]
        row.requests += 1
        row.prompt_tokens += tokens
        row.chosen_tokens += chosen.held
        row.warmpath_tokens += ours.held
        row.chosen_ttft += _ttft(chosen)
        row.warmpath_ttft += _ttft(ours)
        row.agreed += placed.went[0] == placed.picked[0]
        row.exact += placed.is_whole and chosen.is_exact and ours.is_exact
        if ours.held > chosen.held:
            row.better += 1
            row.better_prompt_tokens += tokens
            row.better_tokens += ours.held - chosen.held
        elif ours.held < chosen.held:
            row.worse += 1
            row.worse_tokens += chosen.held - ours.held
        model.saved.append(_ttft(chosen) - _ttft(ours))
        for pod, _ in placed.predicted:
            model.work.setdefault(pod, [0.0, 0.0])
        model.work[placed.went[0]][0] += chosen.prefill
        model.work[placed.picked[0]][1] += ours.prefill

    def rows(self) -> Iterable[pb.Shadow]:
        """Return the sums of each model, with quantiles of saved seconds and both choices' imbalance."""
        for model in self._models.values():
            row, saved = model.counts, sorted(model.saved)
            row.saved_p50, row.saved_p90 = quantile(saved, 0.5), quantile(saved, 0.9)
            chosen, ours = zip(*model.work.values(), strict=True) if model.work else ((), ())
            row.chosen_imbalance, row.warmpath_imbalance = imbalance(chosen), imbalance(ours)
        return [model.counts for model in self._models.values()]

    def forget(self, pod: str) -> None:
        """Drop the seconds of prefill of a removed pod, which then count for no imbalance."""
        for model in self._models.values():
            model.work.pop(pod, None)


def _ttft(predicted: Predicted) -> float:
    return predicted.wait + predicted.prefill


def imbalance(work: Sequence[float]) -> float:
    """Return the busiest pod's work divided by the mean; 0 without any work."""
    mean = fmean(work) if work else 0.0
    return max(work) / mean if mean else 0.0
