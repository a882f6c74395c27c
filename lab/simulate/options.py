"""The options of `warmpath simulate`, and the cells that they ask for."""

import argparse
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple, TypeVar

from warmpath.lab.simulate.cell import BYS, ENGINE_KINDS, MOST_PODS, REPORTS, SHARINGS, Cell
from warmpath.lab.simulate.study import MATRIX_BLOCKS, MATRIX_LOADS, MATRIX_PODS, variants
from warmpath.lab.simulate.traffic.generated import KINDS, Generated
from warmpath.lab.simworker.presets import DEFAULT_PRESET, PRESETS
from warmpath.process.command_line import command_parser
from warmpath.scorer.policy import DEFAULT, policy_names


class Pods(NamedTuple):
    """A fleet's number of pods, and how many times as long each takes for everything."""

    number: int
    factors: tuple[float, ...] = ()
    """How many times as long each pod takes for everything; empty: all pods are alike."""


GRID = {"pods": Pods(8), "blocks_per_pod": 1500, "load": 0.5}
"""The options that --matrix replaces, with their defaults."""

PACES = "speed", "sessions", "session_rate"
"""The options that say in place of --load how requests come."""

NumberT = TypeVar("NumberT", int, float)


def new_parser(description: str | None) -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    parser = command_parser(
        "simulate",
        description,
        "warmpath simulate --traffic docs --load 0.4 --requests 1000 --policy round-robin,warmpath",
        more=f"Policies: {', '.join(policy_names())}. "
        "docs/guides/simulate-and-verify.md explains the options.",
    )
    add = parser.add_argument
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--trace",
        type=_path,
        help="a recorded log, a Mooncake trace or recorded sessions, .gz or not",
    )
    source.add_argument("--traffic", choices=sorted(KINDS), help="a kind of generated traffic")
    add(
        "--traffic-seed",
        type=int,
        help="seed of generated traffic; each seed gives other requests; 1 by default",
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
        description="Each except --speed and --session-rate takes a list; every combination is run.",
    )
    grid.add_argument(
        "--pods",
        type=_fleets,
        help="number of pods, at most 1,024; 8 by default; or one fleet of unlike pods: with 4x1,4x2 "
        "4 of 8 take twice as long for everything",
    )
    grid.add_argument(
        "--blocks-per-pod",
        type=_list(int),
        help="a pod's KV cache, in blocks of the trace; Mooncake's have 512 tokens; 1500 by default",
    )
    grid.add_argument(
        "--load", type=_list(float), help="seconds of prefill over pods x time; 0.5 by default"
    )
    grid.add_argument(
        "--speed",
        type=float,
        help="in place of --load: how many times as fast as recorded; 1: as it was",
    )
    grid.add_argument(
        "--sessions",
        type=_list(int),
        help="in place of --load: a closed loop of so many sessions at once, in which each request "
        "follows the answer before it",
    )
    grid.add_argument(
        "--session-rate",
        type=float,
        help="in place of --load: a closed loop in which so many sessions begin in a second",
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
    add(
        "--longest-pause", type=float, default=600.0,
        help="seconds to which pauses of a closed loop are cut",
    )  # fmt: skip
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
        "--reports",
        choices=REPORTS,
        default="all",
        help="what gateways report: all, ends only, or none",
    )
    add("--report-delay", type=float, default=0.0, help="seconds that reports take to the router")
    add("--lost-reports", type=float, default=0.0, help="share of requests without any report")
    add("--queue", type=_switches, default="off", help="whether picks may wait: off, on, or off,on")
    add(
        "--engine-priority",
        action="store_true",
        help="with --engine vllm: engines begin prompts by the answers' engine_priority",
    )
    add("--routers", type=int, default=1, help="number of routers, at most 16")
    add(
        "--routers-by",
        choices=BYS,
        default="request",
        help="several: requests in turn, or a session to one",
    )
    add("--bookings", choices=SHARINGS, default="shared", help="whether several routers share them")
    add(
        "--outage",
        type=float,
        default=0.0,
        help="seconds for which the first pod is dead, from half of the traffic on",
    )
    add(
        "--scale",
        type=_scales,
        default="off",
        help="start and end pods, up to --pods, by the router's number of needed pods or by N running "
        "requests a pod; a list of off, needed and running:N",
    )
    add("--cold-start", type=float, default=90.0, help="seconds until a started pod serves")
    add("--wave", type=float, default=0.0, help="depth of a day's wave in the arrivals, 0 to 1")
    add("--raw-bursts", action="store_true", help="do not spread requests of one time stamp")
    add("--processes", type=int, default=2, help="how many runs at once")
    add("--report", type=_path, help="a folder for a page of plots, and the results as JSON lines")
    add("--json", action="store_true", help="print a JSON object, or a list for several runs")
    return parser


