"""Overload: calls come at 2 and 5 times the sustained rate; some are answered, others refused."""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from warmpath.lab.bench.figure import Figure
from warmpath.lab.bench.speed.score import holding
from warmpath.lab.bench.stand.look_up import TOKENS
from warmpath.lab.bench.stand.servers import framed

CLIENTS = 16
PATH = "/warmpath.v1.Router/Score"
REFUSED_US = 5000.0
"""Microseconds within which a call is to be refused."""


def measure(*, quick: bool) -> list[Figure]:
    """Measure Score for a prompt of 10,000 packed ids that 8 pods hold, from 16 clients."""
    rounds, seconds = (1, 1.0) if quick else (5, 4.0)
    with holding("nghttp2") as client, tempfile.TemporaryDirectory(prefix="warmpath-") as folder:
        body = Path(folder) / "body"
        body.write_bytes(framed(client.packed))
        address = f"127.0.0.1:{client.fleet.router.port}"
        runs = [_round(address, body, seconds) for _ in range(rounds)]
    return _figures({name: statistics.median(run[name] for run in runs) for name in runs[0]})


def _round(address: str, body: Path, seconds: float) -> dict[str, float]:
    found: dict[str, float] = {}
    most = len(_ask(address, body, 0, seconds)["taken"]) / seconds
    found["most"] = most
    for times in (0.8, 2.0, 5.0):
        counts = _ask(address, body, times * most, seconds)
        taken, refused = sorted(counts["taken"]), sorted(counts["refused"])
        found[f"p99 {times}"] = _p99(taken)
        found[f"refused {times}"] = _p99(refused)
        found[f"answered {times}"] = len(taken) / seconds
        found[f"refusals {times}"] = len(refused) / seconds
        found[f"unsent {times}"] = counts["unsent"] / seconds
    return found


def _ask(address: str, body: Path, rate: float, seconds: float) -> dict[str, Any]:
    ended = subprocess.run(  # noqa: S603  ourselves
        (
            sys.executable, "-m", "warmpath.lab.bench.stand.open_loop",
            address, PATH, str(body), str(rate), str(seconds), str(CLIENTS),
        ),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    counts: dict[str, Any] = json.loads(ended.stdout)
    return counts


def _p99(taken: list[float]) -> float:
    return taken[int(len(taken) * 0.99)] * 1e6 if taken else 0.0


def _figures(found: dict[str, float]) -> list[Figure]:
    what = f"Score, {TOKENS:,} packed ids, {CLIENTS} clients"
    figures = [
        Figure(f"{what}, one call at a time each: answered", found["most"], "req/s"),
        Figure(f"{what}, 0.8 x that rate: p99", found["p99 0.8"], "us"),
        Figure(f"{what}, 0.8 x that rate: refused", found["refusals 0.8"], "req/s"),
    ]
    for times in (2.0, 5.0):
        at = f"{what}, {times:g} x"
        figures += [
            Figure(
                f"{at}: p99 of answered calls", found[f"p99 {times}"], "us",
                found["p99 0.8"], "p99 at 0.8 x", goal=2.0,
            ),
            Figure(
                f"{at}: answered", found[f"answered {times}"], "req/s",
                found["most"], "the most", goal=0.9, least=True,
            ),
            Figure(
                f"{at}: p99 until a call is refused", found[f"refused {times}"], "us",
                REFUSED_US, "5 ms", goal=1.0,
            ),
            Figure(f"{at}: calls that could not be sent", found[f"unsent {times}"], "/s"),
        ]  # fmt: skip
    return figures
