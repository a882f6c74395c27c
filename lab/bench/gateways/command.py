"""`python -m warmpath.lab.bench gateways`: starts the fronts, loads each, prints one table."""

import argparse
import asyncio
import json
import shutil
import sys
from array import array
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from warmpath.cli.child import ChildError, until_ended
from warmpath.lab.bench.gateways import load, traffic
from warmpath.lab.bench.gateways.front import (
    Front,
    Pod,
    Stand,
    Start,
    envoy_alone,
    no_front,
    warmpath,
)
from warmpath.lab.bench.gateways.peers import PEERS
from warmpath.lab.bench.gateways.replay import replay
from warmpath.lab.bench.gateways.table import (
    ALONE,
    BASE,
    NOBODY,
    OURS,
    SMG,
    VLLM_ROUTER,
    Measured,
    Row,
    figures,
    medians,
    table,
)
from warmpath.lab.bench.speed.tokenize import PACKAGED
from warmpath.lab.bench.stand.servers import Python
from warmpath.lab.demo.traffic import CHATS
from warmpath.lab.demo.traffic import SESSIONS as RECORDED
from warmpath.lab.local.tokenizer import write_tokenizer
from warmpath.lab.pages.results import BESIDE
from warmpath.prefixstore.tokenizers.tokenizer import FolderTokenizer

CLIENTS = 16
PODS = 4
WARM_SECONDS = 0.5
SIZES = {"4 KB": 4_000, "40 KB": 40_000}
"""Load -> bytes of a chat's text."""
STREAMS = {"50 streams": 50, "300 streams": 300}
CONVERSATIONS, SESSIONS = REPLAYS = ("conversations", "sessions")
REPLAYED = (ALONE, OURS, BASE, SMG, VLLM_ROUTER)
"""Fronts to which traffic is replayed, each in turn."""
OF_REQUESTS = (
    Row("p50, one client", "us", [(BASE, 0.5)]),
    Row(f"{CLIENTS} clients", "requests/s", [(BASE, 2.2), (ALONE, 0.5)], least=True),
    Row("processor of the router a request", "us"),
    Row("processor of Envoy a request", "us"),
    Row("processor a request", "us", [(BASE, 0.4)]),
)
OF_STREAMS = (
    Row("p50 between tokens", "ms"),
    Row("p99 between tokens", "ms", [(ALONE, 1.2)]),
    Row("processor of the router a token", "us"),
    Row("processor of Envoy a token", "us"),
    Row("processor a token", "us"),
    # A chunk's own: what passes by time, as health checks and metrics do, is taken off.
    Row("processor a token, less the idle front's", "us", [(ALONE, 1.05)]),
    Row("refused", "streams"),
)
OF_REPLAYS = (
    Row("hit ratio", "", [(SMG, 1.0), (VLLM_ROUTER, 1.0)], least=True),
    Row("time to first token, p50", "s"),
    Row("time to first token, p90", "s"),
    Row("failed", "requests"),
)
LOADS: Mapping[str, Sequence[Row]] = {
    **dict.fromkeys(SIZES, OF_REQUESTS),
    **dict.fromkeys(STREAMS, OF_STREAMS),
    **dict.fromkeys(REPLAYS, OF_REPLAYS),
}
ROWS = [
    Row(f"{kind}: {one.name}", one.unit, one.goals, one.least)
    for kind, rows in LOADS.items()
    for one in rows
]
QUICK = (NOBODY, ALONE, OURS), (*SIZES, *STREAMS)
"""Fronts and loads of a short run, which installs nothing."""


