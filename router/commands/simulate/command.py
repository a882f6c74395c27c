"""`warmpath simulate`: the router's own decisions on recorded or generated traffic."""

import argparse
import json
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from router.commands.out_folder import claim
from router.commands.simulate import summary
from router.commands.simulate.cell import Cell
from router.commands.simulate.figures import Figures
from router.commands.simulate.fleet import ENGINE_KINDS
from router.commands.simulate.router import REPORTS
from router.commands.simulate.run import run
from router.commands.simulate.study import (
    MATRIX_BLOCKS,
    MATRIX_LOADS,
    MATRIX_PODS,
    STUDY_NAMES,
    variants,
)
from router.commands.simulate.traffic import KINDS, Generated
from scorer.policy import DEFAULT, policy_names
from simworker.presets import DEFAULT_PRESET, PRESETS

PAGE, ROWS = "report.html", "results.jsonl"
"""The result files."""
GRID = {"pods": 8, "blocks_per_pod": 1500, "load": 0.5}
"""The options that --matrix replaces, with their defaults."""

NumberT = TypeVar("NumberT", int, float)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve recorded or generated traffic with simulated pods under one policy or many, and compare."""
    args = _parser().parse_args(argv)
    # `timeout` and supervisors send SIGTERM, which ends runs in other processes like Ctrl-C.
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        return _main(args)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminated(number: int, _frame: object) -> None:
    sys.exit(128 + number)


def _main(args: argparse.Namespace) -> int:
    console = Console(stderr=args.json, width=None if sys.stdout.isatty() else 150)
    try:
        cells = _cells(args)
        for cell in cells:
            cell.check()
        write_report = _report_writer() if args.report else None
        if args.report:
            claim(args.report, [PAGE, ROWS])
        rows = list(_kept(_run(cells, args.processes, console), args.report))
        if write_report is not None:
            console.print(f"report: {write_report(args.report / PAGE, rows)}")
    except (OSError, ValueError) as error:
        print(f"warmpath simulate: {_text_of(error)}", file=sys.stderr)
        return 1
    if args.json:
        found = [asdict(row) for row in rows]
        print(json.dumps(found[0] if len(found) == 1 else found))
    else:
        _present(rows, console)
    return 0


def _text_of(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="warmpath simulate",
        description=main.__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        epilog=f"Policies: {', '.join(policy_names())}. docs/simulate.md describes all options.",
    )
    add = parser.add_argument
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--trace", type=Path, help="a Mooncake trace or an access log, .gz or not")
    source.add_argument("--traffic", choices=sorted(KINDS), help="a kind of generated traffic")
    add(
        "--traffic-seed",
        type=int,
        default=1,
        help="seed of generated traffic; each seed gives other requests",
    )
    add(
        "--policy",
        default=DEFAULT,
        help="NAME[@option=value...], several with commas; `published`: the policy study's; `all`",
    )
    # No defaults here, so that --matrix can tell which options were given.
    grid = parser.add_argument_group(
        "fleet and load",
        argument_default=argparse.SUPPRESS,
        description="Each takes a list; every combination is run.",
    )
    grid.add_argument("--pods", type=_list(int), help="number of pods, at most 1,024 (default: 8)")
    grid.add_argument(
        "--blocks-per-pod",
        type=_list(int),
        help="a pod's KV cache, in blocks of the trace; Mooncake's have 512 tokens (default: 1500)",
    )
    grid.add_argument(
        "--load", type=_list(float), help="seconds of prefill over pods x time (default: 0.5)"
    )
    grid.add_argument(
        "--matrix",
        action="store_true",
        default=False,
        help="run the policy study's 12 combinations instead of the lists above",
    )
    add(
        "--requests",
        type=int,
        default=0,
        help="number of requests, from the first; 0: all (6,000 of --traffic)",
    )
    add("--seed", type=_list(int), default="1", help="breaks ties; tables show medians of a list")
    add("--engine", choices=ENGINE_KINDS, default="serial", help="the study's, or vLLM's scheduler")
    add("--preset", choices=sorted(PRESETS), default=DEFAULT_PRESET, help="GPU and model")
    add("--event-delay", type=float, default=0.05, help="seconds that events take to the router")
    add("--scrape", type=float, default=0.05, help="seconds between looks at engines' metrics")
    add("--no-events-share", type=float, default=0.0, help="share of pods whose events never come")
    add(
        "--estimate-factor",
        type=float,
        default=1.0,
        help="router's prefill times over the real ones",
    )
    add(
        "--slow-factor",
        type=float,
        default=1.0,
        help="how many times as long every second pod takes for everything",
    )
    add(
        "--reports",
        choices=REPORTS,
        default="all",
        help="what gateways report: all, ends only, or none",
    )
    add("--raw-bursts", action="store_true", help="do not spread requests of one time stamp")
    add("--processes", type=int, default=2, help="how many runs at once")
    add("--report", type=Path, help="a folder for a page of plots, and the results as JSON lines")
    add("--json", action="store_true", help="print a JSON object, or a list for several runs")
    return parser


def _list(kind: Callable[[str], NumberT]) -> Callable[[str], list[NumberT]]:
    def parse(text: str) -> list[NumberT]:
        return [kind(part) for part in text.split(",")]

    # argparse uses the name in its error messages.
    parse.__name__ = f"list of {'whole numbers' if kind is int else 'numbers'}"
    return parse


def _cells(args: argparse.Namespace) -> list[Cell]:
    if args.processes < 1:
        raise ValueError(f"--processes is {args.processes}, less than 1")
    if args.trace and not args.trace.is_file():
        raise ValueError(f"--trace: there is no file {args.trace}")
    source = args.trace or Generated(args.traffic, args.traffic_seed)
    given = vars(args)
    pods, blocks, loads = (given.get(name, [value]) for name, value in GRID.items())
    if args.matrix:
        for name in GRID:
            if name in given:
                option = name.replace("_", "-")
                raise ValueError(f"--{option} and --matrix, which has its own: give only one")
        pods, blocks, loads = MATRIX_PODS, MATRIX_BLOCKS, MATRIX_LOADS
    return [
        Cell(
            source,
            one.spec,
            number,
            size,
            load,
            requests=args.requests,
            seed=seed,
            engine=args.engine,
            preset=args.preset,
            event_delay=args.event_delay,
            scrape=args.scrape,
            no_events_share=args.no_events_share,
            estimate_factor=args.estimate_factor,
            slow_factor=args.slow_factor,
            reports=args.reports,
            raw_bursts=args.raw_bursts,
        )
        for number in pods
        for size in blocks
        for load in loads
        for one in variants(args.policy)
        for seed in args.seed
    ]


def _kept(rows: Iterable[Figures], folder: Path | None) -> Iterator[Figures]:
    """Yield the rows; with a folder, also write each at once to its file `ROWS`."""
    if folder is None:
        yield from rows
        return
    with (folder / ROWS).open("w", encoding="utf-8") as file:
        for row in rows:
            print(json.dumps(asdict(row)), file=file, flush=True)
            yield row


def _report_writer() -> Callable[[Path, Sequence[Figures]], Path]:
    try:
        from router.commands.simulate.report import write_report  # noqa: PLC0415  matplotlib is an extra
    except ImportError as error:
        raise ValueError(f"--report: {error}; pip install 'warmpath[report]'") from error
    return write_report


def _run(cells: Sequence[Cell], processes: int, console: Console) -> Iterator[Figures]:
    """Run cells, several at once; yield their figures in order."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("simulating", total=len(cells))
        if processes == 1 or len(cells) == 1:
            for cell in cells:
                progress.update(task, description=f"{cell.policy}, {cell.pods} pods")
                yield run(cell)
                progress.advance(task)
            return
        # Spawned, since the progress bar has a thread. Leaving the context ends the processes.
        with get_context("spawn").Pool(min(processes, len(cells))) as pool:
            for figures in pool.imap(run, cells):
                progress.update(task, description=f"{figures.policy}, {figures.pods} pods")
                yield figures
                progress.advance(task)


