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
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from warmpath.cli.child import until_ended
from warmpath.lab.bench.gateways import load
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
from warmpath.lab.bench.gateways.table import (
    ALONE,
    BASE,
    NOBODY,
    OURS,
    Column,
    Measured,
    figures,
    medians,
    table,
)
from warmpath.lab.bench.speed.tokenize import PACKAGED
from warmpath.lab.bench.stand.servers import Python
from warmpath.lab.local.tokenizer import write_tokenizer
from warmpath.prefixstore.tokenizers.tokenizer import FolderTokenizer
from warmpath.router.config.schema import PickTable

CLIENTS = 16
STREAMS = (50, 300)
PODS = 4
WARM_SECONDS = 0.5
REQUEST_COLUMNS = (
    Column("p50, one client", "us", [(BASE, 0.5)]),
    Column(f"{CLIENTS} clients", "requests/s", [(BASE, 2.2)], least=True),
    Column("processor of the router a request", "us"),
    Column("processor of Envoy a request", "us"),
    Column("processor a request", "us", [(BASE, 0.4)]),
)
STREAM_COLUMNS = (
    Column("p50 between tokens", "ms"),
    Column("p99 between tokens", "ms", [(ALONE, 1.2)]),
    Column("processor of the router a token", "us"),
    Column("processor of Envoy a token", "us"),
    Column("processor a token", "us", [(ALONE, 1.05)]),
    Column("refused", "streams"),
)
KINDS = {
    **{f"{size // 1000} KB": REQUEST_COLUMNS for size in (4_000, 40_000)},
    **{f"{streams} streams": STREAM_COLUMNS for streams in STREAMS},
}
COLUMNS = [
    Column(f"{kind}: {one.name}", one.unit, one.goals, one.least)
    for kind, columns in KINDS.items()
    for one in columns
]
SIZES = {f"{size // 1000} KB": size for size in (4_000, 40_000)}


