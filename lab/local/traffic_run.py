"""Sends recorded traffic to a cluster, open loop: requests go out when they are due."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import aiohttp

from warmpath.lab.local.cluster import MODEL
from warmpath.lab.local.measure import Served, TrafficRun
from warmpath.lab.local.rules import PodChoice, Policy
from warmpath.lab.local.workload import Arrival


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request, encoded before the clock starts."""

    at: float
    """Modelled seconds from the start."""
    packed: bytes
    """The prompt's token ids, packed as for Pick."""
    body: bytes
    prompt_tokens: int


class UnservedError(Exception):
    """A pod failed to serve a request."""

    def __init__(self, problem: str, *, elsewhere: bool) -> None:
        """`elsewhere` says whether another pod may serve it: no token has come."""
        super().__init__(problem)
        self.elsewhere = elsewhere


def prepare(arrivals: Sequence[Arrival]) -> list[Prepared]:
    """Return the workload's requests, encoded for the engines."""
    return [
        Prepared(
            at=arrival.at,
            packed=arrival.tokens.tobytes(),
            body=json.dumps(
                {
                    "model": MODEL,
                    "prompt": arrival.tokens.tolist(),
                    "max_tokens": arrival.max_tokens,
                    "stream": True,
                    "stream_options": {"include_usage": True},
                },
                separators=(",", ":"),
            ).encode(),
            prompt_tokens=len(arrival.tokens),
        )
        for arrival in arrivals
    ]


async def run_traffic(
    requests: Sequence[Prepared],
    policy: Policy,
    addresses: Sequence[str],
    *,
    speed: float,
    progress: Callable[[TrafficRun], None],
) -> TrafficRun:
    """Send every request when it is due, and wait for all answers."""
    result = TrafficRun()
    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        begun = time.monotonic()

        async def one(request: Prepared) -> None:
            due = begun + request.at / speed
            await asyncio.sleep(due - time.monotonic())
            await _serve(session, request, policy, addresses, due=due, speed=speed, result=result)
            progress(result)

        async with asyncio.TaskGroup() as tasks:
            for request in requests:
                tasks.create_task(one(request))
    return result


async def _serve(
    session: aiohttp.ClientSession,
    request: Prepared,
    policy: Policy,
    addresses: Sequence[str],
    *,
    due: float,
    speed: float,
    result: TrafficRun,
) -> None:
    asked = time.monotonic()
    choice = await policy.choose(request.packed)
    choosing = time.monotonic() - asked - choice.waited
    result.choices.append(choosing)
    result.delays.append((asked - due + choosing) * speed)
    pod = choice.pods[0]
    cached: int | None = None
    problem = ""
    try:
        for tried, pod in enumerate(choice.pods):
            if tried:
                await policy.fell_back(choice, choice.pods[tried - 1], pod)
            try:
                first, cached = await _stream(session, addresses[pod], request, policy, choice)
                break
            except UnservedError as error:
                problem = str(error)
                if not error.elsewhere:
                    break
        result.fell_back += tried > 0
    finally:
        await policy.finished(choice, pod, cached)
    if cached is None:
        result.failed += 1
        result.problem = problem
        return
    result.served.append(
        Served(
            arrived=request.at,
            pod=pod,
            prompt_tokens=request.prompt_tokens,
            cached_tokens=cached,
            first_token=(first - due) * speed,
            finished=(time.monotonic() - due) * speed,
        )
    )


async def _stream(
    session: aiohttp.ClientSession,
    address: str,
    request: Prepared,
    policy: Policy,
    choice: PodChoice,
) -> tuple[float, int]:
    """Send a request; return its first token's time, by `time.monotonic`, and its cached tokens.

    Raises UnservedError.
    """
    first = 0.0
    usage = b""
    headers = {"Content-Type": "application/json"}
    url = f"http://{address}/v1/completions"
    try:
        async with session.post(url, data=request.body, headers=headers) as response:
            if response.status != 200:
                problem = f"{response.status}: {await response.text()}"[:300]
                raise UnservedError(problem, elsewhere=response.status >= 500)
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                if not first:
                    first = time.monotonic()
                    await policy.first_token(choice)
                if b'"usage"' in line:
                    usage = line
    except aiohttp.ClientConnectorError as error:
        raise UnservedError(f"{address} cannot be reached", elsewhere=True) from error
    except aiohttp.ClientError as error:
        when = "after" if first else "before"
        problem = f"the answer of {address} broke off {when} its first token"
        raise UnservedError(problem, elsewhere=not first) from error
    if not usage:
        raise UnservedError("the answer ended without its usage", elsewhere=not first)
    details = json.loads(usage[6:])["usage"]["prompt_tokens_details"]
    return first, int(details["cached_tokens"])
