"""`warmpath simulate`: the router's own decisions on recorded or generated traffic."""

import argparse
import json
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from warmpath.cli.console import new_console
from warmpath.lab.local.out_folder import claim
from warmpath.lab.simulate import summary
from warmpath.lab.simulate.cell import Cell
from warmpath.lab.simulate.figures import Figures
from warmpath.lab.simulate.options import cells, new_parser
from warmpath.lab.simulate.run import run
from warmpath.lab.simulate.study import STUDY_NAMES
from warmpath.process.command_line import USAGE, in_words

PAGE, ROWS = "report.html", "results.jsonl"
COLUMNS = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())


def main(argv: Sequence[str] | None = None) -> int:
    """Serve recorded or generated traffic with simulated pods under one policy or many, and compare."""
    given = sys.argv[1:] if argv is None else argv
    args = new_parser(main.__doc__).parse_args(given)
    # `timeout` and supervisors send SIGTERM, which ends runs in other processes like Ctrl-C.
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        return _main(args, ["warmpath", "simulate", *given])
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminated(number: int, _frame: object) -> None:
    sys.exit(128 + number)


def _main(args: argparse.Namespace, command: Sequence[str]) -> int:
    console = new_console(piped_width=150, stderr=args.json)
    try:
        asked = cells(args)
        for cell in asked:
            cell.check()
        write_report = _report_writer() if args.report else None
        if args.report:
            claim(args.report, [PAGE, ROWS])
        rows = list(_kept(_run(asked, args.processes, console), args.report))
        if write_report is not None:
            page = write_report(args.report / PAGE, rows, command, vars(args))
            console.print(f"report: {page}")
    except (OSError, ValueError) as error:
        print(f"warmpath simulate: {in_words(error)}", file=sys.stderr)
        return USAGE
    _tell_bad_lines(args.trace, rows[0])
    if args.json:
        found = [asdict(row) for row in rows]
        print(json.dumps(found[0] if len(found) == 1 else found))
    else:
        _present(rows, console)
    return 0


def _kept(rows: Iterable[Figures], folder: Path | None) -> Iterator[Figures]:
    """Yield the rows; with a folder, also write each at once to its file `ROWS`."""
    if folder is None:
        yield from rows
        return
    with (folder / ROWS).open("w", encoding="utf-8") as file:
        for row in rows:
            print(json.dumps(asdict(row)), file=file, flush=True)
            yield row


def _report_writer() -> Callable[..., Path]:
    try:
        from warmpath.lab.simulate.report import write_report  # noqa: PLC0415  matplotlib is an extra
    except ImportError as error:
        raise ValueError(f"--report: {error}; pip install 'warmpath-router[report]'") from error
    return write_report


def _run(cells: Sequence[Cell], processes: int, console: Console) -> Iterator[Figures]:
    """Run cells, several at once; yield their figures in order."""
    with Progress(*COLUMNS, console=console, transient=True) as progress:
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


def _tell_bad_lines(trace: Path | None, figures: Figures) -> None:
    """Write how many lines of the trace were left out, and why the first ones were."""
    if not figures.bad_lines:
        return
    counted = f"{trace}: lines left out, since they are wrong: {figures.bad_lines}"
    print(f"warmpath simulate: warning: {counted}", file=sys.stderr)
    for line in figures.first_bad_lines:
        print(f"{trace}: {line}", file=sys.stderr)
    if more := figures.bad_lines - len(figures.first_bad_lines):
        print(f"{trace}: and {more} more", file=sys.stderr)


def _present(rows: Sequence[Figures], console: Console) -> None:
    cells = summary.by_cell(rows)
    for place, policies in cells.items():
        first = next(iter(policies.values()))[0]
        came = (
            f"of {first.sessions:,} sessions"
            if first.pace
            else f"{first.speed:.2f} times as fast as recorded"
        )
        heading = (
            f"{summary.title(place)}; {first.requests:,} requests, {came}; "
            f"ceiling {first.ceiling:.3f}"
        )
        _table(console, heading, summary.CELL_HEAD, summary.cell_rows(policies))
        if said := summary.conditions(first.settings):
            console.print(" ".join(said))
        for remark in summary.remarks(policies):
            console.print(remark)
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
