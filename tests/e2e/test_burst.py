"""Bursts of new prompts, sent all at once to real routers and eight real workers."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from random import Random

import aiohttp
import grpc.aio
import pytest

from tests.router.pick_stand import pod
from tests.servers.redis_server import RedisServer
from warmpath.indexer.keys.key import pack_tokens
from warmpath.lab.bench.stand.servers import Python
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc

pytestmark = pytest.mark.deep

Router = router_pb2_grpc.RouterStub
Served = Callable[[], Coroutine[None, None, tuple[str, int]]]

MODEL = "demo"
BLOCK = 32
VOCAB = 32_000
PODS = 8
SIZE = 500
SHORT, LONG = 512, 16_384
WARM = 0.8
"""The share of a prompt that must be cached where it was computed before: the last block never is."""

WORKERS = (
    f"--model={MODEL}", "--listen=127.0.0.1:0", "--events-endpoint=tcp://127.0.0.1:*",
    "--replay-endpoint=tcp://127.0.0.1:*", f"--workers={PODS}", f"--block-size={BLOCK}", "--blocks=16384",
    f"--vocab-size={VOCAB}", "--stream-interval=64", "--speed=50",
)  # fmt: skip


class Prompt:
    """Token ids that nobody has seen, encoded as both sides take them."""

    def __init__(self, rng: Random, tokens: int, max_tokens: int = 8) -> None:
        ids = rng.choices(range(VOCAB), k=tokens)
        self.message = pb.Prompt(model=MODEL, token_ids_packed=pack_tokens(ids))
        body = {"model": MODEL, "prompt": ids, "max_tokens": max_tokens, "stream": True}
        self.body = json.dumps(body | {"stream_options": {"include_usage": True}}).encode()


@dataclass(frozen=True)
class Fleet:
    """Eight workers in one process, and the routers that are asked about them, in turn."""

    routers: Sequence[Router]
    http: aiohttp.ClientSession
    addresses: dict[str, str]

    async def burst(
        self, prompts: Sequence[Prompt], before: Sequence[Prompt] = (), on: Sequence[str] = ()
    ) -> list[tuple[str, int]]:
        """Place and serve all `prompts` at once, while those `before` are under way `on` some pods.

        Ends are reported once the last one is placed, as if each answer took longer than the burst: so
        what is in flight at a pick is what was picked before it. Returns each one's pod and how many
        tokens its engine found cached.
        """
        placed = asyncio.Event()
        left = len(before) + len(prompts)
        turns = cycle(self.routers)

        async def pick(prompt: Prompt, pods: Sequence[str] = ()) -> Served:
            nonlocal left
            router = next(turns)
            picked = await router.Pick(pb.PickRequest(prompt=prompt.message, pods=pods))
            left -= 1
            if not left:
                placed.set()
            pod = picked.candidates[0].pod
            report = partial(_report, router, picked.booking_id)

            async def serve() -> tuple[str, int]:
                cached = await self._generate(prompt, pod, report)
                await placed.wait()
                await report(pb.ReportRequest.FINISHED, cached_tokens=cached)
                return pod, cached

            return serve

        async def one(prompt: Prompt) -> tuple[str, int]:
            return await (await pick(prompt))()

        async with asyncio.TaskGroup() as tasks:
            for prompt in before:
                tasks.create_task((await pick(prompt, on))())
            placing = [tasks.create_task(one(prompt)) for prompt in prompts]
        return [task.result() for task in placing]

    async def _generate(
        self, prompt: Prompt, pod: str, report: Callable[..., Awaitable[None]]
    ) -> int:
        """Have a pod answer, and report its first token; return the tokens that it found cached."""
        usage = None
        began = False
        url = f"http://{self.addresses[pod]}/v1/completions"
        headers = {"Content-Type": "application/json"}
        async with self.http.post(url, data=prompt.body, headers=headers) as response:
            assert response.status == 200, await response.text()
            await report(pb.ReportRequest.STARTED)
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                if not began:
                    began = True
                    await report(pb.ReportRequest.FIRST_TOKEN)
                usage = json.loads(line[6:]).get("usage") or usage
        assert usage is not None
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    async def decisions(self) -> list[pb.Decision]:
        """Return what the first router picked, the first first."""
        answer = await self.routers[0].ListDecisions(pb.ListDecisionsRequest())
        return list(reversed(answer.decisions))


async def _report(
    router: Router, booking_id: str, event: pb.ReportRequest.Event.ValueType, **fields: int
) -> None:
    request = pb.ReportRequest(booking_id=booking_id, event=event, **fields)
    assert (await router.Report(request)).known


@asynccontextmanager
async def fleet(
    folder: Path, *, without_events: int = 0, routers: int = 1, more: str = ""
) -> AsyncIterator[Fleet]:
    """Start fresh workers; the routers get no events of some. `more` ends their configuration."""
    async with AsyncExitStack() as stack:
        worker_log = folder / "workers.log"
        process = stack.enter_context(Python("warmpath.lab.simworker", *WORKERS, log=worker_log))
        workers = json.loads(process.hear())["workers"]
        lines = [
            "[server]\nlisten = '127.0.0.1:0'\nmetrics-listen = ''",
            # Eight engines in one process take requests in late on a busy machine, and would then
            # tell of fewer than were sent.
            "[probe]\ninterval-seconds = 0",
            f"[pick]\nkept-decisions = {2 * SIZE}",
            # A burst is more calls than a busy machine answers in the usual time.
            "[limits]\nwait-seconds = 60",
            f"[[models]]\nname = '{MODEL}'\nvocab-size = {VOCAB}",
        ]
        for number, worker in enumerate(workers):
            names = ("events", "replay") if number >= without_events else ()
            keys = {name: worker[name] for name in names}
            lines.append(pod(f"pod-{number}", worker["address"], **keys))
        config = folder / "router.toml"
        config.write_text("\n".join([*lines, more]))
        args = ("warmpath.cli", "serve", "--config", str(config))
        stubs = []
        for number in range(routers):
            router = stack.enter_context(Python(*args, log=folder / f"router-{number}.log"))
            address = router.hear().split(" on ")[1].split(",")[0].strip()
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(address))
            stubs.append(router_pb2_grpc.RouterStub(channel))
        # A pod may close an idle connection while a busy machine sends the next request on it.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        wait = aiohttp.ClientTimeout(total=None)
        session = aiohttp.ClientSession(connector=connector, timeout=wait)
        http = await stack.enter_async_context(session)
        for stub in stubs:
            while await followed(stub) < PODS - without_events:
                await asyncio.sleep(0.01)
        addresses = {f"pod-{at}": one["address"] for at, one in enumerate(workers)}
        yield Fleet(stubs, http, addresses)


async def followed(stub: Router) -> int:
    """Return how many pods' events are followed without a gap."""
    pods = (await stub.ListPods(pb.ListPodsRequest())).pods
    return sum(pod.ranks[0].trust.level == pb.Trust.EXACT for pod in pods)


