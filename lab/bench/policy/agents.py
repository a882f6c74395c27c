"""`python -m warmpath.lab.bench agents`: picks for agents' sessions in a closed loop, on a grid."""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from warmpath.lab.bench.figure import Figure
from warmpath.lab.bench.policy.command import new_table, table_of_goals
from warmpath.lab.bench.policy.goals import QUEUED
from warmpath.lab.bench.policy.grid import PEERS, ours
from warmpath.lab.bench.policy.kept import Kept, code_version
from warmpath.lab.demo.traffic import CHATS, SESSIONS
from warmpath.lab.simulate.cell import Cell, EngineKind
from warmpath.lab.simulate.study import BEST_PUBLISHED
from warmpath.lab.simulate.summary import median
from warmpath.lab.simulate.traffic.access_log import read_traffic
from warmpath.scorer.policy import DEFAULT

LONGEST_PAUSE = 60.0
"""Seconds to which pauses are cut: longer ones take time of the simulation and change little."""
BEST = "each place's best published policy"
TIMES = ("ttft_p50_s", "ttft_p90_s", "ttft_p99_s")
OF_BOTH = ("sessions_ttft_p90_s", "beside_ttft_p90_s")
FIGURES = (*TIMES, "slowed_p50", "slowed_p90", *OF_BOTH, "hit_share")


class Kind(NamedTuple):
    """A fleet with its sessions at once."""

    sessions: int
    pods: int
    share: float
    """The share of the sessions' working set that all caches together hold."""
    engine: EngineKind = "serial"
    has_agents: bool = True
    has_chats: bool = False
    """Whether chats come beside the sessions, 1:1 by prompt tokens."""

    @property
    def name(self) -> str:
        notes = ["engine vllm"] if self.engine == "vllm" else []
        notes += [] if self.has_agents else ["no sub-agents"]
        notes += ["chats beside"] if self.has_chats else []
        return ", ".join([f"{self.sessions} on {self.pods} pods, {self.share:g}", *notes])


GRID = (
    Kind(24, 4, 0.5),
    Kind(24, 4, 0.5, has_chats=True),
    Kind(64, 8, 0.5),
    Kind(64, 4, 0.1),
    Kind(24, 8, 1.0),
    Kind(8, 4, 1.0),
    Kind(24, 4, 0.5, has_agents=False),
    Kind(64, 16, 0.5),
    Kind(24, 4, 0.5, engine="vllm"),
    Kind(64, 8, 1.0, has_chats=True),
    Kind(160, 16, 0.5),
    Kind(160, 8, 0.1),
    Kind(160, 16, 1.0),
)
"""Places that span sessions, pods and caches. A pod of each holds the prompts of most sessions."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Medians over seeds in one place, by policy; ours with and without the queue (`Cell.title`)."""

    kind: Kind
    figures: Mapping[str, Mapping[str, float]]

    def ratio(self, name: str, to: str = BEST_PUBLISHED, policy: str = DEFAULT) -> float:
        """Return a policy's figure over another's, or with `BEST` over the least published one."""
        least = min(self.figures[peer][name] for peer in PEERS)
        other = least if to == BEST else self.figures[to][name]
        return self.figures[policy][name] / max(other, 1e-9)


def places(source: Path, turns: int) -> dict[Kind, Cell]:
    """Return a cell of the default policy for each kind of which the trace has sessions enough.

    `turns` is about how many requests of each session at once are run.
    """
    logged = read_traffic(source).requests
    blocks = statistics.mean(len(one.keys) for one in logged)
    there = len({one.session for one in logged})
    return {
        kind: Cell(
            source,
            DEFAULT,
            kind.pods,
            round(kind.share * kind.sessions * blocks / kind.pods),
            sessions=kind.sessions,
            longest_pause=LONGEST_PAUSE,
            requests=turns * kind.sessions,
            engine=kind.engine,
            has_agents=kind.has_agents,
            beside=str(CHATS) if kind.has_chats else "",
        )
        for kind in GRID
        if kind.sessions <= there
    }


def compared(kept: Kept, grid: Mapping[Kind, Cell], seeds: Sequence[int]) -> list[Compared]:
    """Run what is missing, by seeds; return the places that were run with all policies."""
    cells = {
        kind: (*ours(place), *(replace(place, policy=peer) for peer in PEERS))
        for kind, place in grid.items()
    }
    for seed in seeds:
        kept.run(replace(one, seed=seed) for of in cells.values() for one in of)
    found = []
    for kind, of in cells.items():
        rows = {one.title: kept.of_seeds(one, seeds) for one in of}
        if all(rows.values()):
            least = min(map(len, rows.values()))
            figures = {
                title: {name: median(row[:least], name) for name in FIGURES}
                for title, row in rows.items()
            }
            found.append(Compared(kind, figures))
    return found


