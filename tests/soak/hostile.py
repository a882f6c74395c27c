"""Mixed traffic with hostile peers, callers and files in it: part of `make soak`.

A router and a publisher run as processes, follow honest engines, and answer innocent callers all the time.
Hostile callers, engines, publishers and files send anything at the same time, and engines behind a
gateway hang, sleep, are cut off, and answer late (`tests/soak/gateway_traffic.py`). No innocent call may
fail but by a refusal that docs/reference/failures.md promises, or get a wrong answer; memory and descriptors are the same in the last quarter as in the second one; nothing
in the logs is long, frequent or a traceback; at the end every honest rank is exact, and SIGTERM ends both in
time with the state saved. `tests/soak/watched_process.py` states the limits.
One file: everything happens at the same time.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import re
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random

import aiohttp
import grpc.aio
import zmq.asyncio

from tests.recordings import TOKENIZER
from tests.soak.engines import HonestEngine, ServingEngine, new_prompt
from tests.soak.gateway_traffic import GatewayTraffic
from tests.soak.hostile_callers import HostileCallers
from tests.soak.hostile_peers import LyingEngine, RewrittenFile, again, lying_pages, serve_lies
from tests.soak.innocent_callers import InnocentCallers
from tests.soak.watched_process import WatchedProcess
from warmpath.indexer.keys.key import fingerprint, pack_tokens
from warmpath.lab.local.ports import HeldPorts
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc

TEMPLATE = "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] }}{% endfor %}"
LOOK_SECONDS = 5.0
DRAIN_SECONDS = 20.0
"""Most seconds from SIGTERM to the end: 5 s for calls, the rest for a busy machine."""
SUBSCRIBE_SECONDS = 30.0
"""Most seconds until the router follows all engines."""
MOST_OVERLOADED = 0.01
"""Share of innocent calls that may be refused with OVERLOADED, as docs/reference/failures.md promises."""
MOST_STILL = 0.001
"""Share of innocent calls whose answer may say that the router stood still, as docs/reference/failures.md promises:
other processes may have all of the machine for a second or two."""
LAST_ACT_SECONDS = 120.0
"""Most seconds for acts that were begun before the time was up."""

CONFIG = """
pods-file = "pods.toml"
[server]
listen = "127.0.0.1:{grpc}"
metrics-listen = "127.0.0.1:{http}"
[index]
max-bytes = 67108864
state-file = "state"
[prefix-store]
max-bytes = 8388608
[limits]
max-queued-bytes = 16777216
[booking]
expire-seconds = 30
max-bookings = 2000
[pick]
max-believed-blocks = 20000
assumed-seconds = 30
[probe]
interval-seconds = 1.0
timeout-seconds = 1.0
[[models]]
name = "m"
vocab-size = 50000
[[models]]
name = "served"
[[models]]
name = "alone"
[[models]]
name = "text"
tokenizer = "tokenizer"
"""


class Soak:
    """The whole stand: honest engines, hostile peers, and the two processes under test."""

    def __init__(self, folder: Path, seed: int, pause: float) -> None:
        self.folder = folder
        self.over = asyncio.Event()
        """Set once the time is up; every task then ends."""
        self.pause = pause
        self.acts: Counter[str] = Counter()
        self.rng = Random(seed)
        self.context = zmq.asyncio.Context()
        self.ports = HeldPorts()
        """Ports of the router and the publisher, reserved so that callers know them beforehand."""
        self.grpc, self.http, self.watch, self.page = (
            f"127.0.0.1:{self.ports.take()}" for _ in range(4)
        )
        self.engines = [
            HonestEngine(pod, capacity=capacity, seed=seed + number, context=self.context)
            for number, (pod, capacity) in enumerate(
                [("still", 10_000), ("busy", 500), ("small", 60), ("told", 300)]
            )
        ]
        if _has_ipv6():
            sixth = HonestEngine("sixth", capacity=300, seed=seed, context=self.context, host="::1")
            self.engines.insert(1, sixth)
        self.serving = [
            ServingEngine(f"serving-{number}", seed=seed + 100 + number, context=self.context)
            for number in range(5)
        ]
        self.router = WatchedProcess(
            "router", folder, ("warmpath.cli", "serve", "--config", str(folder / "router.toml"))
        )
        told = self.engines[-1]
        self.publisher = WatchedProcess(
            "publisher", folder,
            ("warmpath.publisher.main", "--pod", "told", "--model", "m", "--events", told.events, "--replay",
             told.replay, "--listen", self.watch, "--metrics-listen", self.page),
        )  # fmt: skip

    def going_on(self) -> bool:
        return not self.over.is_set()

    async def write(self, stack: AsyncExitStack) -> list[LyingEngine]:
        """Write the files, and start the engines and publishers that the router follows."""
        tokenizer = self.folder / "tokenizer"
        tokenizer.mkdir()
        (tokenizer / "tokenizer.json").write_bytes(TOKENIZER.read_bytes())
        (tokenizer / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
        for engine in self.engines:
            await engine.start()
            stack.callback(engine.close)
        for served in self.serving:
            await served.start()
            stack.push_async_callback(served.end)
        liars = [LyingEngine(Random(self.rng.random()), self.context) for _ in range(3)]
        pages = await lying_pages(self.rng)
        stack.callback(pages.close)
        page = f"127.0.0.1:{pages.sockets[0].getsockname()[1]}"
        publisher, watch = await serve_lies(self.rng, "liar-by-watch")
        stack.push_async_callback(publisher.stop, 0)
        pods = [_pod("liar-by-watch", page, f'watch = "{watch}"')]
        pods += [_pod("liar", page, f'events = "{liars[0].events}"')]
        for engine in [*self.engines[:-1], *self.serving]:
            follow = f'events = "{engine.events}"\nreplay = "{engine.replay}"'
            pods.append(_pod(engine.pod, engine.address, follow, engine.model))
        pods.append(_pod("alone", self.engines[0].address, "", "alone"))
        pods.append(_pod("told", self.engines[-1].address, f'watch = "{self.watch}"'))
        config = CONFIG.format(grpc=self.grpc[10:], http=self.http[10:])
        (self.folder / "router.toml").write_text(config + "".join(pods))
        listed = [
            _pod(f"liar-{number}", page, f'events = "{liar.events}"')
            for number, liar in enumerate(liars[1:])
        ]
        self.file = RewrittenFile(self.rng, self.folder / "pods.toml", "".join(listed))
        for liar in liars:
            stack.callback(liar.close)
        return liars

    def attack(self, tasks: asyncio.TaskGroup, liars: list[LyingEngine]) -> None:
        callers = HostileCallers(
            self.rng, grpc_at=self.grpc, http_at=self.http, watch_at=self.watch, page_at=self.page
        )

        def done(name: str) -> None:
            self.acts[name] += 1

        for act in (callers.act, callers.act, *(liar.act for liar in liars), self.signals):
            tasks.create_task(again(act, self.pause, done, self.going_on))
        tasks.create_task(again(self.file.act, 10 * self.pause, done, self.going_on))

    async def signals(self) -> str:
        """Send SIGUSR1 or SIGUSR2, which have no meaning here."""
        for process in (self.router.process, self.publisher.process):
            os.kill(process.pid, self.rng.choice([signal.SIGUSR1, signal.SIGUSR2]))
        await asyncio.sleep(5)
        return "signals"

    async def serve_prompts(self) -> None:
        """Let all engines but the still one serve prompts."""
        prefixes = [new_prompt(self.rng, 4)[:-1] for _ in range(8)]
        while self.going_on():
            engine = self.rng.choice(self.engines[1:])
            prefix = self.rng.choice(prefixes)
            await engine.serve(new_prompt(engine.rng, engine.rng.randrange(1, 8), prefix))
            await asyncio.sleep(0.1)

    async def look(self) -> None:
        """Record memory and descriptors until the time is up."""
        while self.going_on():
            self.router.look()
            self.publisher.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def wrong(self, stub: router_pb2_grpc.RouterStub) -> list[str]:
        """Compare the router's view of honest engines with their caches; wait up to 30 s for events."""
        found: list[str] = []
        for engine in [*self.engines, *self.serving]:
            for _ in range(300):
                found_now = await self._differs(stub, engine)
                if not found_now:
                    break
                await asyncio.sleep(0.1)
            found += found_now
        return found

    async def _differs(self, stub: router_pb2_grpc.RouterStub, engine: HonestEngine) -> list[str]:
        listed = await stub.ListPods(pb.ListPodsRequest(), timeout=20)
        pod = next(pod for pod in listed.pods if pod.id == engine.pod)
        [rank] = pod.ranks
        found = [] if pod.ready else [f"pod {engine.pod} is not ready: {pod.status}"]
        if rank.trust.level != pb.Trust.EXACT:
            found.append(f"pod {engine.pod} is not exact: {rank.trust.reason}")
        blocks = sum(tier.blocks for tier in rank.tiers)
        if blocks != len(engine.cache.blocks):
            found.append(
                f"pod {engine.pod} holds {len(engine.cache.blocks)} blocks, {blocks} are known"
            )
        for tokens in engine.prompts:
            prompt = pb.Prompt(model=engine.model, token_ids_packed=pack_tokens(tokens))
            request = pb.ScoreRequest(prompt=prompt, pods=[engine.pod])
            [one] = (await stub.Score(request, timeout=20)).scores
            told, held = one.matched_tokens - one.believed_tokens, engine.held_tokens(tokens)
            if told != held:
                found.append(f"pod {engine.pod} holds {held} tokens of a prompt, {told} are told")
        return found[:3]

    async def lags(self) -> dict[str, float]:
        """Return how often the answering event loop was late: upper bound in seconds -> count."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://{self.http}/metrics") as response,
        ):
            page = await response.text()
        found = re.findall(
            r'^warmpath_loop_lag_seconds_bucket\{le="(\S+)"\} (\S+)', page, re.MULTILINE
        )
        return {le: float(count) for le, count in found}

    async def ended(self) -> list[str]:
        found = []
        state = self.folder / "state"
        begun = time.time()
        for watched in (self.router, self.publisher):
            status = await watched.end(DRAIN_SECONDS)
            if status != 0:
                found.append(f"{watched.name}: SIGTERM ended it with {status}")
        if not state.exists() or state.stat().st_mtime < begun:
            found.append("the state was not saved")
        return found


def _pod(name: str, address: str, follow: str, model: str = "m") -> str:
    return f'[[pods]]\nid = "{name}"\nmodel = "{model}"\naddress = "{address}"\n{follow}\n'


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


async def _subscribed(engine: HonestEngine) -> None:
    """Wait until the router follows an engine, or could have: `Soak.wrong` then tells of it."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SUBSCRIBE_SECONDS):
            await engine.subscribed()