def _present(rows: Sequence[Figures], console: Console) -> None:
    cells = summary.by_cell(rows)
    for place, policies in cells.items():
        first = next(iter(policies.values()))[0]
        heading = (
            f"{summary.title(place)}; {first.requests:,} requests, {first.speed:.2f} times as fast "
            f"as recorded; ceiling {first.ceiling:.3f}"
        )
        _table(console, heading, summary.CELL_HEAD, summary.cell_rows(policies))
        if first.refused:
            console.print(f"{first.refused} requests fit into no pod and were left out")
    if len(cells) > 1:
        found = summary.standings(cells)
        _table(console, "all cells", summary.STANDING_HEAD, summary.standing_rows(found))
    console.print(summary.ratios_to(rows))
    names = {row.policy: STUDY_NAMES[row.policy] for row in rows if row.policy in STUDY_NAMES}
    others = [f"{ours} = {theirs}" for ours, theirs in names.items() if ours != theirs]
    if others:
        console.print(f"The study's names: {', '.join(others)}.")


def _table(
    console: Console, heading: str, head: Sequence[str], rows: Sequence[Sequence[str]]
) -> None:
    table = Table(title=heading, title_justify="left", box=None)
    for number, name in enumerate(head):
        table.add_column(name, justify="right" if number else "left", no_wrap=not number)
    for row in rows:
        table.add_row(*row)
    console.print(table)
