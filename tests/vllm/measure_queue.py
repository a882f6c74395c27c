"""Two real vLLM engines under a closed loop of chats, with the pick's queue off and on.

    WARMPATH_VLLM_FOLDER=out/vllm .venv/bin/python tests/vllm/measure_queue.py

Clients hold chats of several turns, and some of them send long documents instead. The time to the first
token is measured at the client, from before the pick, in alternating rounds with the same prompts. The
router's costs are taken from the engines first.
"""

import argparse
import asyncio
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import aiohttp
import numpy as np

from tests.vllm.engine import FOLDER, TOPIC, Engine
from warmpath.client.async_client import AsyncClient
from warmpath.client.calls import Prompt
from warmpath.lab.local.ports import HeldPorts
from warmpath.router.assemble.running import running
from warmpath.router.config.read import parse

MODEL = "measured-llama"
NAME = "tiny"
"""Under which the engines serve it."""
SIZES = {
    "hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 8192,
}  # fmt: skip
"""Larger than the tiny model, so that a long prefill takes seconds."""
OPTIONS = (
    "--max-model-len", "8192", "--max-num-seqs", "16", "--max-num-batched-tokens", "2048",
    "--block-size", "32", "--num-gpu-blocks-override", "1500", "--load-format", "dummy",
)  # fmt: skip
VOCABULARY = 2000
SHARED, TURN, LONG = 400, 120, 5000
"""Tokens of a system prompt, of a turn, and of a document."""
OUTPUT = 4


@dataclass(frozen=True)
class Costs:
    """The router's model of a prefill, in seconds."""

    base: float
    token: float
    context: float


def ids(seed: int, number: int) -> list[int]:
    rng = Random(seed)
    return [rng.randrange(10, VOCABULARY) for _ in range(number)]


def make_model() -> None:
    folder = FOLDER / MODEL
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(FOLDER / "tiny-llama", folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | SIZES))


@dataclass
class Pods:
    """The engines, by their pods' names."""

    engines: dict[str, Engine]
    http: aiohttp.ClientSession

    async def first_token(self, pod: str, prompt: Sequence[int]) -> AsyncIterator[int | None]:
        """Yield None at the first token, then at the end the tokens that were found cached."""
        body = {
            "model": NAME, "prompt": [*prompt], "max_tokens": OUTPUT, "temperature": 0,
            "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        url = f"{self.engines[pod].base}/v1/completions"
        cached, has_begun = 0, False
        async with self.http.post(url, json=body) as response:
            response.raise_for_status()
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[len("data: ") :])
                if event["choices"] and not has_begun:
                    has_begun = True
                    yield None
                if event.get("usage"):
                    cached = event["usage"]["prompt_tokens_details"]["cached_tokens"] or 0
        yield cached

    async def seconds(self, pod: str, prompt: Sequence[int]) -> float:
        begun = time.monotonic()
        found = 0.0
        async for told in self.first_token(pod, prompt):
            if told is None:
                found = time.monotonic() - begun
        return found

    async def emptied(self) -> None:
        for engine in self.engines.values():
            async with self.http.post(f"{engine.base}/reset_prefix_cache") as response:
                response.raise_for_status()


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[Pods]:
    make_model()
    async with AsyncExitStack() as stack:
        ports = stack.enter_context(HeldPorts())
        engines = {
            name: Engine(
                ports.take(),
                ports.take(),
                ports.take(),
                folder / f"{name}.log",
                OPTIONS,
                model=MODEL,
            )
            for name in ("pod-1", "pod-2")
        }
        for engine in engines.values():
            engine.start()
            stack.callback(engine.stop)
        await asyncio.gather(*(engine.up() for engine in engines.values()))
        timeout = aiohttp.ClientTimeout(total=600)
        http = await stack.enter_async_context(aiohttp.ClientSession(timeout=timeout))
        yield Pods(engines, http)


async def measured(pods: Pods) -> Costs:
    """Fit the cost model to prompts that both engines compute at the same time, as they will."""
    sizes = (64, 256, 512, 1024, 2048, 3072, 5000)
    found = []
    for seed in range(3):
        for size in sizes:
            prompts = (ids(hash((seed, size, number)), size) for number in (1, 2))
            each = zip(pods.engines, prompts, strict=True)
            seconds = await asyncio.gather(*(pods.seconds(*one) for one in each))
            found.append((size, statistics.fmean(seconds)))
    grid = np.array([(1.0, size, size * size / 2) for size, _ in found])
    (base, token, context), *_ = np.linalg.lstsq(grid, np.array([s for _, s in found]), rcond=None)
    return Costs(max(float(base), 1e-3), max(float(token), 1e-7), max(float(context), 0.0))