@asynccontextmanager
async def standing(soak: Soak) -> AsyncIterator[list[LyingEngine]]:
    """Start both processes; let all engines be followed and serve 50 prompts each."""
    async with AsyncExitStack() as stack:
        stack.enter_context(soak.ports)
        liars = await soak.write(stack)
        for watched in (soak.publisher, soak.router):
            stack.push_async_callback(watched.end, DRAIN_SECONDS)
            print((await watched.start()).decode().strip(), file=sys.stderr)
        every = [*soak.engines, *soak.serving]
        await asyncio.gather(*map(_subscribed, every))
        for engine in every:
            for _ in range(50):
                await engine.serve(new_prompt(engine.rng, engine.rng.randrange(1, 20)))
        yield liars


async def run(
    minutes: float, seed: int, pause: float, folder: Path
) -> tuple[dict[str, object], list[str]]:
    soak = Soak(folder, seed, pause)
    options = [("grpc.max_receive_message_length", -1)]
    async with (
        standing(soak) as liars,
        grpc.aio.insecure_channel(soak.grpc, options=options) as channel,
    ):
        stub = router_pb2_grpc.RouterStub(channel)
        problems = await soak.wrong(stub)
        callers = InnocentCallers(stub, soak.engines, http=soak.http, going_on=soak.going_on)
        traffic = GatewayTraffic(
            stub, soak.serving, minutes=minutes, seed=seed, going_on=soak.going_on
        )
        async with asyncio.timeout(minutes * 60 + LAST_ACT_SECONDS), asyncio.TaskGroup() as tasks:
            asyncio.get_running_loop().call_later(minutes * 60, soak.over.set)
            for one in callers.all(soak.grpc, soak.watch, fingerprint("m", "")):
                tasks.create_task(one)  # type: ignore[arg-type]
            for work in (
                soak.serve_prompts(), soak.look(), traffic.ask(), traffic.break_engines()
            ):  # fmt: skip
                tasks.create_task(work)
            soak.attack(tasks, liars)
        problems += await soak.wrong(stub)
        lags = await soak.lags()
        problems += await soak.ended()
    for watched in (soak.router, soak.publisher):
        problems += watched.problems(minutes)
    problems += [*callers.failed[:10], *traffic.failed[:10]]
    made = callers.calls.total() + traffic.figures.total()
    if callers.overloaded + traffic.overloaded > MOST_OVERLOADED * made:
        problems.append("innocent calls were refused as in an overload, more than a few")
    if callers.still > MOST_STILL * callers.calls.total():
        problems.append("the router stood still too often")
    figures = {
        "minutes": minutes, "answers while it stood still": callers.still, "innocent calls": callers.calls.total(),
        "failed": len(callers.failed) + len(traffic.failed), "overloaded": callers.overloaded + traffic.overloaded,
        "slowest, s": round(callers.slowest, 2), "calls": dict(callers.calls), "gateway": dict(traffic.figures),
        "hostile acts": dict(soak.acts), "loop lag, s": lags, **soak.router.figures(), **soak.publisher.figures(),
    }  # fmt: skip
    return figures, problems


def main() -> int:
    """Run the soak; return 1 if there are problems."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pause", type=float, default=0.5, help="of each who is hostile, seconds")
    parser.add_argument("--folder", type=Path, help="is kept; a temporary one without it")
    args = parser.parse_args()
    # asyncio would warn whenever a hostile server writes to a client that has left.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as made:
        folder = args.folder or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        figures, problems = asyncio.run(run(args.minutes, args.seed, args.pause, folder.resolve()))
    print(json.dumps(figures, indent=1))
    for one in problems:
        print(f"WRONG: {one}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
