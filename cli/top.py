"""`warmpath top`: pods, hits and the last decisions of a running router, again and again."""

import argparse
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import NamedTuple

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from warmpath.cli.asking import failed, problem_of_call, router_parser, seconds, unready
from warmpath.cli.channel import ChannelError, open_client
from warmpath.cli.console import new_console
from warmpath.client.failure import CallError
from warmpath.client.sync_client import Client
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb

DECISIONS = 6
"""Decisions shown."""
WIDE = 1_000_000
"""Columns where no terminal has a width, more than any line has."""
OTHER_LINES = DECISIONS + 12
"""Lines of a frame besides those of ranks."""
STYLES = {"exact": "green", "degraded": "yellow", "stale": "red", "cold": "red"}


class Seen(NamedTuple):
    """The router's answers at one time."""

    at: datetime
    pods: pb.ListPodsResponse
    diagnosis: pb.DiagnoseResponse
    decisions: pb.ListDecisionsResponse


def main(argv: Sequence[str] | None = None) -> int:
    """Show pods, hits and the last decisions, live; q or Ctrl-C ends it."""
    parser = router_parser("top", main.__doc__, "--interval 1", as_json=False)
    parser.add_argument("--model", default="", help="only the pods and picks of this model")
    parser.add_argument("--interval", type=seconds, default=2.0, help="seconds between two looks")
    parser.add_argument(
        "--once", action="store_true", help="print one frame, and end, as into a pipe"
    )
    args = parser.parse_args(argv)
    try:
        client = open_client(args)
    except ChannelError as error:
        parser.error(str(error))
    terminal = sys.stdout.isatty()
    console = new_console(piped_width=WIDE)
    try:
        with client:
            seen = look(client, args.model)
            if args.once or not terminal:
                console.print(frame(seen, args.router, whole=not terminal))
                return 0
            _live(client, seen, args, console)
    except CallError as error:
        return failed(error, args)
    except KeyboardInterrupt:
        return 0
    return 0


def look(client: Client, model: str) -> Seen:
    """Ask the router. Raises CallError."""
    return Seen(
        datetime.now(UTC),
        client.pods(model),
        client.diagnose(model),
        client.decisions(DECISIONS, model=model),
    )


def _live(client: Client, seen: Seen, args: argparse.Namespace, console: Console) -> None:
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        problem = ""
        while True:
            rows = max(3, console.height - OTHER_LINES)
            live.update(frame(seen, args.router, rows=rows, problem=problem), refresh=True)
            if "q" in pressed(args.interval):
                return
            try:
                seen, problem = look(client, args.model), ""
            except CallError as error:
                problem = problem_of_call(error, args)


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Read single keys while the context is open, where standard input is a terminal."""
    if not sys.stdin.isatty():
        yield _slept
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield _pressed
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _pressed(longest: float) -> str:
    """Return the keys that were pressed, once one is or so many seconds are over."""
    ready, _, _ = select.select([sys.stdin], [], [], longest)
    return os.read(sys.stdin.fileno(), 64).decode("utf-8", "replace") if ready else ""


def _slept(longest: float) -> str:
    time.sleep(longest)
    return ""


def frame(
    seen: Seen, router: str, *, rows: int | None = None, problem: str = "", whole: bool = False
) -> RenderableType:
    """Return what is shown of a look.

    `rows` is the most ranks, None: all; `whole`: no name and no reason is cut.
    """
    ready = sum(pod.ready for pod in seen.pods.pods)
    head = Text(f"warmpath top  {router}  {seen.at:%H:%M:%S} UTC  ", style="bold")
    head.append(f"{ready} of {len(seen.pods.pods)} pods ready")
    parts: list[RenderableType] = [head]
    if problem:
        parts.append(Text(problem, style="red"))
    parts += [Text(_hits(seen.diagnosis.attributions)), Text(), _ranks(seen, rows, whole)]
    parts += [Text(), _decisions(seen.decisions, whole)]
    findings = seen.diagnosis.findings
    if findings:
        more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
        text = ": ".join(filter(None, (findings[0].pod, findings[0].text)))
        said = f"finding{more}, see warmpath doctor: {text}"
        parts += [Text(), Text(said, style="yellow", no_wrap=True, overflow="ellipsis")]
    return Group(*parts)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def _hits(rows: Sequence[pb.Attribution]) -> str:
    tokens = sum(one.prompt_tokens for one in rows)
    if not tokens:
        return "no picks yet"
    captured = sum(one.captured_tokens for one in rows)
    average = sum(one.average_tokens for one in rows)
    return (
        f"hits {_share(captured, tokens)} of {tokens:,} prompt tokens; "
        f"pods in turn {_share(average, tokens)}: {captured - average:+,} tokens"
    )


def _ranks(seen: Seen, most: int | None, whole: bool) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("pod", max_width=None if whole else 20, no_wrap=True, overflow="ellipsis")
    for name in ("ready", "trust"):
        table.add_column(name, no_wrap=True)
    for name in ("cache", "running", "waiting", "hits", "in turn"):
        table.add_column(name, justify="right", no_wrap=True)
    found = [(pod, rank) for pod in seen.pods.pods for rank in pod.ranks]
    for pod, rank in found[:most]:
        counted = [one for one in seen.diagnosis.attributions if one.pod == pod.id]
        tokens = sum(one.prompt_tokens for one in counted)
        trust = pb.Trust.Level.Name(rank.trust.level).lower()
        table.add_row(
            f"{pod.id} {rank.rank}" if len(pod.ranks) > 1 else pod.id,
            Text("yes") if pod.ready else Text("no", style="red"),
            Text(trust, style=STYLES.get(trust, "")),
            _cache(rank),
            f"{rank.running:,}" if rank.HasField("running") else "?",
            f"{rank.waiting:,}" if rank.HasField("waiting") else "?",
            _share(sum(one.captured_tokens for one in counted), tokens),
            _share(sum(one.average_tokens for one in counted), tokens),
        )
    parts: list[RenderableType] = [table]
    if len(found) > table.row_count:
        parts.append(Text(f"and {len(found) - table.row_count} more"))
    away = [pod for pod in seen.pods.pods if not pod.ready]
    parts += [
        Text(f"{pod.id}: {unready(pod)}", style="red", no_wrap=True, overflow="ellipsis")
        for pod in (away if whole else away[:3])
    ]
    return Group(*parts)


def _cache(rank: pb.Rank) -> str:
    if rank.HasField("copies") and rank.capacity:
        return f"{rank.copies / rank.capacity:.0%} of {rank.capacity:,}"
    return f"{sum(tier.blocks for tier in rank.tiers):,} blocks"


def _decisions(response: pb.ListDecisionsResponse, whole: bool) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="bold", expand=not whole)
    table.add_column("pick at", no_wrap=True)
    table.add_column("pod", max_width=None if whole else 16, no_wrap=True, overflow="ellipsis")
    for name in ("tokens", "cached"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("why", no_wrap=True, overflow="ellipsis", ratio=1)
    for one in response.decisions:
        first = one.candidates[0]
        table.add_row(
            f"{datetime.fromtimestamp(one.at, UTC):%H:%M:%S}",
            Text(one.pod or first.pod),
            f"{one.prompt_tokens:,}",
            f"{first.matched_tokens:,}",
            Text(one.reason),
        )
    return table
