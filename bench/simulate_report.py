"""The simulation's report: a page of plots and tables."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes

from bench import report
from bench import simulate_summary as summary
from bench.simulate_cell import Figures
from bench.study import BEST_PUBLISHED, POOLED, PUBLISHED
from scorer.policy import DEFAULT

MOST_LINES = 6
"""Curves that can be told apart in one plot."""

Cell = Mapping[str, Sequence[Figures]]


def write_report(path: Path, rows: Sequence[Figures]) -> Path:
    """Write the page; return its path."""
    cells = summary.by_cell(rows)
    parts = [report.paragraph(_setting(rows))]
    if len(cells) > 1:
        standings = summary.standings(cells)
        parts += [
            report.heading("All cells"),
            report.table([summary.STANDING_HEAD, *summary.standing_rows(standings)]),
        ]
        if any(one.p90_ratio for one in standings):
            parts.append(_standing_plot(standings, cells))
    for place, policies in cells.items():
        parts += [
            report.heading(summary.title(place)),
            report.table([summary.CELL_HEAD, *summary.cell_rows(policies)]),
            report.plot(
                "time to first token, seconds: the share of requests that had it by then",
                lambda axes, policies=policies: _curves(axes, policies),  # type: ignore[misc]
            ),
            report.plot(
                "what is cached against how long requests wait",
                lambda axes, policies=policies: _trade(axes, policies),  # type: ignore[misc]
            ),
            report.plot(
                "seconds of prefill of each pod",
                lambda axes, policies=policies: _pods(axes, policies),  # type: ignore[misc]
            ),
        ]
    report.write_page(path, "warmpath simulate", parts)
    return path


def _setting(rows: Sequence[Figures]) -> str:
    first = rows[0]
    settings = ", ".join(f"{name} {value}" for name, value in first.settings.items())
    return (
        f"{first.requests:,} requests of {first.trace}, engine {first.engine}; {settings}. Figures "
        f"are medians over {len({row.seed for row in rows})} seeds, ratios are to {BEST_PUBLISHED}."
    )


def _standing_plot(
    standings: Sequence[summary.Standing], cells: Mapping[summary.Place, Cell]
) -> str:
    ranked = [(one.policy, one.p90_ratio) for one in reversed(standings) if one.p90_ratio]

    def draw(axes: Axes) -> None:
        for height, (policy, mean) in enumerate(ranked):
            ratios = [
                found
                for cell in cells.values()
                if policy in cell
                and (found := summary.ratio(cell, policy, "ttft_p90_s")) is not None
            ]
            axes.scatter(ratios, [height] * len(ratios), s=12, color="0.6")
            axes.scatter([mean], [height], s=45, marker="D", color="C0")
        axes.set_yticks(range(len(ranked)), [policy for policy, _ in ranked])
        axes.axvline(1.0, color="0.3", linewidth=1)
        axes.set_xscale("log")

    title = f"TTFT p90 as a ratio to {BEST_PUBLISHED}: each cell, and the geometric mean"
    return report.plot(title, draw, height=1.2 + 0.24 * len(ranked))


def _chosen(policies: Cell) -> list[str]:
    """Return the policies to draw: ours, the best published ones of the cell, and the bound."""
    by_p90 = sorted(policies, key=lambda policy: summary.median(policies[policy], "ttft_p90_s"))
    first = [name for name in (DEFAULT, BEST_PUBLISHED, POOLED, "round-robin") if name in policies]
    published = [name for name in by_p90 if name in PUBLISHED.values()]
    return list(dict.fromkeys([*first, *published, *by_p90]))[:MOST_LINES]


def _curves(axes: Axes, policies: Cell) -> None:
    for policy in _chosen(policies):
        curve = policies[policy][0].ttft_curve_s
        shares = [number / (len(curve) - 1) for number in range(len(curve))]
        axes.step(curve, shares, where="post", label=policy)
    axes.set_xscale("log")


def _trade(axes: Axes, policies: Cell) -> None:
    chosen = _chosen(policies)
    for policy, rows in policies.items():
        point = summary.median(rows, "hit_share"), summary.median(rows, "ttft_p90_s")
        axes.scatter(
            *[[value] for value in point],
            color=f"C{chosen.index(policy)}" if policy in chosen else "0.6",
            label=policy if policy in chosen else None,
        )
    axes.set_yscale("log")
    axes.set_xlabel("token hit ratio as a share of the ceiling")
    axes.set_ylabel("TTFT p90, seconds")


def _pods(axes: Axes, policies: Cell) -> None:
    chosen = _chosen(policies)
    width = 0.8 / len(chosen)
    for position, policy in enumerate(chosen):
        seconds = policies[policy][0].pod_prefill_s
        places = [pod + (position + 0.5) * width for pod in range(len(seconds))]
        axes.bar(places, seconds, width, label=policy)
    axes.set_xlabel("pod")
