"""Other gateways, each in an environment of its own, with the settings that its makers advise.

smg follows the events of workers that it calls over gRPC; for others its best policy keeps a tree of the
texts that it sent to each. vllm-router follows vLLM's events, and lets a worker make a prompt's tokens.
"""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from warmpath.cli.child import Child, ChildError
from warmpath.lab.bench.gateways.front import Front, Stand, Start, started
from warmpath.lab.bench.gateways.table import SMG, VLLM_ROUTER
from warmpath.lab.bench.stand.made_up_fleet import BLOCK_SIZE
from warmpath.lab.local.cluster import MODEL
from warmpath.lab.local.ports import HOST, HeldPorts
from warmpath.process.address import HostPort

ROOT = Path(__file__).resolve().parents[3]
PAUSE = 0.1
DONE = ".done"


def installed(name: str, prefix: Path = Path(sys.prefix), root: Path = ROOT) -> Path:
    """Return the programs' folder of a package's environment, which is made once for its constraints.

    The environment is `gateways-NAME` beside this one's packages; `root` has constraints-NAME.txt, whose
    hashes are checked. Raises ChildError if pip fails.
    """
    constraints, folder = root / f"constraints-{name}.txt", prefix / f"gateways-{name}"
    done = folder / DONE
    if not done.is_file() or done.read_bytes() != constraints.read_bytes():
        print(f"{name}, from its wheels, into {folder}", file=sys.stderr, flush=True)
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
        given = ("--require-hashes", "--only-binary", ":all:", "-r", str(constraints))
        try:
            for words in (
                (sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)),
                (*pip, "--python", str(folder / "bin/python"), "install", *given),
            ):
                subprocess.run(words, check=True)  # noqa: S603  ourselves
        except subprocess.CalledProcessError as error:
            raise ChildError(f"{name} could not be installed: {error}") from error
        done.write_bytes(constraints.read_bytes())
    return folder / "bin"


Command = Callable[[Stand, int, int], Sequence[str]]
"""Takes the stand, a port for clients and one for metrics; returns a command line."""


def _smg(policy: str) -> Command:
    def command(stand: Stand, port: int, metrics: int) -> Sequence[str]:
        return (
            str(installed("smg") / "smg"), "launch", f"--host={HOST}", f"--port={port}",
            f"--prometheus-port={metrics}", f"--policy={policy}", "--log-level=warn",
            f"--model-path={stand.tokenizer}", "--worker-urls", *_urls(stand),
        )  # fmt: skip

    return command


def _vllm_router(policy: str) -> Command:
    def command(stand: Stand, port: int, metrics: int) -> Sequence[str]:
        events = [
            f"--kv-event-{kind}source={url}={endpoint}"
            for url, pod in zip(_urls(stand), stand.pods, strict=True)
            for kind, endpoint in (("", pod.events), ("replay-", pod.replay))
        ]
        model = (f"--kv-event-model={MODEL}", f"--kv-event-block-size={BLOCK_SIZE}")
        return (
            str(installed("vllm-router") / "vllm-router"), f"--host={HOST}", f"--port={port}",
            f"--prometheus-port={metrics}", f"--policy={policy}", "--log-level=warning",
            *((*model, *events) if policy == "kv_aware" else ()), "--worker-urls", *_urls(stand),
        )  # fmt: skip

    return command


def _urls(stand: Stand) -> list[str]:
    return [f"http://{one.address}" for one in stand.pods]


def _peer(command: Command) -> Start:
    @asynccontextmanager
    async def start(name: str, stand: Stand) -> AsyncIterator[Front]:
        with HeldPorts() as ports:
            address = HostPort(HOST, ports.take())

            async def is_well(child: Child, _: object) -> None:
                async with aiohttp.ClientSession() as http:
                    while not await _is_well(http, f"http://{address}/health"):
                        child.check()
                        await asyncio.sleep(PAUSE)

            words = command(stand, address.port, ports.take())
            async with started(name, stand, words, is_well) as (process, _):
                yield Front(name, address, process)

    return start


async def _is_well(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(url) as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False


PEERS: dict[str, Start] = {
    SMG: _peer(_smg("cache_aware")),
    f"{SMG}, round robin": _peer(_smg("round_robin")),
    VLLM_ROUTER: _peer(_vllm_router("kv_aware")),
    f"{VLLM_ROUTER}, round robin": _peer(_vllm_router("round_robin")),
}