def pod_of(decision: pb.Decision) -> str:
    return decision.candidates[0].pod


def assert_within_margin(decisions: Sequence[pb.Decision], pods: int = PODS) -> None:
    """Assert that no pod got far more than its share among so many `pods`, counted from the picks alone."""
    in_flight = dict.fromkeys((f"pod-{number}" for number in range(PODS)), 0)
    for picked, decision in enumerate(decisions):
        pod = pod_of(decision)
        assert in_flight[pod] <= 1.5 * picked / pods + 16, in_flight
        in_flight[pod] += 1


def assert_few_are_cold(cold: Counter[str]) -> None:
    """Assert that somebody computes the prompt, and no pod more than twice."""
    assert cold
    assert max(cold.values()) <= 2, cold


@pytest.mark.parametrize(
    ("tokens", "loaded", "without_events"),
    [(SHORT, 0, 0), (LONG, 0, 0), (SHORT, 4, 0), (LONG, 4, 0), (SHORT, 0, 3)],
    ids=["short-idle", "long-idle", "short-half-loaded", "long-half-loaded", "short-a-third-blind"],
)
async def test_one_new_prompt_spreads_and_is_computed_once_or_twice_a_pod(
    tmp_path: Path, tokens: int, loaded: int, without_events: int
) -> None:
    rng = Random(tokens + loaded)
    prompt = Prompt(rng, tokens)
    before = [Prompt(rng, 4096, max_tokens=200) for _ in range(16 * loaded)]
    busy = [f"pod-{2 * number}" for number in range(loaded)]
    async with fleet(tmp_path, without_events=without_events) as stand:
        answers = await stand.burst([prompt] * SIZE, before, on=busy)
        decisions = await stand.decisions()
    burst = decisions[len(before) :]
    counts = Counter(pod for pod, _ in answers)
    assert Counter(map(pod_of, burst)) == counts
    # Where the prefill is long, waiting for it is better than computing it on every pod; how many requests
    # wait depends on how fast a busy machine sends them.
    assert max(counts.values()) < (SIZE / 2 if tokens == SHORT else 3 * SIZE / 4)
    if tokens == SHORT:
        # A slow machine may not end the long prompts before the burst: then only the other pods take it.
        assert_within_margin(decisions, pods=PODS - loaded)
    warm = WARM * tokens
    assert_few_are_cold(Counter(pod for pod, cached in answers if cached < warm))
    expected = (one.candidates[0] for one in burst)
    assert_few_are_cold(Counter(one.pod for one in expected if one.matched_tokens < warm))


async def test_different_new_prompts_spread_evenly(tmp_path: Path) -> None:
    rng = Random(1)
    async with fleet(tmp_path) as stand:
        answers = await stand.burst([Prompt(rng, SHORT) for _ in range(SIZE)])
        assert_within_margin(await stand.decisions())
    assert all(cached == 0 for _, cached in answers)
    counts = Counter(pod for pod, _ in answers)
    assert len(counts) == PODS
    assert max(counts.values()) <= 1.5 * SIZE / PODS


async def test_two_routers_that_share_bookings_spread_one_new_prompt(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    """Each router alone lets a pod compute the prompt at most twice; together they do as well."""
    shared = f"[shared-index]\nurl = '{redis_server.url}'\nprefix = 'burst'\nshare-bookings = true"
    async with fleet(tmp_path, routers=2, more=shared) as stand:
        answers = await stand.burst([Prompt(Random(SHORT), SHORT)] * SIZE)
    counts = Counter(pod for pod, _ in answers)
    assert len(counts) == PODS
    assert max(counts.values()) < SIZE / 2
    cold = Counter(pod for pod, cached in answers if cached < WARM * SHORT)
    assert cold
    assert max(cold.values()) <= 2 * len(stand.routers), cold
