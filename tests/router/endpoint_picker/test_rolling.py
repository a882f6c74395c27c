"""Ten thousand requests through Envoy while routers are rolled and a pod is killed: none fails."""

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from router.commands.local.held_ports import HOST, HeldPorts
from tests.router.endpoint_picker.behind_envoy import (
    FAIL_CLOSE,
    Change,
    Front,
    config,
    front,
    full_duplex,
)
from tests.router.pick_stand import pod, until

REQUESTS = 10_000
CLIENTS = 32


class Process:
    """A process that a test ends and starts again, by its own id."""

    def __init__(self, folder: Path, name: str, *command: str) -> None:
        self._command = command
        self._log = folder / f"{name}.log"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", *self._command, stdout=log, stderr=log, env=os.environ
            )

    async def end(self, how: signal.Signals) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(how)
        await self._process.wait()

    async def roll(self, how: signal.Signals) -> None:
        await self.end(how)
        await self.start()


@asynccontextmanager
async def running(*processes: Process) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for one in processes:
            await one.start()
            stack.push_async_callback(one.end, signal.SIGTERM)
        yield


async def answers(url: str, status: int) -> bool:
    async with aiohttp.ClientSession() as http:
        try:
            async with http.get(url) as response:
                return response.status == status
        except aiohttp.ClientError:
            return False


class Callers:
    """Clients that send requests one after the other; each has a few prompts of its own."""

    def __init__(self, envoy: Front) -> None:
        self._envoy = envoy
        self.begun = 0
        self.ended = 0
        self.outcomes: Counter[str] = Counter()
        self.pods: Counter[str] = Counter()

    async def run(self) -> None:
        await asyncio.gather(*(self._call(number) for number in range(CLIENTS)))

    async def _call(self, number: int) -> None:
        turn = 0
        while self.begun < REQUESTS:
            self.begun += 1
            turn += 1
            first = 1000 * number + 10 * (turn % 7)
            body = {"model": "demo", "prompt": [*range(first, first + 100)], "max_tokens": 2}
            body["prompt"] = [token % 2000 for token in body["prompt"]]
            try:
                answer = await self._envoy.post(body)
            except aiohttp.ClientError as error:
                self.outcomes[type(error).__name__] += 1
            else:
                reason = answer.headers.get("x-warmpath-reason", "")
                self.outcomes[f"{answer.status} {reason}".strip()] += 1
                self.pods[answer.pod] += 1
                if answer.status == 200:
                    assert json.loads(answer.body)["usage"]["completion_tokens"] == 2
            self.ended += 1

    async def until(self, share: float) -> None:
        """Wait until a share of all requests have ended."""

        async def is_over() -> bool:
            return self.ended >= share * REQUESTS

        await until(is_over)


@pytest.mark.deep
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("changes", [[], full_duplex()], ids=["buffered", "full-duplex"])
async def test_no_request_fails_while_routers_are_rolled_and_a_pod_is_killed(
    tmp_path: Path, held_ports: HeldPorts, changes: list[Change]
) -> None:
    ports = [held_ports.take() for _ in range(13)]
    workers, tables = [], "[probe]\ninterval-seconds = 0.5\n"
    for number in range(3):
        http, events, replay = ports[3 * number : 3 * number + 3]
        workers.append(
            Process(
                tmp_path, f"pod-{number}", "simworker", "--model=demo", f"--listen={HOST}:{http}",
                f"--events-endpoint=tcp://{HOST}:{events}", f"--replay-endpoint=tcp://{HOST}:{replay}",
                "--blocks=2000", "--block-size=16", "--vocab-size=2048", "--speed=1000", "--topic=",
            )
        )  # fmt: skip
        tables += pod(
            f"pod-{number}", f"{HOST}:{http}", events=f"tcp://{HOST}:{events}",
            replay=f"tcp://{HOST}:{replay}",
        )  # fmt: skip
    routers, addresses, health = [], [], []
    for number in range(2):
        listen, metrics = ports[9 + 2 * number : 11 + 2 * number]
        file = tmp_path / f"router-{number}.toml"
        file.write_text(
            f'[server]\nlisten = "{HOST}:{listen}"\nmetrics-listen = "{HOST}:{metrics}"\n'
            f'[[models]]\nname = "demo"\n{tables}'
        )
        routers.append(
            Process(tmp_path, f"router-{number}", "router", "serve", "--config", str(file))
        )
        addresses.append(f"{HOST}:{listen}")
        health.append(f"http://{HOST}:{metrics}/readyz")
    engines = [f"{HOST}:{ports[3 * number]}" for number in range(3)]
    text = config(addresses, engines, [*changes, FAIL_CLOSE])
    async with running(*workers, *routers):
        for url in health:
            await until(lambda url=url: answers(url, 200))  # type: ignore[misc]
        async with front(text) as envoy:
            await envoy.until_routers_are_asked()
            callers = Callers(envoy)
            calling = asyncio.create_task(callers.run())
            for at, router in enumerate((*routers, *routers)):
                await callers.until(0.1 + 0.2 * at)
                await router.roll(signal.SIGTERM)
                await until(lambda at=at: answers(health[at % 2], 200))  # type: ignore[misc]
                if at == 1:
                    await workers[0].roll(signal.SIGKILL)
            await calling
    assert callers.outcomes == {"200": REQUESTS}
    assert set(callers.pods) == {"pod-0", "pod-1", "pod-2"}
