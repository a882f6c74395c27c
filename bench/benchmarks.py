"""`warmpath bench`: how fast the parts are, as ratios."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from bench import index, ingest, recover, score

BENCHMARKS = {
    "index": index.measure,
    "ingest": ingest.measure,
    "score": score.measure,
    "recover": recover.measure,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure index, ingestion, Score and recovery; what compares is the ratios."""
    parser = argparse.ArgumentParser(prog="warmpath bench", description=main.__doc__)
    names = list(BENCHMARKS)
    parser.add_argument("which", nargs="*", help=f"of {', '.join(names)}; all by default")
    parser.add_argument("--quick", action="store_true", help="few rounds: does it run at all?")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args(argv)
    unknown = set(args.which) - set(names)
    if unknown:
        parser.error(f"which: no benchmark {', '.join(unknown)}; known: {', '.join(names)}")
    figures = [
        figure for name in args.which or names for figure in BENCHMARKS[name](quick=args.quick)
    ]
    if args.json:
        print(json.dumps({"figures": [asdict(figure) for figure in figures]}))
        return 0
    table = Table("figure", box=None)
    for name in ("here", "unit", "", "time, in units of"):
        table.add_column(name, justify="left" if name in ("unit", "time, in units of") else "right")
    for one in figures:
        table.add_row(one.name, f"{one.value:,.0f}", one.unit, f"{one.ratio:.2f} x", one.baseline)
    Console(width=120).print(table)
    return 0
