"""`warmpath fleet`: routers over a shared index, on loopback, without Docker."""

import argparse
import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from rich.console import Console
from rich.table import Table

from warmpath.cli.child import until_ended
from warmpath.cli.console import new_console
from warmpath.client.async_client import AsyncClient
from warmpath.lab.demo.traffic import CHATS, chats, prepare
from warmpath.lab.demo.traffic_run import run_traffic
from warmpath.lab.fleet.processes import SPEED, FleetProcesses, ProcessSettings, file_names
from warmpath.lab.local.choices import Chooser, PodChoice, Router
from warmpath.lab.local.cluster import MODEL
from warmpath.lab.local.measure import TrafficRun
from warmpath.lab.local.out_folder import OutFolderError, claim
from warmpath.lab.simulate.closed_loop import ClosedLoop
from warmpath.process.command_line import USAGE, command_parser
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb

SPAN = 120.0
"""Modelled seconds from the first arrival to the last."""
KNOWN_SECONDS = 60.0
"""Longest wait for the routers to know all pods."""
PAUSE = 0.1
MOST = {"masters": 16, "pods": 32, "routers": 16, "requests": 100_000}
"""The most processes of each kind, and the most requests; each pod is two processes."""
PROGRESS_MESSAGES = 5


def main(argv: Sequence[str] | None = None) -> int:
    """Run routers over a shared index: a Redis Cluster, workers with publishers, real traffic.

    It runs until Ctrl-C, for experiments with failures; with --once it ends after the traffic.
    """
    args = _parser().parse_args(argv)
    for name, most in MOST.items():
        if not 1 <= getattr(args, name) <= most:
            text = f"--{name} is {getattr(args, name)}, not 1 to {most}"
            print(f"warmpath fleet: {text}", file=sys.stderr)
            return USAGE
    once, as_json = args.once, args.json
    settings = ProcessSettings(
        **{name: value for name, value in vars(args).items() if name not in ("once", "json")}
    )
    try:
        claim(settings.out, file_names(settings))
    except OutFolderError as error:
        print(f"warmpath fleet: {error}", file=sys.stderr)
        return USAGE
    console = new_console(stderr=as_json)
    return until_ended("fleet", lambda: _run(settings, console, once=once, as_json=as_json))


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("fleet", main.__doc__, "warmpath fleet --once --pods 2")
    add = parser.add_argument
    add("--masters", type=int, default=3, help="masters of the Redis Cluster")
    add("--pods", type=int, default=2, help="simulated workers, each with a publisher")
    add("--routers", type=int, default=3, help="routers over the index")
    add(
        "--mode",
        choices=("replica", "shared"),
        default="replica",
        help="how routers read the shared index",
    )
    add("--server", choices=("valkey", "redis"), default="valkey", help="which server is started")
    add("--requests", type=int, default=60, help="requests of the traffic")
    add("--out", type=Path, default=Path("out/fleet"), help="folder for configurations and logs")
    add("--once", action="store_true", help="end after the traffic")
    add("--json", action="store_true", help="print the result as one JSON object")
    return parser


class EveryRouter(Chooser):
    """Asks the routers in round robin."""

    def __init__(self, routers: Sequence[Chooser]) -> None:
        self._routers = routers
        self._asked: dict[str, Chooser] = {}
        self._turn = 0

    async def choose(self, packed: bytes) -> PodChoice:
        """Let the next router pick."""
        router = self._routers[self._turn % len(self._routers)]
        self._turn += 1
        choice = await router.choose(packed)
        self._asked[choice.booking] = router
        return choice

    async def fell_back(self, choice: PodChoice, pod: int) -> None:
        await self._asked[choice.booking].fell_back(choice, pod)

    async def first_token(self, choice: PodChoice) -> None:
        await self._asked[choice.booking].first_token(choice)

    async def finished(self, choice: PodChoice, cached: int | None) -> None:
        await self._asked.pop(choice.booking).finished(choice, cached)


