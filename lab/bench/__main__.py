"""`python -m warmpath.lab.bench`: measures the parts, and prints ratios."""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from rich.console import Console
from rich.table import Table

from warmpath.lab.bench import peer
from warmpath.lab.bench.figure import Figure
from warmpath.lab.bench.gateways import command as gateways
from warmpath.lab.bench.policy import agents
from warmpath.lab.bench.policy import command as policy

BENCHMARKS = {
    "index": "speed.index",
    "memory": "speed.memory",
    "ingest": "speed.ingest",
    "score": "speed.score",
    "overload": "speed.overload",
    "tokenize": "speed.tokenize",
    "recover": "speed.recover",
    "simworker": "speed.simworker",
    "pick": "speed.pick",
    "holds": "speed.holds",
    "redis": "redis.command",
    "scale": "scale.command",
}
"""Benchmark -> its module, imported only when it is measured: redis-py, for one, is an extra."""


def _measured(name: str, *, quick: bool) -> Iterable[Figure]:
    found: Iterable[Figure] = import_module(f"{__package__}.{BENCHMARKS[name]}").measure(
        quick=quick
    )
    return found


BY_NAME_ONLY = frozenset({"redis", "scale"})
"""Benchmarks that run by name only, as they need Redis' server."""
WITH_OPTIONS = {"agents": agents.main, "gateways": gateways.main, "policy": policy.main}
"""Benchmarks with options of their own, which `-h` after their names shows."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure index, ingestion, Score, overload, text, recovery, workers, picks, Redis, scale."""
    given = sys.argv[1:] if argv is None else [*argv]
    if given and given[0] in WITH_OPTIONS:
        return WITH_OPTIONS[given[0]](given[1:])
    parser = argparse.ArgumentParser(
        prog="python -m warmpath.lab.bench",
        description=main.__doc__,
        epilog="Ratios to the peer are printed where it is installed; `make bench` installs it. "
        "`python -m warmpath.lab.bench gateways`, `… policy` and `… agents` have their own options.",
    )
    names = list(BENCHMARKS)
    usual = [name for name in names if name not in BY_NAME_ONLY]
    parser.add_argument(
        "which",
        nargs="*",
        help=f"any of {', '.join(names)}; all except {', '.join(BY_NAME_ONLY)} by default",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="few rounds and small sizes, which do not decide about goals",
    )
    parser.add_argument("--json", action="store_true", help="print a list of JSON objects")
    args = parser.parse_args(given)
    unknown = set(args.which) - set(names)
    if unknown:
        parser.error(f"which: no benchmark {', '.join(unknown)}; known: {', '.join(names)}")
    figures = [one for name in args.which or usual for one in _measured(name, quick=args.quick)]
    # A Python that was compiled without optimization takes a tenth longer.
    print(f"Measured with {sys.version}, {Path(sys.executable).resolve()}.", file=sys.stderr)
    if args.json:
        print(json.dumps([asdict(figure) for figure in figures]))
        return 0
    table = Table("figure", box=None)
    for name in ("here", "unit", "ratio", "goal", "", "to"):
        table.add_column(name, justify="left" if name in ("unit", "to") else "right")
    for one in figures:
        goal = "" if one.goal is None else f"{'>=' if one.least else '<='} {one.goal:g}"
        table.add_row(
            one.name,
            f"{one.value:,.1f}" if one.value < 100 else f"{one.value:,.0f}",
            one.unit,
            "" if one.ratio is None else f"{one.ratio:.2f} x",
            goal,
            {None: "", True: "met", False: "missed"}[one.met],
            one.baseline,
        )
    console = Console(width=150)
    console.print(table)
    if args.quick:
        console.print("Small sizes and few rounds: the goals are those of a whole run.")
    if not peer.is_installed():
        console.print("The peer is not installed: make bench installs it.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
