"""Sends recorded traffic to a cluster in real time, as a closed loop says.

A session's next request follows the answer before it; a chat's request comes at its own time.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Sequence
from math import inf

import aiohttp

from warmpath.lab.demo.traffic import Prepared
from warmpath.lab.local.choices import Chooser, PodChoice
from warmpath.lab.local.measure import Served, TrafficRun
from warmpath.lab.simulate.closed_loop import ClosedLoop, Due


class UnservedError(Exception):
    """A pod failed to serve a request."""

    def __init__(self, problem: str, *, elsewhere: bool) -> None:
        """`elsewhere` says whether another pod may serve it: no token has come."""
        super().__init__(problem)
        self.elsewhere = elsewhere


async def run_traffic(
    loop: ClosedLoop,
    requests: Sequence[Prepared],
    chooser: Chooser,
    addresses: Sequence[str],
    *,
    speed: float,
    progress: Callable[[TrafficRun], None],
    until: float = inf,
) -> TrafficRun:
    """Send the loop's requests, which are also in `requests`, when they are due; wait for all answers.

    None is sent that is due after `until`, in modelled seconds.
    """
    result = TrafficRun()
    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        aiohttp.ClientSession(timeout=timeout, connector=connector) as session,
        asyncio.TaskGroup() as tasks,
    ):
        begun = time.monotonic()

        async def one(at: float, number: int) -> None:
            due = begun + at / speed
            await asyncio.sleep(due - time.monotonic())
            send(loop.sent(number, at))
            await _serve(
                session, requests[number], chooser, addresses, begun=begun, due=due, speed=speed,
                result=result,
            )  # fmt: skip
            send(loop.ended(number, (time.monotonic() - begun) * speed))
            progress(result)

        def send(dues: Iterable[Due]) -> None:
            for due in dues:
                if due.at <= until:
                    tasks.create_task(one(*due))

        send(loop.begin(0.0))
    return result


async def _serve(
    session: aiohttp.ClientSession,
    request: Prepared,
    chooser: Chooser,
    addresses: Sequence[str],
    *,
    begun: float,
    due: float,
    speed: float,
    result: TrafficRun,
) -> None:
    asked = time.monotonic()
    choice = await chooser.choose(request.packed)
    chosen = time.monotonic()
    pod = choice.pods[0]
    cached: int | None = None
    problem = ""
    try:
        for tried, pod in enumerate(choice.pods):
            if tried:
                await chooser.fell_back(choice, pod)
            try:
                first, cached = await _stream(session, addresses[pod], request, chooser, choice)
                break
            except UnservedError as error:
                problem = str(error)
                if not error.elsewhere:
                    break
        result.fell_back += tried > 0
    finally:
        await chooser.finished(choice, cached)
    if cached is None:
        result.failed += 1
        result.problem = problem
        return
    result.served.append(
        Served(
            session=request.session,
            arrived=(due - begun) * speed,
            pod=pod,
            prompt_tokens=request.prompt_tokens,
            cached_tokens=cached,
            delay=(chosen - due) * speed,
            first_token=(first - due) * speed,
            finished=(time.monotonic() - due) * speed,
            choice=chosen - asked,
        )
    )


async def _stream(
    session: aiohttp.ClientSession,
    address: str,
    request: Prepared,
    chooser: Chooser,
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
                    await chooser.first_token(choice)
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
