"""Faults of the shared index, for longer: `make soak`. Prints a table, a row a fault.

Each fault of `tests/faults` lasts `--hold` seconds or a little more, `--rounds` times, beside engines,
publishers and routers at work. A fault fails if a claim with exact trust was not true within the promised
time, or if answers stay inexact. Figures are those of the worst round, for replica and for shared mode: how
long answers were not exact for every pod, as a share of the time too, and how long after the fault's end
until they stayed exact.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from tests.faults import claims, cluster, network, processes, refusals, server
from tests.faults.rig import Outcome
from tests.servers.redis_cluster import RedisCluster
from tests.servers.redis_server import Binary

Fault = Callable[[str, float], Awaitable[Outcome]]

READERS = ("replica", "shared")
FIGURES = ("not exact, s", "not exact, share", "healed, s")


BINARIES: tuple[Binary, ...] = ("redis", "valkey")


def in_cluster(fault: Callable[[str, float, RedisCluster], Awaitable[Outcome]]) -> Fault:
    """Return a fault that runs on a cluster of its own."""

    async def run(prefix: str, hold: float) -> Outcome:
        with RedisCluster() as made:
            return await fault(prefix, hold, made)

    return run


async def clocks_lie(prefix: str, hold: float) -> Outcome:
    """Let all clocks be wrong."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        return await claims.clocks_lie(prefix, hold, monkeypatch)


FAULTS: dict[str, Fault] = {
    "no fault": partial(processes.starved, share=1.0),
    "publishers have a tenth of a core": partial(processes.starved, share=0.1),
    "publishers stopped for 5 s of each 5.3 s": processes.stopped_in_turn,
    "server killed, back with nothing": server.killed,
    "server killed, back with nothing (Valkey 9)": partial(server.killed, binary="valkey"),
    "server killed, appendfsync always": partial(server.killed, appendfsync="always"),
    "server killed, the file's end lost": partial(
        server.killed, appendfsync="everysec", tail=server.TAIL
    ),
    "server stands still": server.stands_still,
    "FLUSHALL": server.emptied,
    "DEBUG RELOAD: old data, connections open": server.reloaded,
    "a record deleted by hand": server.record_deleted,
    "half of the buckets deleted by hand": server.buckets_deleted,
    "memory limit, noeviction": server.full,
    "memory limit, noeviction (Valkey 9)": partial(server.full, binary="valkey"),
    "memory limit, allkeys-lru": server.evicting,
    "connections cut in mid-batch": network.cut,
    "0.4 s there and back": network.slow,
    "40 kB/s": network.narrow,
    "publishers 0.2 s away": partial(network.far, latency=0.2),
    "publishers 0.6 s away": partial(network.far, latency=0.6),
    "publishers at 6 kB/s": partial(network.far, rate=network.THIN),
    "nothing of publishers arrives": network.silent,
    "routers cut off": network.readers_cut_off,
    "publishers cut off": network.writers_cut_off,
    "two publishers claim one pod": claims.contended,
    "a zombie's late writes": claims.zombie,
    "publisher killed and restarted": claims.restarted,
    "publisher gone, back after its lease": claims.gone_for_good,
    "publisher killed, the server's clock set back": claims.dead_when_time_goes_back,
    "clocks hours off, at wrong speeds": clocks_lie,
    "the server's TIME is wrong by two days": server.forgotten,
    "cluster: master killed, replica behind": in_cluster(cluster.master_killed),
    "cluster: fail-over in order": in_cluster(cluster.failed_over),
    "cluster: buckets moved under load": in_cluster(cluster.slots_moved),
    "Sentinel: master killed": cluster.sentinel_failed_over,
    **{
        f"commands refused: {name} ({binary})": partial(
            refusals.refused, refusal=refusal, binary=binary
        )
        for binary in BINARIES
        for name, refusal in (refusals.WRITES_REFUSED | refusals.ALL_REFUSED).items()
    },
}


def row(name: str, outcomes: list[Outcome]) -> str:
    """Return a row of the table."""
    cells = [name]
    for reader in READERS:
        times = [outcome.times[reader] for outcome in outcomes]
        cells.append(f"{max(one.not_exact for one in times):.1f}")
        cells.append(f"{max(one.share for one in times):.1%}")
        cells.append(f"{max(one.healed for one in times):.1f}")
    cells.append(str(max(sum(outcome.rebuilds.values()) for outcome in outcomes)))
    return "| " + " | ".join([*cells, "nothing"]) + " |"


def main() -> int:
    """Run the faults; return 1 if one did not heal, or an exact answer was not true."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hold", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", default="", help="part of the names of those to run")
    parser.add_argument("--reasons", action="store_true", help="tell what readers said meanwhile")
    args = parser.parse_args()
    columns = [f"{reader}: {what}" for reader in READERS for what in FIGURES]
    print("| fault | " + " | ".join(columns) + " | rebuilds | lost |")
    print("|---" * (len(columns) + 3) + "|", flush=True)
    failed = 0
    for number, (name, fault) in enumerate(FAULTS.items()):
        if args.only not in name:
            continue
        try:
            outcomes = [
                asyncio.run(_run(fault, f"soak-{number}-{time_}", args.hold))
                for time_ in range(args.rounds)
            ]
        except Exception as error:  # noqa: BLE001 - the other faults run all the same
            failed += 1
            print(f"| {name} | FAILED: {error!r} |", flush=True)
            continue
        print(row(name, outcomes), flush=True)
        if args.reasons:
            for reader in READERS:
                said = outcomes[0].reasons[reader].most_common(3)
                print(f"    {reader}: {said}", file=sys.stderr, flush=True)
    return 1 if failed else 0


async def _run(fault: Fault, prefix: str, hold: float) -> Outcome:
    return await fault(f"{prefix}-{time.monotonic_ns()}", hold)


if __name__ == "__main__":
    sys.exit(main())
