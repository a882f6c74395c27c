"""Streamed answers through Envoy while routers are rolled and a pod is killed: part of `make soak`.

Two routers stand behind one Envoy, as behind a headless Service, and four simulated pods behind those.
Clients keep a number of answers open all the time. Each router is ended by SIGTERM and started again,
twice, and one pod is killed and comes back. Every answer must be whole, but for those that the killed pod
had begun; at the end no router may have a booking left.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from copy import deepcopy
from pathlib import Path
from random import Random

import aiohttp

from tests.servers.envoy import Envoy
from tests.soak.watched_process import WatchedProcess
from warmpath.cli.gateway.bootstrap import Fields, GatewayDescription, bootstrap
from warmpath.lab.local.cluster import MODEL, VOCAB_SIZE, Worker, WorkerSettings
from warmpath.lab.local.ports import HOST, HeldPorts
from warmpath.lab.local.tokenizer import write_tokenizer
from warmpath.process.address import HostPort
from warmpath.router.config.schema import Config, ModelSpec, PodSpec, ServerTable
from warmpath.router.config.write import as_toml

PODS, ROUTERS, ROLLS = 4, 2, 2
KILLED = 1
"""The number of the pod that is killed."""
TOKENS = 400
"""Tokens of an answer: some 30 to 40 s at the pods' speed."""
END_SECONDS = 30.0
"""Most seconds that a router takes to end, and that bookings take to end after the last answer."""
SILENT_SECONDS = 60.0
"""An answer of which nothing came for so long is broken."""


class Clients:
    """Keep `count` answers open. A new one is asked for as soon as one has ended."""

    def __init__(self, address: str, count: int, rng: Random) -> None:
        self.over = asyncio.Event()
        self.killed_at: list[float] = []
        self.broken: list[str] = []
        self.figures: Counter[str] = Counter()
        self._url = f"http://{address}/v1/chat/completions"
        self._count = count
        self._rng = rng
        self._systems = [f"You are assistant {number}. " * 60 for number in range(12)]

    async def run(self) -> None:
        """Ask until the soak is over, and wait for the answers under way."""
        limits = aiohttp.ClientTimeout(total=None, sock_read=SILENT_SECONDS)
        connector = aiohttp.TCPConnector(limit=0)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=limits) as http,
            asyncio.TaskGroup() as tasks,
        ):
            for number in range(self._count):
                tasks.create_task(self._keep_asking(http, number / 10))

    async def _keep_asking(self, http: aiohttp.ClientSession, delay: float) -> None:
        await asyncio.sleep(delay)
        while not self.over.is_set():
            await self._ask(http)

    async def _ask(self, http: aiohttp.ClientSession) -> None:
        body = {
            "model": MODEL, "stream": True, "max_tokens": TOKENS, "ignore_eos": True,
            "stream_options": {"include_usage": True},
            "messages": [
                {"role": "system", "content": self._rng.choice(self._systems)},
                {"role": "user", "content": f"{self._rng.random()} " * 8},
            ],
        }  # fmt: skip
        begun, pod, last, chunks = time.monotonic(), "", b"", 0
        try:
            async with http.post(self._url, json=body) as answer:
                pod = answer.headers.get("x-warmpath-pod", "")
                self.figures["sent without a pick"] += not pod
                async for line in answer.content:
                    last, chunks = line.strip() or last, chunks + line.startswith(b"data: {")
            wrong = "" if last == b"data: [DONE]" else f"{answer.status}, at its end {last[:300]!r}"
        except (aiohttp.ClientError, TimeoutError) as error:
            wrong = repr(error)
        if wrong:
            if pod == _name(KILLED) and any(begun < at for at in self.killed_at):
                self.figures["answers that the killed pod had begun"] += 1
            else:
                ago = time.monotonic() - begun
                self.broken.append(f"an answer of {pod or 'no pod'}, after {ago:.1f} s: {wrong}")
        else:
            self.figures["answers"] += 1
            self.figures["chunks"] += chunks


def _name(number: int) -> str:
    return f"pod-{number}"


def _config(folder: Path, at: tuple[str, str], workers: Sequence[Worker]) -> str:
    model = ModelSpec(name=MODEL, vocab_size=VOCAB_SIZE, tokenizer=str(folder))
    pods = [
        PodSpec(id=one.id, model=MODEL, address=one.address, events=one.events, replay=one.replay)
        for one in workers
    ]
    server = ServerTable(listen=at[0], metrics_listen=at[1])
    return as_toml(Config(models=[model], server=server, pods=pods))