def _path(text: str) -> Path:
    """Return an option's value as a path; of an empty one `Path` would make the working folder."""
    if not text:
        raise argparse.ArgumentTypeError("is empty; a path is wanted")
    return Path(text)


def _list(kind: Callable[[str], NumberT]) -> Callable[[str], list[NumberT]]:
    def parse(text: str) -> list[NumberT]:
        return [kind(part) for part in text.split(",")]

    # argparse uses the name in its error messages.
    parse.__name__ = f"list of {'whole numbers' if kind is int else 'numbers'}"
    return parse


def _fleets(text: str) -> list[Pods]:
    """Return the fleets of a list of numbers, or the one fleet of NUMBERxFACTOR,..."""
    if "x" not in text:
        return [Pods(int(part)) for part in text.split(",")]
    factors: list[float] = []
    for part in text.split(","):
        number, _, factor = part.partition("x")
        if int(number) < 1:
            raise ValueError(f"{part}: less than 1 pod")
        factors += [float(factor)] * min(int(number), MOST_PODS + 1)
    return [Pods(len(factors), tuple(factors))]


# argparse uses the name in its error messages.
_fleets.__name__ = "list of whole numbers, or of NUMBERxFACTOR"


def _switches(text: str) -> list[bool]:
    known = {"off": False, "on": True}
    try:
        return [known[part] for part in text.split(",")]
    except KeyError as error:
        raise ValueError(f"{error} is neither off nor on") from error


_switches.__name__ = "list of off and on"


def _scales(text: str) -> list[str]:
    return ["" if part == "off" else part for part in text.split(",")]


_scales.__name__ = "list of off, needed and running:N"


def cells(args: argparse.Namespace) -> list[Cell]:
    """Return the cells that the options ask for. Raises ValueError for options without sense."""
    if args.processes < 1:
        raise ValueError(f"--processes is {args.processes}, less than 1")
    if args.trace:
        pipe = "is a pipe or a device, and a trace is read several times: write it to a file first"
        for is_so, problem in (
            (args.trace.is_dir(), f"{args.trace} is a folder, not a file"),
            (not args.trace.exists(), f"there is no file {args.trace}"),
            (not args.trace.is_file(), f"{args.trace} {pipe}"),
        ):
            if is_so:
                raise ValueError(f"--trace: {problem}")
    if args.trace and args.trace.parts[1:2] in (("dev",), ("proc",)):
        # In the processes that run cells /dev/fd/N is another file.
        args.trace = args.trace.resolve()
    if args.trace and args.traffic_seed is not None:
        raise ValueError("--traffic-seed: does not go with --trace, whose requests are recorded")
    if args.traffic and args.traffic_seed is None:
        # The report shows all options, with their defaults.
        args.traffic_seed = 1
    source = args.trace or Generated(args.traffic, args.traffic_seed)
    given = vars(args)
    fleets, blocks, loads = (given.get(name, [value]) for name, value in GRID.items())
    if args.matrix:
        _refuse_both("matrix", (name for name in (*GRID, *PACES) if name in given))
        fleets, blocks, loads = [Pods(pods) for pods in MATRIX_PODS], MATRIX_BLOCKS, MATRIX_LOADS
    for option in (name for name in PACES if name in given):
        _refuse_both(option, (one for one in ("load", *PACES) if one in given and one != option))
        value = given[option]
        if not (min(value) if isinstance(value, list) else value) > 0:
            raise ValueError(f"--{option.replace('_', '-')} is {value}, not above 0")
    settings = {one.name: given[one.name] for one in fields(Cell) if one.name in given}
    return [
        Cell(
            **settings
            | {"trace": source, "policy": one.spec, "pods": pods.number, "factors": pods.factors}
            | {"blocks_per_pod": size, "load": load, "queue": queue, "seed": seed}
            | {"sessions": sessions, "scale": scale}
        )
        for pods in fleets
        for size in blocks
        for load in loads
        for sessions in given.get("sessions", [0])
        for one in variants(args.policy)
        for queue in args.queue
        for scale in args.scale
        for seed in args.seed
    ]


def _refuse_both(option: str, others: Iterable[str]) -> None:
    for other in others:
        both = f"--{other.replace('_', '-')} and --{option}"
        raise ValueError(f"{both}, which has its own: give only one")