async def _run(settings: ProcessSettings, console: Console, *, once: bool, as_json: bool) -> None:
    report = partial(console.print, soft_wrap=True)
    async with FleetProcesses(settings, report) as fleet, AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(AsyncClient(address, model=MODEL))
            for address in fleet.addresses
        ]
        report("waiting until every router knows every worker")
        begun = time.monotonic()
        async with asyncio.timeout(KNOWN_SECONDS):
            for client in clients:
                while not await _knows_all(client, settings.pods):
                    fleet.check()
                    await asyncio.sleep(PAUSE)
        known = time.monotonic() - begun
        part = chats(CHATS, requests=settings.requests, span=SPAN, most_output=100)
        requests = [*prepare(part)]
        pods = [worker.id for worker in fleet.workers]
        report(f"sending {len(requests)} requests, {SPAN / SPEED:.0f} s of traffic")
        result = await run_traffic(
            ClosedLoop(part.sessions, rng=Random(0)),
            requests,
            EveryRouter([Router(client, pods) for client in clients]),
            [worker.address for worker in fleet.workers],
            speed=SPEED,
            progress=lambda sofar: _report_progress(report, sofar, len(requests)),
        )
        fleet.check()
        scores = await _agreed(clients, requests[-1].packed)
        summary = {
            "addresses": fleet.all_addresses(),
            "known_s": round(known, 2),
            "requests": len(result.served),
            "failed": result.failed,
            "token_hit_ratio": round(result.hit_ratio, 4),
            "scores": scores,
            "routers_agree": all(one == scores[0] for one in scores),
        }
        if as_json:
            print(json.dumps(summary), flush=True)
        _present(summary, fleet, console)
        if not once:
            _suggest(fleet, console)
            await fleet.report_ends(report)


def _report_progress(report: Callable[[str], None], sofar: TrafficRun, total: int) -> None:
    """Report the number of finished requests after each fifth of them."""
    done = sofar.done
    if done * PROGRESS_MESSAGES // total != (done - 1) * PROGRESS_MESSAGES // total:
        report(f"{done} of {total} requests are done")


async def _knows_all(client: AsyncClient, pods: int) -> bool:
    listed = (await client.pods()).pods
    exact = [pod for pod in listed if all(rank.trust.level == pb.Trust.EXACT for rank in pod.ranks)]
    return len(exact) == pods


async def _agreed(clients: Sequence[AsyncClient], packed: bytes) -> list[dict[str, int]]:
    """Return each router's matched tokens by pod, once all agree or KNOWN_SECONDS have passed."""
    scores: list[dict[str, int]] = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(KNOWN_SECONDS):
            while not scores or any(one != scores[0] for one in scores):
                replies = [await client.score(packed) for client in clients]
                scores = [
                    {one.pod: one.matched_tokens for one in reply.scores} for reply in replies
                ]
    return scores


def _present(summary: dict[str, Any], fleet: FleetProcesses, console: Console) -> None:
    scores = summary["scores"]
    table = Table(title="matched tokens of the last prompt, as each router says")
    table.add_column("router")
    for worker in fleet.workers:
        table.add_column(worker.id, justify="right")
    for process, address, one in zip(fleet.routers, fleet.addresses, scores, strict=True):
        table.add_row(
            f"{process.name} ({address})", *(f"{one[worker.id]:,}" for worker in fleet.workers)
        )
    console.print(table)
    console.print(
        f"{summary['requests'] + summary['failed']} requests, {summary['failed']} failed, "
        f"through {len(fleet.routers)} routers in turn: "
        f"{summary['token_hit_ratio']:.1%} of the tokens served were cached. "
        f"Every router knew every pod after {summary['known_s']} s."
    )


def _suggest(fleet: FleetProcesses, console: Console) -> None:
    url = f"--url {fleet.redis.url}"
    for line in (
        f"look into the index: warmpath index stats {url}",
        f"compare it with the pods: warmpath check-index {url}",
        f"logs and configurations: {fleet.folder}",
        "Ctrl-C ends all processes.",
    ):
        console.print(line, soft_wrap=True)
