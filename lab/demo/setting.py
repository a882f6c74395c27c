"""The demo's options, and the settings that they make."""

import argparse
from dataclasses import dataclass
from math import inf
from pathlib import Path

from warmpath.lab.demo.traffic import (
    CHATS,
    SESSIONS,
    Part,
    Prepared,
    agents,
    ceiling,
    chats,
    prepare,
)
from warmpath.lab.demo.verdict import NAMES, SPEEDS
from warmpath.lab.local.cluster import VOCAB_SIZE, WorkerSettings
from warmpath.lab.local.out_folder import claim
from warmpath.lab.simulate.alone import alone
from warmpath.lab.simulate.cell import Cell
from warmpath.lab.simulate.run import longest_of
from warmpath.lab.simulate.traffic.sessions import Session
from warmpath.process.command_line import command_parser
from warmpath.router.diagnosis.shadow import quantile

PAGE, RESULTS = "report.html", "results.json"
BLOCK_SIZE = 32
"""Tokens of a block of the pods' caches."""
AUTO = "auto"
"""The value of --speed that fits it to the machine."""


@dataclass(frozen=True, slots=True)
class DemoSetting:
    """The settings of one demo."""

    sessions: list[Session]
    """Agents' sessions, and chats as sessions of one request."""
    requests: list[Prepared]
    """The sessions' requests in the order of a closed loop of these sessions."""
    workers: WorkerSettings
    pods: int
    traffic: str
    """The traffic in words."""
    ceiling: float
    """The token hit ratio of one cache that never evicts."""
    alone: tuple[float, float]
    """Modelled seconds of an agent's session by itself on idle pods: p50 and p90."""
    span: float
    """Modelled seconds from the first chat to the last."""
    out: Path
    kill: bool
    fits: bool
    """Whether the speed is fitted to this machine."""
    until: float = inf
    """Modelled seconds after which no request is sent any more."""


def new_parser(description: str | None) -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = command_parser("demo", description, "warmpath demo --requests 200 --pods 4")
    add = parser.add_argument
    add("--sessions", type=Path, default=SESSIONS, help="recorded sessions of agents")
    add("--agents", type=int, default=12, help="number of sessions, from the first; 0: all")
    add("--trace", type=Path, default=CHATS, help="chats beside them: a trace in Mooncake's format")
    add("--requests", type=int, default=60, help="number of chats' requests; 0: all")
    add("--pods", type=int, default=4, help="workers")
    add(
        "--blocks", type=int, default=6000,
        help=f"KV cache blocks of each worker, {BLOCK_SIZE} tokens each",
    )  # fmt: skip
    add(
        "--span", type=float, default=60.0,
        help="modelled seconds from the first chat to the last; sessions begin in the first half",
    )  # fmt: skip
    add(
        "--longest-pause", type=float, default=5.0,
        help="modelled seconds to which pauses between an answer and the next prompt are cut",
    )  # fmt: skip
    add(
        "--speed",
        type=_speed,
        default=AUTO,
        help=f"modelled seconds in each real second; {AUTO}: the highest of "
        f"{', '.join(f'{one:g}' for one in SPEEDS)} at which this machine chooses pods in time",
    )
    add(
        "--most-output", type=int, default=100, help="most tokens of an answer; longer ones are cut"
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
    for name in ("pods", "blocks", "span", "most_output"):
        if getattr(args, name) <= 0:
            raise ValueError(f"--{name.replace('_', '-')}: must be above 0")
    for name in ("agents", "requests", "longest_pause"):
        if getattr(args, name) < 0:
            raise ValueError(f"--{name.replace('_', '-')}: must be 0 or more")
    of_agents = agents(
        args.sessions, count=args.agents,
        span=args.span, most_output=args.most_output, longest_pause=args.longest_pause,
    )  # fmt: skip
    of_chats = chats(
        args.trace, requests=args.requests, span=args.span, most_output=args.most_output
    )
    parts = of_agents, of_chats
    logs = ["router.log", *(f"pod-{number + 1}.log" for number in range(args.pods))]
    claim(args.out, [PAGE, RESULTS, *logs])
    return DemoSetting(
        sessions=[session for part in parts for session in part.sessions],
        requests=[request for part in parts for request in prepare(part)],
        workers=WorkerSettings(args.blocks, BLOCK_SIZE, args.speed or SPEEDS[0], VOCAB_SIZE),
        pods=args.pods,
        traffic=f"{len(of_agents.sessions)} sessions of a coding agent "
        f"({len(of_agents.requests)} requests) beside {len(of_chats.requests)} requests of chats",
        ceiling=ceiling(parts),
        alone=_alone(of_agents, args),
        span=args.span,
        out=args.out,
        kill=args.kill_pod,
        fits=not args.speed,
    )


def _alone(part: Part, args: argparse.Namespace) -> tuple[float, float]:
    blocks = max(1, args.blocks * BLOCK_SIZE // part.block_size)
    cell = Cell(
        trace=args.sessions, policy="", pods=args.pods, blocks_per_pod=blocks, engine="vllm"
    )
    times = sorted(alone(cell, part.sessions, part.block_size, longest_of(part.requests)))
    return quantile(times, 0.5), quantile(times, 0.9)
