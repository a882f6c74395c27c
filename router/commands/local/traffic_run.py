"""Sends recorded traffic to a cluster, open loop: requests go out when they are due."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import aiohttp

from router.commands.local.cluster import MODEL
from router.commands.local.measure import Served
from router.commands.local.policies import PodChoice, Policy
from router.commands.local.workload import Arrival


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request, encoded before the clock starts."""

    at: float
    """Modelled seconds from the start."""
    packed: bytes
    """The prompt's token ids, packed as for Pick."""
    body: bytes
    """The completions body (JSON)."""
    prompt_tokens: int


@dataclass(slots=True)
class TrafficRun:
    """One run of recorded traffic: its outcome so far."""

    served: list[Served] = field(default_factory=list)
    failed: int = 0
    problem: str = ""
    """The error of the last failed request."""
    late: list[float] = field(default_factory=list)
    """The delay with which each request was sent, in modelled seconds."""
    choices: list[float] = field(default_factory=list)
    """The duration of each choice, in wall-clock seconds."""


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
            result.late.append((time.monotonic() - due) * speed)
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
    result.choices.append(time.monotonic() - asked)
    cached: int | None = None
    try:
        first, cached = await _stream(session, addresses[choice.pod], request, policy, choice)
    except aiohttp.ClientError as error:
        result.failed += 1
        result.problem = str(error)
    finally:
        await policy.finished(choice, cached)
    if cached is not None:
        result.served.append(
            Served(
                arrived=request.at,
                pod=choice.pod,
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
    """Send a request; return the time of its first token and the number of cached tokens."""
    first = 0.0
    usage = b""
    headers = {"Content-Type": "application/json"}
    url = f"http://{address}/v1/completions"
    async with session.post(url, data=request.body, headers=headers) as response:
        if response.status != 200:
            raise aiohttp.ClientPayloadError(f"{response.status}: {await response.text()}"[:300])
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            if not first:
                first = time.monotonic()
                await policy.first_token(choice)
            if b'"usage"' in line:
                usage = line
    if not usage:
        raise aiohttp.ClientPayloadError("the answer ended without its usage")
    details = json.loads(usage[6:])["usage"]["prompt_tokens_details"]
    return first, int(details["cached_tokens"])
