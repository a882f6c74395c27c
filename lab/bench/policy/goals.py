"""The goals of the comparison, and whether they are met; only the whole grid decides about them."""

from collections.abc import Sequence

from warmpath.lab.bench.figure import Figure
from warmpath.lab.bench.policy import goodput
from warmpath.lab.bench.policy.compare import Compared, standing
from warmpath.lab.bench.policy.conditions import Suffered
from warmpath.lab.bench.policy.goodput import Goodput
from warmpath.lab.simulate.study import BEST_PUBLISHED
from warmpath.scorer.policy import DEFAULT

QUEUED = f"{DEFAULT}, queued"
TO_BEST = "each place's best published policy"
LONG_PROMPTS = ("docs", "reading", "agent")


def of_grid(places: Sequence[Compared]) -> list[Figure]:
    """Return the goals for the grid."""
    if not places:
        return []
    queued, plain = standing(QUEUED, places), standing(DEFAULT, places)
    number = f"{len(places)} places"
    return [
        _ratio(f"queue on: TTFT p90, mean of {number}", queued.means["ttft_p90_s"], 0.60),
        _ratio(f"queue on: TTFT p99, mean of {number}", queued.means["ttft_p99_s"], 0.95),
        _ratio("queue on: TTFT p90, the worst place", queued.worst, 1.0),
        _ratio(f"queue off: TTFT p90, mean of {number}", plain.means["ttft_p90_s"], 0.80),
        _ratio(
            f"queue off: TTFT p90, the worst place ({plain.worst_place})",
            plain.worst_to_best,
            1.05,
            TO_BEST,
        ),
        _ratio(f"queue off: TTFT p99, mean of {number}", plain.means["ttft_p99_s"], 1.10),
    ]


def of_goodput(found: Sequence[Goodput]) -> list[Figure]:
    """Return the goals for goodput."""
    if not found:
        return []
    least = min(found, key=lambda one: one.ratio(QUEUED))
    name = f"{least.trace}, {least.engine}, {least.blocks:,} blocks"
    figures = [
        _ratio(f"queue on: goodput, the least ({name})", least.ratio(QUEUED), 1.05, least=True),
        _ratio(f"queue on: goodput, mean of {len(found)}", goodput.mean(found, QUEUED), None),
        _ratio(f"queue off: goodput, mean of {len(found)}", goodput.mean(found, DEFAULT), None),
    ]
    long = [one for one in found if one.trace.startswith(LONG_PROMPTS)]
    if long:
        value = goodput.mean(long, QUEUED)
        figures.append(_ratio("queue on: goodput with long prompts, mean", value, 1.15, least=True))
    return figures


def of_conditions(found: Sequence[Suffered]) -> list[Figure]:
    """Return the goals for the conditions."""
    figures = []
    for queue, name, baseline in (
        ("queue on", "queued_to_baseline", BEST_PUBLISHED),
        ("queue on", "queued_to_unqueued", "queue off, same condition"),
        ("queue off", "unqueued_to_baseline", BEST_PUBLISHED),
    ):
        ratios = {(one.traffic, one.condition): one.ratios[name] for one in found}
        if ratios:
            worst = max(ratios, key=lambda place: ratios[place])
            title = f"{queue}: TTFT p90, the worst condition ({', '.join(worst)})"
            figures.append(_ratio(title, ratios[worst], 1.0, baseline))
    return figures


def _ratio(
    name: str,
    value: float,
    goal: float | None,
    baseline: str = BEST_PUBLISHED,
    *,
    least: bool = False,
) -> Figure:
    return Figure(name, value, "x", 1.0, baseline, goal=goal, least=least)
