"""Ten thousand requests through Envoy while everything around them is rolled, killed or changed: none fails."""

import asyncio
import json
import os
import signal
import socket
import ssl
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cryptography import x509

from tests.router.endpoint_picker.behind_envoy import (
    FAIL_CLOSE,
    PATIENT,
    Change,
    Front,
    config,
    front,
    full_duplex,
    secured,
)
from tests.router.pick_stand import pod
from tests.servers.certificates import Authority, Certificate
from tests.servers.redis_server import RedisServer
from tests.waiting import until
from warmpath.lab.local.ports import HOST, HeldPorts

REQUESTS = 10_000
CLIENTS = 32
PODS = 3
BOTH_MODES = pytest.mark.parametrize(
    "changes", [[], full_duplex()], ids=["buffered", "full-duplex"]
)


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


class Pod:
    def __init__(self, folder: Path, name: str, ports: HeldPorts) -> None:
        self.name = name
        self.address = f"{HOST}:{ports.take()}"
        self.events, self.replay = (f"tcp://{HOST}:{ports.take()}" for _ in range(2))
        self.process = Process(
            folder, name, "warmpath.lab.simworker", "--model=demo", f"--listen={self.address}",
            f"--events-endpoint={self.events}", f"--replay-endpoint={self.replay}", "--topic=",
            "--blocks=2000", "--block-size=16", "--vocab-size=2048", "--speed=1000",
        )  # fmt: skip


@asynccontextmanager
async def running(*processes: Process) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for one in processes:
            await one.start()
            stack.push_async_callback(one.end, signal.SIGTERM)
        yield


async def answers(url: str, status: int, tls: ssl.SSLContext | None = None) -> bool:
    async with aiohttp.ClientSession() as http:
        try:
            async with http.get(url, ssl=tls or True) as response:
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
        while self.ended < share * REQUESTS:
            await asyncio.sleep(0.01)


@pytest.mark.deep
@pytest.mark.timeout(1200)
@BOTH_MODES
async def test_no_request_fails_while_routers_are_rolled_and_a_pod_is_killed(
    tmp_path: Path, held_ports: HeldPorts, changes: list[Change]
) -> None:
    pods = [Pod(tmp_path, f"pod-{number}", held_ports) for number in range(PODS)]
    tables = "[probe]\ninterval-seconds = 0.5\n" + "".join(
        pod(one.name, one.address, events=one.events, replay=one.replay) for one in pods
    )
    routers, addresses, health = [], [], []
    for number in range(2):
        listen, metrics = (f"{HOST}:{held_ports.take()}" for _ in range(2))
        file = tmp_path / f"router-{number}.toml"
        file.write_text(
            f'[server]\nlisten = "{listen}"\nmetrics-listen = "{metrics}"\n'
            f'[endpoint-picker]\npick-seconds = 60\n[[models]]\nname = "demo"\n{tables}'
        )
        routers.append(
            Process(tmp_path, f"router-{number}", "warmpath.cli", "serve", "--config", str(file))
        )
        addresses.append(listen)
        health.append(f"http://{metrics}/readyz")
    text = config(addresses, [one.address for one in pods], [*changes, FAIL_CLOSE, *PATIENT])
    async with running(*(one.process for one in pods), *routers):
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
                await until(lambda: envoy.finds_well(2))
                if at == 1:
                    await pods[0].process.roll(signal.SIGKILL)
            await calling
    assert callers.outcomes == {"200": REQUESTS}
    assert set(callers.pods) == {one.name for one in pods}


class Router:
    """A router's process with TLS, which reads the shared index for each pick."""

    def __init__(self, folder: Path, name: str, ports: HeldPorts, authority: Authority) -> None:
        self.port = ports.take()
        self.files = authority.certificate(name)
        self._metrics = f"https://{HOST}:{ports.take()}"
        self._config = folder / f"{name}.toml"
        self.process = Process(folder, name, "warmpath.cli", "serve", "--config", str(self._config))
        self._client = ssl.create_default_context(cafile=authority.ca)
        own = authority.certificate("test", "test.example")
        self._client.load_cert_chain(own.cert, own.key)
        self._ca = authority.ca

    def configure(self, redis: str, pods: list[str]) -> None:
        tables = "".join(
            f'[[pods]]\nid = "pod-{number}"\nmodel = "demo"\naddress = "{address}"\n'
            for number, address in enumerate(pods)
        )
        self._config.write_text(
            f'[server]\nlisten = "{HOST}:{self.port}"\n'
            f'metrics-listen = "{self._metrics.removeprefix("https://")}"\n'
            f'[server.tls]\ncert = "{self.files.cert}"\nkey = "{self.files.key}"\n'
            f'client-ca = "{self._ca}"\n'
            '[[clients]]\nname = "gateway"\nroles = ["score"]\ncertificate = "gateway.example"\n'
            '[[clients]]\nname = "test"\nroles = ["read"]\ncertificate = "test.example"\n'
            f'[shared-index]\nurl = "{redis}"\nmode = "shared"\nshare-bookings = true\n'
            # The machine may be busy, and a router that has just started is slow.
            "[endpoint-picker]\npick-seconds = 60\n"
            f'[probe]\ninterval-seconds = 0.5\n[[models]]\nname = "demo"\n{tables}'
        )

    async def is_ready(self) -> bool:
        return await answers(f"{self._metrics}/readyz", 200, self._client)

    async def metric(self, name: str) -> float:
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"{self._metrics}/metrics", ssl=self._client) as response,
        ):
            lines = (await response.text()).splitlines()
        return float(next(one for one in lines if one.startswith(f"{name} ")).rpartition(" ")[2])

    async def has_redis(self) -> bool:
        return bool(await self.metric("warmpath_shared_bookings_connected"))

    async def lacks_redis(self) -> bool:
        return not await self.has_redis()

    async def shows(self, serial: int) -> bool:
        """Whether a newcomer sees the certificate with this serial number."""

        def shown() -> int:
            with (
                socket.create_connection((HOST, self.port)) as plain,
                self._client.wrap_socket(plain, server_hostname=HOST) as secure,
            ):
                found = secure.getpeercert()
            assert found
            return int(str(found["serialNumber"]), 16)

        return await asyncio.to_thread(shown) == serial