def goals(found: Sequence[Compared]) -> list[Figure]:
    """Return the goals, each over all places, without and with the queue."""
    if not found:
        return []
    return [*_goals(found, DEFAULT, "queue off"), *_goals(found, QUEUED, "queue on")]


def _goals(found: Sequence[Compared], policy: str, how: str) -> Iterator[Figure]:
    mixed = [one for one in found if one.kind.has_chats]
    rows: list[tuple[str, str, str, float | None, float | None, Sequence[Compared]]] = [
        ("TTFT p90", "ttft_p90_s", BEST_PUBLISHED, 0.60, 1.05, found),
        ("TTFT p90", "ttft_p90_s", BEST, 0.85, 1.10, found),
        ("TTFT p99", "ttft_p99_s", BEST, 0.90, 1.20, found),
        ("session time", "slowed_p50", BEST_PUBLISHED, 0.80, 1.02, found),
        ("agents beside chats: TTFT p90", OF_BOTH[0], BEST_PUBLISHED, None, 0.9, mixed),
        ("chats beside agents: TTFT p90", OF_BOTH[1], BEST_PUBLISHED, None, 0.9, mixed),
    ]
    for name, figure, to, mean, worst, ones in rows:
        ratios = [(one.ratio(figure, to, policy), one.kind.name) for one in ones]
        if ratios:
            middle = statistics.geometric_mean(ratio for ratio, _ in ratios)
            most, place = max(ratios)
            yield Figure(f"{how}: {name}, mean of {len(ones)}", middle, "x", 1.0, to, goal=mean)
            yield Figure(f"{how}: {name}, worst ({place})", most, "x", 1.0, to, goal=worst)
    hits = [(one.figures[policy]["hit_share"], one.kind.name) for one in found]
    least_hits, place = min(hits)
    for name, value, least in (
        ("hits of the ceiling, mean", statistics.mean(share for share, _ in hits), 0.93),
        (f"hits of the ceiling, least ({place})", least_hits, 0.85),
    ):
        yield Figure(f"{how}: {name}", value, "", 1.0, "the pooled cache", goal=least, least=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Compare picks for agents' sessions in a closed loop with published policies, in simulations.

    Results are kept in a file that is named by the version of the code, so a run that was stopped goes
    on, and --minutes shows what is there by then.
    """
    parser = argparse.ArgumentParser(
        prog="python -m warmpath.lab.bench agents",
        description=main.__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--trace",
        type=Path,
        default=SESSIONS,
        help="recorded sessions; places with more are left out",
    )
    add("--turns", type=int, default=60, help="about how many requests of each session at once")
    add("--seeds", type=int, default=3, help="how many, each with sessions in another order")
    add("--minutes", type=float, default=inf, help="begin no run after these minutes")
    add("--processes", type=int, default=2, help="how many runs at once")
    add("--results", type=Path, default=Path("out/bench-policy"), help="the folder of kept results")
    add("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args(argv)
    if not args.trace.is_file():
        parser.error(f"--trace: there is no file {args.trace}")
    for name in ("turns", "seeds", "processes"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} is below 1")
    deadline = time.monotonic() + 60 * args.minutes
    kept = Kept(args.results, processes=args.processes, deadline=deadline)
    grid = places(args.trace, args.turns)
    found = compared(kept, grid, range(1, args.seeds + 1))
    if args.json:
        rows = [{"place": one.kind.name, "figures": one.figures} for one in found]
        result = {"code": code_version(), "places": rows, "goals": [*map(asdict, goals(found))]}
        print(json.dumps(result))
        return 0
    console = Console(width=None if sys.stdout.isatty() else 150)
    console.print(f"results: {kept.path}; {len(found)} of the grid's {len(GRID)} places")
    for table in (_of_places(found), table_of_goals(goals(found))):
        console.print(table)
    return 0


def _of_places(found: Sequence[Compared]) -> Table:
    table = new_table(
        f"times in s; ratios to {BEST_PUBLISHED} | to the least of all published",
        "place", "policy", "p50", "p90", "p99", "p90 ratios", "p99 ratios", "session x", "ratio",
        "hits", "agents | chats p90",
    )  # fmt: skip
    for one in found:
        for policy in (DEFAULT, QUEUED, BEST_PUBLISHED):
            of = one.figures[policy]
            ratios = [
                " | ".join(f"{one.ratio(name, to, policy):.2f}" for to in (BEST_PUBLISHED, BEST))
                for name in ("ttft_p90_s", "ttft_p99_s")
            ]
            table.add_row(
                one.kind.name, policy, *(f"{of[name]:.2f}" for name in TIMES), *ratios,
                f"{of['slowed_p50']:.2f}", f"{one.ratio('slowed_p50', policy=policy):.2f}",
                f"{of['hit_share']:.3f}", " | ".join(f"{of[name]:.2f}" for name in OF_BOTH),
            )  # fmt: skip
    return table