def _with_another(fields: Fields, router: HostPort) -> Fields:
    """Return a gateway's bootstrap in which another router stands beside its own in each cluster."""
    _, *clusters = fields["static_resources"]["clusters"]
    for cluster in clusters:
        [group] = cluster["load_assignment"]["endpoints"]
        [own] = group["lb_endpoints"]
        other = deepcopy(own)
        other["endpoint"]["address"]["socket_address"]["port_value"] = router.port
        group["lb_endpoints"].append(other)
    return fields


async def _bookings(pages: Sequence[str]) -> float:
    """Return the bookings of all routers."""
    found = 0.0
    async with aiohttp.ClientSession() as http:
        for page in pages:
            async with http.get(f"http://{page}/metrics") as answer:
                lines = (await answer.text()).splitlines()
            found += sum(
                float(one.split()[-1]) for one in lines if one.startswith("warmpath_bookings ")
            )
    return found


async def _roll(router: WatchedProcess, problems: list[str]) -> None:
    if (status := await router.end(END_SECONDS)) != 0:
        problems.append(f"{router.name}: ended with {status}")
    await router.start()


async def soak(folder: Path, minutes: float, streams: int, seed: int) -> list[str]:
    """Run the soak; return its problems."""
    async with AsyncExitStack() as stack:
        ports = stack.enter_context(HeldPorts())
        write_tokenizer(folder)
        settings = WorkerSettings(
            blocks=24_000, block_size=16, speed=0.15, vocab_size=VOCAB_SIZE, tokenizer=folder,
            stream_interval=1,
        )  # fmt: skip
        workers = [Worker.held(_name(one), folder / f"pod-{one}.log", ports) for one in range(PODS)]
        for worker in workers:
            await worker.start(settings)
            stack.push_async_callback(worker.process.stop)
        at = [(f"{HOST}:{ports.take()}", f"{HOST}:{ports.take()}") for _ in range(ROUTERS)]
        routers = []
        for number, one in enumerate(at):
            path = folder / f"router-{number}.toml"
            path.write_text(_config(folder, one, workers), encoding="utf-8")
            words = ("warmpath.cli", "serve", "--config", str(path))
            routers.append(WatchedProcess(f"router-{number}", folder, words))
            await routers[-1].start()
            stack.push_async_callback(routers[-1].end, END_SECONDS)
        gateway = GatewayDescription(
            listen=HostPort(HOST, 0), router=HostPort.of(at[0][0]),
            pods=[HostPort.of(one.address) for one in workers],
        )  # fmt: skip
        page = {"address": {"socket_address": {"address": HOST, "port_value": 0}}}
        both = _with_another(bootstrap(gateway), HostPort.of(at[1][0]))
        envoy = Envoy(json.dumps(both | {"admin": page}))
        stack.callback(envoy.close)
        await asyncio.to_thread(envoy.start)
        clients = Clients(envoy.address, streams, Random(seed))
        running = asyncio.create_task(clients.run())
        problems: list[str] = []
        step = minutes * 60 / (ROUTERS * ROLLS + 2)
        for number in range(ROUTERS * ROLLS):
            await asyncio.sleep(step)
            for router in routers:
                router.look()
            await _roll(routers[number % ROUTERS], problems)
            if number == ROUTERS * ROLLS // 2:
                clients.killed_at.append(time.monotonic())
                workers[KILLED].process.kill()
                await workers[KILLED].process.stop()
                await asyncio.sleep(step / 2)
                await workers[KILLED].start(settings)
        await asyncio.sleep(step)
        clients.over.set()
        await running
        deadline = time.monotonic() + END_SECONDS
        pages = [page for _, page in at]
        while (left := await _bookings(pages)) and time.monotonic() < deadline:
            await asyncio.sleep(1.0)
        if left:
            problems.append(f"{left:.0f} bookings are left")
        problems += clients.broken[:20]
        if len(clients.broken) > 20:
            problems.append(f"{len(clients.broken)} answers broke in all")
        if not clients.figures["answers"]:
            problems.append("no answer was whole")
        print(json.dumps(dict(clients.figures), indent=2))
    return problems


def main() -> int:
    """Run the soak; return 1 if there are problems."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--streams", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="warmpath-streams-") as folder:
        problems = asyncio.run(soak(Path(folder), args.minutes, args.streams, args.seed))
        if problems:
            for log in sorted(Path(folder).glob("router-*.log")):
                print(f"--- {log.name}", log.read_text(errors="replace")[-3000:], sep="\n")
    print(*problems, sep="\n")
    print("passed" if not problems else f"failed: {len(problems)} problems")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
