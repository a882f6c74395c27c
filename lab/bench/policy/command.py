"""`python -m warmpath.lab.bench policy`: runs what is missing of the grid, and prints the comparison."""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from math import inf
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from warmpath.lab.bench.figure import Figure
from warmpath.lab.bench.policy import compare, conditions, goals, goodput
from warmpath.lab.bench.policy.grid import Extent, first_round
from warmpath.lab.bench.policy.kept import Kept, code_version
from warmpath.lab.simulate.command import COLUMNS
from warmpath.lab.simulate.study import BEST_PUBLISHED
from warmpath.scorer.policy import DEFAULT

PARTS = ("grid", "conditions", "goodput")
SHOWN = ("ttft_p50_s", "ttft_mean_s", "ttft_p90_s", "ttft_p95_s", "ttft_p99_s", "hit_share")

TRACE_HELP = (
    "a trace or an access log, repeatable; without it a slice of Mooncake's conversation trace"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Compare picks with and without the queue with published policies, in simulations.

    The whole takes many hours. Results are kept in a file that is named by the version of the code, so a
    run that was stopped goes on, and --minutes shows what is there by then.
    """
    parser = argparse.ArgumentParser(
        prog="python -m warmpath.lab.bench policy",
        description=main.__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="a few places and 1,000 requests; decides nothing")
    add("--requests", type=int, default=4000, help="number of requests of each place; 0: all")
    add("--seeds", default="1,2,3", help="of ties; figures are medians")
    add("--trace", type=Path, action="append", default=[], help=TRACE_HELP)
    add("--parts", default=",".join(PARTS), help="what to run")
    add("--minutes", type=float, default=inf, help="begin no run after these minutes")
    add("--processes", type=int, default=2, help="how many runs at once")
    add("--results", type=Path, default=Path("out/bench-policy"), help="the folder of kept results")
    add("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args(argv)
    parts = args.parts.split(",")
    unknown = set(parts) - set(PARTS)
    if unknown:
        parser.error(f"--parts: {', '.join(sorted(unknown))}; known: {', '.join(PARTS)}")
    missing = [path for path in args.trace if not path.is_file()]
    if missing:
        parser.error(f"--trace: there is no file {missing[0]}")
    try:
        seeds = [int(seed) for seed in args.seeds.split(",")]
    except ValueError:
        parser.error(f"--seeds is {args.seeds!r}, not whole numbers with commas")
    for name, value in (("processes", args.processes), ("requests", args.requests + 1)):
        if value < 1:
            parser.error(f"--{name} is too small")
    extent = Extent(1000 if args.quick else args.requests, seeds, args.quick, args.trace)
    if args.quick:
        extent = Extent(extent.requests, seeds[:1], quick=True)
    console = Console(stderr=args.json, width=None if sys.stdout.isatty() else 150)
    with Progress(*COLUMNS, console=console, transient=True) as progress:
        task = progress.add_task("simulating")
        kept = Kept(
            args.results,
            processes=args.processes,
            deadline=time.monotonic() + 60 * args.minutes,
            progress=lambda done, of: progress.update(task, completed=done, total=of),
        )
        found = _Found(kept, extent, parts)
    if args.json:
        print(json.dumps(found.as_json()))
    else:
        found.present(console)
    return 0


class _Found:
    """The results of the parts that were asked for."""

    def __init__(self, kept: Kept, extent: Extent, parts: Sequence[str]) -> None:
        self._kept = kept
        self._extent = extent
        places = extent.places() if "grid" in parts else []
        if "conditions" in parts:
            kept.run(conditions.to_run(extent))
        kept.run(first_round(places))
        kept.run(compare.second_round(kept, places, extent.seeds))
        compared = (compare.compared(kept, place, extent.seeds) for place in places)
        self.asked = len(places)
        self.places = [one for one in compared if one is not None]
        self.suffered = conditions.suffered(kept, extent) if "conditions" in parts else []
        self.goodput = goodput.search(kept, extent) if "goodput" in parts else []
        self.figures: list[Figure] = [
            *goals.of_grid(self.places),
            *goals.of_goodput(self.goodput),
            *goals.of_conditions(self.suffered),
        ]

    def as_json(self) -> dict[str, object]:
        return {
            "code": code_version(),
            "quick": self._extent.quick,
            "requests": self._extent.requests,
            "seeds": [*self._extent.seeds],
            "baseline": BEST_PUBLISHED,
            "places_asked": self.asked,
            "goals": [asdict(one) for one in self.figures],
            "standings": {
                name: {
                    policy: asdict(compare.standing(policy, ones))
                    for policy in (DEFAULT, goals.QUEUED)
                }
                for name, ones in compare.groups(self.places).items()
            },
            "places": [compare.row_of(one) for one in self.places],
            "conditions": [conditions.row_of(one) for one in self.suffered],
            "goodput": [goodput.row_of(one) for one in self.goodput],
        }

    def present(self, console: Console) -> None:
        console.print(f"results: {self._kept.path}")
        for table in self._tables():
            console.print(table)
        if len(self.places) < self.asked:
            console.print(
                f"{len(self.places)} of {self.asked} places were run: the goals are those of all."
            )
        if self._extent.quick:
            console.print("A few places and requests decide nothing: the goals are those of all.")

    def _tables(self) -> Iterator[Table]:
        if self.places:
            yield self._standings()
            yield self._of_places()
        if self.suffered:
            yield self._conditions()
        if self.goodput:
            yield self._goodput()
        yield table_of_goals(self.figures)

    def _standings(self) -> Table:
        names = [name.removeprefix("ttft_").removesuffix("_s") for name in SHOWN]
        table = new_table(
            f"ratios to {BEST_PUBLISHED}: geometric means, and the worst place",
            "places", "", "policy", *names, "p90 to best", "worst p90", "to best", "worst p99",
        )  # fmt: skip
        for name, ones in compare.groups(self.places).items():
            for policy in (DEFAULT, goals.QUEUED):
                one = compare.standing(policy, ones)
                means = [f"{one.means[figure]:.3f}" for figure in SHOWN]
                worst = (one.best_mean, one.worst, one.worst_to_best, one.worst_p99)
                table.add_row(
                    name, str(one.places), policy, *means, *(f"{value:.2f}" for value in worst)
                )
        return table

    def _of_places(self) -> Table:
        table = new_table(
            f"TTFT p90 in s, hits as shares of the ceiling, and ratios of {DEFAULT} | queued",
            "place", BEST_PUBLISHED, "best", "p90 s", "off", "on", "p90 to llmd", "p99 to llmd",
            "p90 to best", "hits", "imbalance",
        )  # fmt: skip
        for one in sorted(self.places, key=compare.name_of):
            by, best = one.figures, one.best

            def pair(name: str, to: str, one: compare.Compared = one) -> str:
                off, on = (one.ratio(policy, name, to) for policy in (DEFAULT, goals.QUEUED))
                return f"{off:.2f} | {on:.2f}"

            def both(name: str, one: compare.Compared = one) -> str:
                off, on = (one.figures[policy][name] for policy in (DEFAULT, goals.QUEUED))
                return f"{off:.2f} | {on:.2f}"

            table.add_row(
                compare.name_of(one) + (", overloaded" if one.overloaded else ""),
                f"{by[BEST_PUBLISHED]['ttft_p90_s']:.2f}",
                best,
                f"{by[best]['ttft_p90_s']:.2f}",
                f"{by[DEFAULT]['ttft_p90_s']:.2f}",
                f"{by[goals.QUEUED]['ttft_p90_s']:.2f}",
                pair("ttft_p90_s", BEST_PUBLISHED),
                pair("ttft_p99_s", BEST_PUBLISHED),
                pair("ttft_p90_s", best),
                both("hit_share"),
                both("imbalance"),
            )
        return table

    def _conditions(self) -> Table:
        table = new_table(
            "TTFT p90 / p99 in s under conditions",
            "traffic", "condition", BEST_PUBLISHED, "queue off", "queue on", "off to llmd",
            "on to llmd", "on to off",
        )  # fmt: skip
        for one in self.suffered:
            table.add_row(
                one.traffic,
                one.condition,
                *(
                    f"{p90:.2f} / {p99:.1f}"
                    for p90, p99 in (one.baseline, one.unqueued, one.queued)
                ),
                *(f"{ratio:.2f}" for ratio in one.ratios.values()),
            )
        return table

    def _goodput(self) -> Table:
        table = new_table(
            f"goodput, {goodput.PODS} pods: the highest load with TTFT p90 < {goodput.TTFT_SECONDS:g} s "
            f"and TPOT p90 < {goodput.TPOT_MS:g} ms",
            "traffic", "engine", "blocks", BEST_PUBLISHED, "off", "on", "off ratio", "on ratio",
        )  # fmt: skip
        for one in self.goodput:
            table.add_row(
                one.trace,
                one.engine,
                f"{one.blocks:,}",
                *(f"{one.loads[name]:.3f}" for name in (BEST_PUBLISHED, DEFAULT, goals.QUEUED)),
                *(f"{one.ratio(name):.3f}" for name in (DEFAULT, goals.QUEUED)),
            )
        return table


def new_table(title: str, *head: str) -> Table:
    """Return an empty table with these columns."""
    table = Table(title=title, title_justify="left", box=None)
    for name in head:
        table.add_column(name, justify="left" if name in _WORDS else "right")
    return table


def table_of_goals(figures: Sequence[Figure]) -> Table:
    """Return the table of goals, met or missed."""
    table = new_table("goals", "figure", "ratio", "goal", "", "to")
    for one in figures:
        goal = "" if one.goal is None else f"{'>=' if one.least else '<='} {one.goal:g}"
        met = {None: "", True: "met", False: "missed"}[one.met]
        table.add_row(one.name, f"{one.value:.3f}", goal, met, one.baseline)
    return table


_WORDS = frozenset(
    ("figure", "to", "places", "policy", "place", "best", "traffic", "condition", "engine")
)
