"""The demo's options, and the settings that they make."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from warmpath.lab.demo.verdict import SPEEDS
from warmpath.lab.local.cluster import WorkerSettings
from warmpath.lab.local.out_folder import claim
from warmpath.lab.local.rules import NAMES
from warmpath.lab.local.traffic_run import Prepared, prepare
from warmpath.lab.local.workload import VOCAB_SIZE, build, ceilings, read_trace
from warmpath.process.command_line import command_parser

TRACE = Path(__file__).parent / "conversation-slice.jsonl.gz"
PAGE, RESULTS = "report.html", "results.json"
AUTO = "auto"
"""The value of --speed that fits it to the machine."""


@dataclass(frozen=True, slots=True)
class DemoSetting:
    """The settings of one demo."""

    requests: list[Prepared]
    workers: WorkerSettings
    pods: int
    trace: str
    """The name of the trace from which the requests were taken."""
    ceilings: list[float]
    """Token hit ratio of one cache that never evicts, up to and with each request."""
    span: float
    """Modelled seconds from the first arrival to the last."""
    out: Path
    kill: bool
    fits: bool
    """Whether the speed is fitted to this machine."""


def new_parser(description: str | None) -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = command_parser("demo", description, "warmpath demo --requests 200 --pods 4")
    add = parser.add_argument
    add("--trace", type=Path, default=TRACE, help="a trace in Mooncake's format")
    add("--requests", type=int, default=0, help="number of requests, from the first; 0: all")
    add("--pods", type=int, default=4, help="workers")
    add("--blocks", type=int, default=24000, help="KV cache blocks of each worker, 32 tokens each")
    add(
        "--span",
        type=float,
        default=240.0,
        help="modelled seconds from the first arrival to the last",
    )
    add(
        "--speed",
        type=_speed,
        default=AUTO,
        help=f"modelled seconds in each real second; {AUTO}: the highest of "
        f"{', '.join(f'{one:g}' for one in SPEEDS)} at which this machine chooses pods in time",
    )
    add(
        "--most-output", type=int, default=400, help="most tokens of an answer; longer ones are cut"
    )
    add("--policies", default=",".join(NAMES), help="policies to compare, with commas")
    add("--kill-pod", action="store_true", help="kill a worker half-way and start it anew")
    add("--out", type=Path, default=Path("out/demo"), help="folder for the report and logs")
    add("--json", action="store_true", help="print the results as one JSON object")
    return parser


def _speed(text: str) -> float:
    """Return the speed: 0 for AUTO, below 0 for a speed that is not above 0."""
    return 0.0 if text == AUTO else float(text) or -1.0


def demo_setting(args: argparse.Namespace) -> DemoSetting:
    """Return the settings, and claim the folder for results. Raises ValueError and OSError."""
    unknown = set(args.policies.split(",")) - set(NAMES)
    if unknown:
        raise ValueError(f"--policies: {', '.join(unknown)}; known: {', '.join(NAMES)}")
    if args.speed < 0:
        raise ValueError("--speed: must be above 0")
    for name in ("pods", "span", "most_output"):
        if getattr(args, name) <= 0:
            raise ValueError(f"--{name.replace('_', '-')}: must be above 0")
    if args.requests < 0:
        raise ValueError("--requests: must be 0 or more")
    trace = read_trace(args.trace)[: args.requests or None]
    if not trace:
        raise ValueError(f"{args.trace}: no requests")
    logs = ["router.log", *(f"pod-{number + 1}.log" for number in range(args.pods))]
    claim(args.out, [PAGE, RESULTS, *logs])
    return DemoSetting(
        requests=prepare(build(trace, span=args.span, most_output=args.most_output)),
        workers=WorkerSettings(args.blocks, 32, args.speed or SPEEDS[0], VOCAB_SIZE),
        pods=args.pods,
        trace="the public Mooncake conversation trace" if args.trace == TRACE else str(args.trace),
        ceilings=ceilings(trace),
        span=args.span,
        out=args.out,
        kill=args.kill_pod,
        fits=not args.speed,
    )
