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

from tests.faults.faults import FAULTS, Fault
from tests.faults.rig import Outcome

READERS = ("replica", "shared")
FIGURES = ("not exact, s", "not exact, share", "healed, s")


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
    return await fault.run(f"{prefix}-{time.monotonic_ns()}", hold)


if __name__ == "__main__":
    sys.exit(main())