def main(argv: Sequence[str] | None = None) -> int:
    """Compare Envoy with warmpath with Envoy alone and with other gateways, before the same pods.

    h2load sends requests, and a client in a process of its own reads streams; "no front" shows what
    these and the pods take by themselves. Fronts take turns; figures are medians of the rounds. Then
    aiperf replays recorded traffic in real time, once through each front, to simulated engines. Peers
    and aiperf are installed into environments of their own: minutes and 1.5 GB once.
    """
    starts: dict[str, Start] = {NOBODY: no_front, ALONE: envoy_alone, OURS: warmpath()}
    parser = argparse.ArgumentParser(
        prog="python -m warmpath.lab.bench gateways", description=main.__doc__
    )
    add = parser.add_argument
    known = "; ".join((*starts, *PEERS))
    add("--fronts", help=f"which, with semicolons; all by default: {known}")
    add(
        "--checkout",
        type=Path,
        help="another checkout, whose gateway is measured beside this one's",
    )
    add("--loads", help=f"which, with commas; all by default: {', '.join(LOADS)}")
    add("--rounds", type=int, default=3, help="rounds of requests and streams; 3 by default")
    add("--seconds", type=float, default=1.0, help="duration of each of these loads; 1 by default")
    add("--replay-seconds", type=float, default=40.0, help="duration of replays; 40 by default")
    add(
        "--conversations", type=Path, default=CHATS,
        help="a trace in Mooncake's format; a part of the public one by default",
    )  # fmt: skip
    add(
        "--sessions", type=Path, default=RECORDED,
        help="agents' sessions in the form of lab/demo/TRACES.md; some by default",
    )  # fmt: skip
    add("--quick", action="store_true", help="one short round without peers; it decides nothing")
    add("--json", action="store_true", help="print a list of JSON objects")
    args = parser.parse_args(argv)
    if args.checkout:
        python = args.checkout / ".venv/bin/python"
        if not python.is_file():
            parser.error(f"--checkout: {python} is not there: run make setup in it")
        starts[BASE] = warmpath(python.absolute())
    starts |= PEERS
    usual: tuple[Sequence[str], Sequence[str]] = QUICK if args.quick else ([*starts], [*LOADS])
    fronts = args.fronts.split(";") if args.fronts else usual[0]
    loads = args.loads.split(",") if args.loads else usual[1]
    for option, given, all_of_them in (("--fronts", fronts, starts), ("--loads", loads, LOADS)):
        if unknown := set(given) - set(all_of_them):
            which = ", ".join(sorted(unknown))
            parser.error(f"{option}: {which}; known: {', '.join(all_of_them)}")
    rounds, seconds = (1, 0.3) if args.quick else (args.rounds, args.seconds)
    for option, value, least in (
        ("--rounds", rounds, 1), ("--seconds", seconds, 0.1),
        ("--replay-seconds", args.replay_seconds, 10),
    ):  # fmt: skip
        if not least <= value <= 3600:
            parser.error(f"{option}: from {least} to 3600")
    found: list[Measured] = []
    chosen = {name: start for name, start in starts.items() if name in fronts}

    async def run() -> None:
        load.check_h2load()
        if not args.quick and not PACKAGED.is_file():
            raise ChildError(
                "the table counts DeepSeek's tokens; its tokenizer is missing: make tokenizers"
            )
        with TemporaryDirectory(prefix="warmpath-") as folder:
            tokenizer = tokenizer_in(Path(folder))
            if not set(loads) <= set(REPLAYS):
                async with running(chosen, tokenizer, Path(folder)) as begun:
                    turns = [
                        await measure(one, loads, seconds, Path(folder)) for one in rounds * begun
                    ]
                found.extend(turns)
            texts = traffic.Texts(tokenizer)
            for kind, of_kind in (
                (CONVERSATIONS, partial(traffic.conversations, path=args.conversations)),
                (SESSIONS, partial(traffic.sessions, path=args.sessions)),
            ):
                sent = [*of_kind(texts, args.replay_seconds)] if kind in loads else []
                for name in filter(REPLAYED.__contains__, chosen) if sent else ():
                    own = Path(folder) / f"{kind}-{name.replace(' ', '-')}"
                    own.mkdir()
                    values = await replay(name, chosen[name], sent, tokenizer, own)
                    print(f"{name}, {kind}: {values}", file=sys.stderr, flush=True)
                    found.append(Measured(name, _named(kind, values)))

    status = until_ended("bench gateways", run)
    if status or not found:
        return status
    if args.json:
        of_all = figures(medians(found), ROWS)
        print(json.dumps([{"part": BESIDE, **asdict(one)} for one in of_all]))
    else:
        console = Console(width=None if sys.stdout.isatty() else 170)
        console.print(table(medians(found), ROWS))
    return 0


def _named(kind: str, values: Sequence[float]) -> dict[str, float]:
    """Return the figures of a load, in the order of its rows, by the rows' names."""
    return dict(zip((f"{kind}: {one.name}" for one in LOADS[kind]), values, strict=True))


def tokenizer_in(folder: Path) -> Path:
    """Return a folder with the pods' tokenizer: DeepSeek's, or one of bytes where it is missing."""
    path = folder / "tokenizer"
    path.mkdir()
    write_tokenizer(path)
    if PACKAGED.is_file():
        shutil.copy(PACKAGED, path / "tokenizer.json")
    return path


@asynccontextmanager
async def running(
    starts: Mapping[str, Start], tokenizer: Path, folder: Path
) -> AsyncIterator[list[Front]]:
    """Run pods and fronts; the pods hold the chats that are sent."""
    encode = FolderTokenizer(tokenizer).encode
    chats = [
        # The form that the tokenizer's chat template has for one message.
        (text, array("I", b"".join(encode([f"user: {text}\nassistant:".encode()], at_start=True))))
        for text in map(load.text_of, SIZES.values())
    ]
    held = folder / "chats.json"
    held.write_text(json.dumps([{"text": text, "ids": [*ids]} for text, ids in chats]))
    pods = Python("warmpath.lab.bench.gateways.pods", str(PODS), str(held), log=folder / "pods.log")
    async with AsyncExitStack() as stack:
        stack.enter_context(pods)
        stand = Stand([Pod(**one) for one in json.loads(pods.hear())], tokenizer, folder)
        fronts = [
            await stack.enter_async_context(start(name, stand)) for name, start in starts.items()
        ]
        pods.tell("publish")
        assert pods.hear() == "published\n"
        await asyncio.sleep(WARM_SECONDS)
        yield fronts


async def measure(front: Front, loads: Sequence[str], seconds: float, folder: Path) -> Measured:
    """Load a front with requests and with streams, those of `loads`, each for `seconds`."""
    values: dict[str, float] = {}
    for kind in filter(SIZES.__contains__, loads):
        body = load.chat_of(load.text_of(SIZES[kind]))
        load.requests(front, body, CLIENTS, WARM_SECONDS)
        one = load.requests(front, body, 1, seconds)
        many = load.requests(front, body, CLIENTS, seconds)
        router, envoy = many.busy.router * 1e6, many.busy.envoy * 1e6
        values |= _named(kind, (one.load.p50, many.load.rate, router, envoy, router + envoy))
    for kind in filter(STREAMS.__contains__, loads):
        got = await load.streams(front, load.text_of(4_000), STREAMS[kind], seconds, folder)
        router, envoy = got.busy.router * 1e6, got.busy.envoy * 1e6
        both = router + envoy
        own = both - (got.idle.router + got.idle.envoy) * 1e6
        values |= _named(kind, (got.p50, got.p99, router, envoy, both, own, got.refused))
    return Measured(front.name, values)