def configuration(pods: Pods, costs: Costs, queue: str) -> str:
    first = (
        f'[server]\nlisten = "127.0.0.1:0"\nmetrics-listen = ""\n[[models]]\nname = "{NAME}"\n'
        f'[pick]\nqueue = "{queue}"\nprefill-base-seconds = {costs.base:.6f}\n'
        f"prefill-token-seconds = {costs.token:.3e}\nprefill-context-seconds = {costs.context:.3e}\n"
    )
    tables = [first]
    for name, engine in pods.engines.items():
        tables.append(
            f'[[pods]]\nid = "{name}"\nmodel = "{NAME}"\naddress = "127.0.0.1:{engine.port}"\n'
            f'topic = "{TOPIC}"\nevents = "tcp://127.0.0.1:{engine.events}"\n'
            f'replay = "tcp://127.0.0.1:{engine.replay}"\n'
        )
    return "".join(tables)


class Round:
    """One closed loop: `clients` that send one request after another."""

    def __init__(self, pods: Pods, client: AsyncClient) -> None:
        self._pods = pods
        self._client = client
        self.chats: list[float] = []
        self.documents: list[float] = []
        self.hits: list[float] = []

    async def one(self, prompt: list[int]) -> float:
        begun = time.monotonic()
        answer = await self._client.pick(Prompt(prompt, model=NAME), timeout=300)
        pod, booking = answer.candidates[0].pod, answer.booking_id
        first = 0.0
        cached = 0
        async for told in self._pods.first_token(pod, prompt):
            if told is None:
                first = time.monotonic() - begun
                await self._client.report(booking, "first_token")
            else:
                cached = told
        await self._client.report(
            booking,
            "finished",
            cached_tokens=cached,
            prompt_tokens=len(prompt),
            output_tokens=OUTPUT,
        )
        self.hits.append(cached / len(prompt))
        return first

    async def talk(self, number: int, chats: int, *, share: float) -> None:
        rng = Random(number)
        for _ in range(chats):
            if rng.random() < share:
                document = ids(rng.randrange(1 << 40), LONG)
                self.documents.append(await self.one(document))
                continue
            prompt = ids(rng.randrange(4), SHARED)
            for _ in range(3):
                prompt += ids(rng.randrange(1 << 40), TURN)
                self.chats.append(await self.one(prompt))


def at(seconds: Sequence[float], share: float) -> float:
    return float(np.quantile(np.array(seconds), share))


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--chats", type=int, default=6, help="of each client in a round")
    parser.add_argument("--documents", type=float, default=0.25, help="share of chats that are one")
    parser.add_argument("--rounds", type=int, default=3, help="of each setting")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        async with serving(Path(name)) as pods:
            costs = await measured(pods)
            print(f"costs of the engines: {costs}", flush=True)
            found: dict[str, list[Round]] = {"off": [], "on": []}
            for number in range(2 * args.rounds):
                queue = ("off", "on")[(number + number // 2) % 2]
                await pods.emptied()
                config = parse(configuration(pods, costs, queue), "measure")
                async with running(config, FOLDER) as router, AsyncClient(router.address) as client:
                    done = Round(pods, client)
                    seed = 1000 * (number // 2)
                    await asyncio.gather(
                        *(
                            done.talk(seed + one, args.chats, share=args.documents)
                            for one in range(args.clients)
                        )
                    )
                    found[queue].append(done)
                    print(line(f"queue {queue}, round {number // 2 + 1}", [done]), flush=True)
            for queue, rounds in found.items():
                print(line(f"queue {queue}, all rounds", rounds))


def line(name: str, rounds: Sequence[Round]) -> str:
    everything = [one for done in rounds for one in (*done.chats, *done.documents)]
    chats = [one for done in rounds for one in done.chats]
    hits = statistics.fmean(one for done in rounds for one in done.hits)
    return (
        f"{name:22} {len(everything):4} requests, TTFT p50 {at(everything, 0.5):6.2f} s, "
        f"p90 {at(everything, 0.9):6.2f} s, p99 {at(everything, 0.99):6.2f} s; chats only: "
        f"p50 {at(chats, 0.5):6.2f} s, p90 {at(chats, 0.9):6.2f} s; cached {hits:.2f}"
    )


if __name__ == "__main__":
    asyncio.run(main())