def main(argv: Sequence[str] | None = None) -> int:
    """Compare Envoy with warmpath with Envoy alone and with other gateways, before the same pods.

    h2load sends requests, and a client in a process of its own reads streams; the row "no front" shows
    what these and the pods take by themselves. Fronts are loaded in turn; figures are medians of the
    rounds.
    """
    starts: dict[str, Start] = {NOBODY: no_front, ALONE: envoy_alone, OURS: warmpath(), **PEERS}
    parser = argparse.ArgumentParser(
        prog="python -m warmpath.lab.bench gateways", description=main.__doc__
    )
    add = parser.add_argument
    add("--fronts", help=f"which, with semicolons; all by default: {'; '.join(starts)}")
    add(
        "--checkout",
        type=Path,
        help="another checkout, whose gateway is measured beside this one's",
    )
    add("--loads", help=f"which, with commas; all by default: {', '.join(KINDS)}")
    add("--rounds", type=int, default=3, help="3 by default")
    add("--seconds", type=float, default=2.0, help="duration of each load; 2 by default")
    add("--quick", action="store_true", help="one short round, which decides nothing")
    add("--json", action="store_true", help="print a list of JSON objects")
    args = parser.parse_args(argv)
    if args.checkout:
        python = args.checkout / ".venv/bin/python"
        if not python.is_file():
            parser.error(f"--checkout: {python} is not there: run make setup in it")
        starts[BASE] = warmpath(python.absolute())
    wanted = args.fronts.split(";") if args.fronts else list(starts)
    loads = args.loads.split(",") if args.loads else list(KINDS)
    for option, given, known in (("--fronts", wanted, starts), ("--loads", loads, KINDS)):
        if unknown := set(given) - set(known):
            parser.error(f"{option}: {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    rounds, seconds = (1, 0.3) if args.quick else (args.rounds, args.seconds)
    if rounds < 1 or not 0.1 <= seconds <= 600:
        parser.error("--rounds: at least 1; --seconds: from 0.1 to 600")
    found: list[Measured] = []

    async def run() -> None:
        load.check_h2load()
        with TemporaryDirectory(prefix="warmpath-") as folder:
            chosen = {name: start for name, start in starts.items() if name in wanted}
            async with running(chosen, Path(folder)) as fronts:
                for _ in range(rounds):
                    found.extend(
                        [await measure(one, loads, seconds, Path(folder)) for one in fronts]
                    )

    status = until_ended("bench gateways", run)
    if status or not found:
        return status
    of_all = medians(found)
    if args.json:
        print(json.dumps([asdict(one) for one in figures(of_all, COLUMNS)]))
        return 0
    console = Console(width=None if sys.stdout.isatty() else 170)
    for kind, columns in KINDS.items():
        if kind in loads:
            console.print(f"\n{kind}")
            names = {f"{kind}: {one.name}": one.name for one in columns}
            short = [
                Measured(of.front, {names[key]: v for key, v in of.values.items() if key in names})
                for of in of_all
            ]
            console.print(table(short, columns))
    return 0


def tokenizer_in(folder: Path) -> Path:
    """Return a folder with the pods' tokenizer: DeepSeek's if it is installed, else one of bytes."""
    path = folder / "tokenizer"
    path.mkdir()
    write_tokenizer(path)
    if PACKAGED.is_file():
        shutil.copy(PACKAGED, path / "tokenizer.json")
    return path


def _template(text: str) -> bytes:
    """Return a chat with one message in the pods' template."""
    return f"user: {text}\nassistant:".encode()


@asynccontextmanager
async def running(starts: Mapping[str, Start], folder: Path) -> AsyncIterator[list[Front]]:
    """Run pods and fronts; the pods hold the chats that are sent."""
    tokenizer = tokenizer_in(folder)
    encode = FolderTokenizer(tokenizer).encode
    texts = map(load.text_of, SIZES.values())
    chats = [
        {"text": text, "ids": [*array("I", b"".join(encode([_template(text)], at_start=True)))]}
        for text in texts
    ]
    held = folder / "prompts.json"
    held.write_text(json.dumps(chats), encoding="utf-8")
    pods = Python("warmpath.lab.bench.gateways.pods", str(PODS), str(held), log=folder / "pods.log")
    async with AsyncExitStack() as stack:
        stack.enter_context(pods)
        stand = Stand(
            [Pod(**one) for one in json.loads(pods.hear())], tokenizer, folder, PickTable()
        )
        fronts = [
            await stack.enter_async_context(start(name, stand)) for name, start in starts.items()
        ]
        pods.tell("publish")
        assert pods.hear() == "published\n"
        await asyncio.sleep(WARM_SECONDS)
        yield fronts


async def measure(front: Front, loads: Sequence[str], seconds: float, folder: Path) -> Measured:
    """Load a front in each way."""
    values: dict[str, float] = {}

    def take(kind: str, columns: Sequence[Column], found: Sequence[float]) -> None:
        names = (f"{kind}: {one.name}" for one in columns)
        values.update(zip(names, found, strict=True))

    for kind, size in SIZES.items():
        if kind in loads:
            body = load.chat_of(load.text_of(size))
            load.requests(front, body, CLIENTS, WARM_SECONDS)
            one = load.requests(front, body, 1, seconds / 2)
            many = load.requests(front, body, CLIENTS, seconds)
            router, envoy = many.busy.router * 1e6, many.busy.envoy * 1e6
            found = one.load.p50, many.load.rate, router, envoy, router + envoy
            take(kind, REQUEST_COLUMNS, found)
    for count in STREAMS:
        kind = f"{count} streams"
        if kind in loads:
            got = await load.streams(front, load.text_of(4_000), count, seconds, folder)
            router, envoy = got.busy.router * 1e6, got.busy.envoy * 1e6
            take(
                kind, STREAM_COLUMNS, (got.p50, got.p99, router, envoy, router + envoy, got.refused)
            )
    return Measured(front.name, values)
