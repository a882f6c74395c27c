"""The simulation's report: a page of plots and tables."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes

from warmpath.lab.local import report
from warmpath.lab.simulate import summary
from warmpath.lab.simulate.figures import Figures
from warmpath.lab.simulate.study import BEST_PUBLISHED, POOLED, PUBLISHED
from warmpath.scorer.policy import DEFAULT

MOST_LINES = 6
"""The most curves in one plot."""
BEST_FEW = 5
"""Number of best policies named in a plot, in addition to ours and the best published one."""
NAME_HEIGHT = 0.1
"""The least distance between two names beside a plot, as a share of its height."""

Cell = Mapping[str, Sequence[Figures]]
"""The figures of one place (`summary.StudyPlace`) by policy, a row for each seed."""


def write_report(
    path: Path, rows: Sequence[Figures], command: Sequence[str], options: Mapping[str, object]
) -> Path:
    """Write the page of the rows that a command line with these options made; return its path."""
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
            report.plots(
                report.plot(
                    "share of requests with their first token by then",
                    lambda axes, policies=policies: _curves(axes, policies),  # type: ignore[misc]
                ),
                report.plot(
                    "seconds of prefill of each pod",
                    lambda axes, policies=policies: _pods(axes, policies),  # type: ignore[misc]
                ),
                report.plot(
                    "hit ratio and time to first token of each policy",
                    lambda axes, policies=policies: _trade(axes, policies),  # type: ignore[misc]
                    height=4.6,
                ),
            ),
            report.paragraph(_named_note(policies)),
            *map(report.paragraph, summary.remarks(policies)),
        ]
    seeds = sorted({row.seed for row in rows})
    made = report.provenance(command, options) | {"seed": ", ".join(map(str, seeds))}
    parts += [report.heading("How this page was made"), report.facts(made)]
    report.write_page(path, "warmpath simulate", parts)
    return path


def _setting(rows: Sequence[Figures]) -> str:
    first, settings = rows[0], rows[0].settings
    seeds = len({row.seed for row in rows})
    engines = f"by engines of kind {first.engine} with the times of {settings['preset']}"
    events = f"Cache events reach the router {settings['event_delay']:g} s late"
    sentences = [
        f"{first.requests:,} requests of {first.trace}, served {engines}.",
        f"{events}, and it looks at the engines' metrics every {settings['scrape']:g} s.",
    ]
    if first.bad_lines:
        sentences.append(f"Lines left out, since they are wrong: {first.bad_lines:,}.")
    sentences += summary.conditions(settings)
    sentences += [
        f"Figures are medians over {seeds} seeds."
        if seeds > 1
        else f"Ties are broken by seed {first.seed} alone.",
        summary.ratios_to(rows),
        "Imbalance is the busiest pod's prefill over the pods' mean; busy is that mean over the time.",
    ]
    return " ".join(sentences)


def _standing_plot(
    standings: Sequence[summary.PolicyStanding], cells: Mapping[summary.StudyPlace, Cell]
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
        axes.set_ylim(-0.6, len(ranked) - 0.4)
        axes.axvline(1.0, color=report.INK, linewidth=1)
        report.logarithmic(axes, "x")
        axes.set_xlabel(f"TTFT p90 / that of {BEST_PUBLISHED}")

    title = f"TTFT p90 as a ratio to {BEST_PUBLISHED}: each cell, and the geometric mean"
    return report.plot(title, draw, height=1.2 + 0.24 * len(ranked))


def _chosen(policies: Cell) -> list[str]:
    """Return the MOST_LINES policies to draw.

    The default, BEST_PUBLISHED, the bound and round-robin come first, then the published ones, then
    all others, the least p90 first.
    """
    by_p90 = _by_p90(policies)
    first = [name for name in (DEFAULT, BEST_PUBLISHED, POOLED, "round-robin") if name in policies]
    published = [name for name in by_p90 if name in PUBLISHED.values()]
    return list(dict.fromkeys([*first, *published, *by_p90]))[:MOST_LINES]


def _by_p90(policies: Cell) -> list[str]:
    return sorted(policies, key=lambda policy: summary.median(policies[policy], "ttft_p90_s"))


def _curves(axes: Axes, policies: Cell) -> None:
    for policy, drawn in report.strokes(_chosen(policies)).items():
        curve = policies[policy][0].ttft_curve_s
        shares = [number / (len(curve) - 1) for number in range(len(curve))]
        axes.step(curve, shares, where="post", label=policy, **drawn)
    report.logarithmic(axes, "x")
    axes.set_xlabel("time to first token, seconds")
    axes.set_ylabel("share of requests")


def _named(policies: Cell) -> list[str]:
    """Return the policies to name beside their points, the least p90 first."""
    by_p90 = _by_p90(policies)
    return [
        name
        for place, name in enumerate(by_p90)
        if place < BEST_FEW or name in (DEFAULT, BEST_PUBLISHED)
    ]


def _named_note(policies: Cell) -> str:
    named = _named(policies)
    others = len(policies) - len(named)
    best = "Better is further down and further to the right; colours are as in the other plots."
    if not others:
        return best
    always = [name for name in (DEFAULT, BEST_PUBLISHED) if name in policies]
    beside = f", and {' and '.join(always)}" if always else ""
    return (
        f"{best} Named are the {BEST_FEW} policies with the least p90{beside}; the table above has "
        f"the {others} others too."
    )


def _trade(axes: Axes, policies: Cell) -> None:
    has_ceiling = next(iter(policies.values()))[0].ceiling > 0
    figure = "hit_share" if has_ceiling else "token_hit_ratio"
    points = {
        policy: (summary.median(rows, figure), summary.median(rows, "ttft_p90_s"))
        for policy, rows in policies.items()
    }
    named, drawn = _named(policies), report.strokes(_chosen(policies))
    for policy, (share, p90) in points.items():
        axes.scatter([share], [p90], color=drawn[policy]["color"] if policy in drawn else "0.6")
    report.logarithmic(axes, "y")
    to_axes = axes.transData + axes.transAxes.inverted()
    heights = _apart([float(to_axes.transform(points[policy])[1]) for policy in named])
    for height, policy in zip(heights, named, strict=True):
        # The names stand in a column beside the plot, each near its point, where they do not overlap.
        axes.annotate(
            policy,
            points[policy],
            xytext=(1.03, height),
            textcoords="axes fraction",
            va="center",
            arrowprops={"arrowstyle": "-", "color": "0.7", "shrinkB": 3, "relpos": (0, 0.5)},
        )
    if has_ceiling:
        axes.axvline(
            1.0, color=report.INK, linewidth=1, label="ceiling: one cache of all pods' size"
        )
    axes.set_xlabel("token hit ratio" + (" as a share of the ceiling" if has_ceiling else ""))
    axes.set_ylabel("TTFT p90, seconds")


def _apart(heights: Sequence[float]) -> Sequence[float]:
    """Return rising heights, as shares of the plot's, moved so that names at them do not overlap."""
    apart: list[float] = []
    for height in heights:
        apart.append(max(height, apart[-1] + NAME_HEIGHT) if apart else height)
    top = 1.0
    for place in reversed(range(len(apart))):
        apart[place] = min(apart[place], top)
        top = apart[place] - NAME_HEIGHT
    return apart


def _pods(axes: Axes, policies: Cell) -> None:
    report.pod_bars(
        axes, {policy: policies[policy][0].pod_prefill_s for policy in _chosen(policies)}
    )
    axes.set_xlabel("pod")
    axes.set_ylabel("seconds of prefill")