def replaced(old: Certificate, new: Certificate) -> int:
    """Move a certificate over another; return its serial number."""
    serial = x509.load_pem_x509_certificate(new.cert.read_bytes()).serial_number
    new.cert.replace(old.cert)
    new.key.replace(old.key)
    return serial


async def has_certificate(envoy: Front, serial: int) -> bool:
    """Whether new connections of Envoy show the certificate with this serial number."""
    found: Any = await asyncio.to_thread(envoy.envoy.asked, "/certs")
    chains = [one for pair in found["certificates"] for one in pair.get("cert_chain", ())]
    return serial in {int(one["serial_number"], 16) for one in chains}


@pytest.mark.deep
@pytest.mark.timeout(1800)
@BOTH_MODES
async def test_no_request_fails_while_redis_restarts_and_certificates_are_rotated(
    tmp_path: Path, held_ports: HeldPorts, changes: list[Change]
) -> None:
    authority = Authority(tmp_path)
    (tmp_path / "ca.pem").write_bytes(authority.ca.read_bytes())
    own = authority.certificate("gateway", "gateway.example")
    pods = [Pod(tmp_path, f"pod-{number}", held_ports) for number in range(PODS)]
    addresses = [one.address for one in pods]
    routers = [Router(tmp_path, f"router-{at}", held_ports, authority) for at in range(2)]
    with RedisServer() as redis:
        publishers = [
            Process(
                tmp_path, f"publisher-{number}", "warmpath.publisher.main", f"--pod={one.name}",
                "--model=demo", f"--events={one.events}", f"--replay={one.replay}",
                f"--listen={HOST}:0", "--metrics-listen=", f"--redis={redis.url}",
            )
            for number, one in enumerate(pods)
        ]  # fmt: skip
        for router in routers:
            router.configure(redis.url, addresses)
        text = config(
            [f"{HOST}:{router.port}" for router in routers],
            addresses,
            [*changes, FAIL_CLOSE, *PATIENT],
        )
        async with running(
            *(one.process for one in pods), *publishers, *(router.process for router in routers)
        ):
            for router in routers:
                await until(router.is_ready)
                await until(router.has_redis)
            async with front(secured(text, tmp_path)) as envoy:
                await envoy.until_routers_are_asked()
                callers = Callers(envoy)
                calling = asyncio.create_task(callers.run())

                await callers.until(0.1)
                redis.kill()
                for router in routers:
                    await until(router.lacks_redis)
                await callers.until(0.25)
                redis.restart()
                for router in routers:
                    await until(router.has_redis)
                assert redis.ask("DBSIZE"), "publishers and routers write anew"

                await callers.until(0.4)
                for at, router in enumerate(routers):
                    new = authority.certificate(f"new-{at}")
                    serial = replaced(router.files, new)
                    await until(lambda router=router, serial=serial: router.shows(serial))  # type: ignore[misc]
                serial = replaced(own, authority.certificate("new", "gateway.example"))
                await until(lambda: has_certificate(envoy, serial))

                # New connections are made with the new certificates.
                for at, router in enumerate(routers):
                    await callers.until(0.55 + 0.15 * at)
                    await router.process.roll(signal.SIGTERM)
                    await until(router.is_ready)
                    await until(lambda: envoy.finds_well(2))
                await pods[0].process.roll(signal.SIGKILL)
                await callers.until(0.85)
                redis.stop()
                redis.restart()
                await calling
    assert callers.outcomes == {"200": REQUESTS}
    assert set(callers.pods) == {one.name for one in pods}
