"""Ten thousand requests through Envoy while everything around the routers changes: none fails."""

import asyncio
import signal
import socket
import ssl
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
from tests.router.endpoint_picker.rolled import REQUESTS, Callers, Process, answers, running
from tests.router.pick_stand import until
from tests.servers.certificates import Authority, Certificate
from tests.servers.redis_server import RedisServer
from warmpath.lab.local.ports import HOST, HeldPorts

PODS = 3


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
@pytest.mark.parametrize("changes", [[], full_duplex()], ids=["buffered", "full-duplex"])
async def test_no_request_fails_while_redis_restarts_and_certificates_are_rotated(
    tmp_path: Path, held_ports: HeldPorts, changes: list[Change]
) -> None:
    authority = Authority(tmp_path)
    (tmp_path / "ca.pem").write_bytes(authority.ca.read_bytes())
    own = authority.certificate("gateway", "gateway.example")
    addresses = [f"{HOST}:{held_ports.take()}" for _ in range(PODS)]
    routers = [Router(tmp_path, f"router-{at}", held_ports, authority) for at in range(2)]
    with RedisServer() as redis:
        workers, publishers = [], []
        for number, address in enumerate(addresses):
            events, replay = (f"tcp://{HOST}:{held_ports.take()}" for _ in range(2))
            workers.append(
                Process(
                    tmp_path, f"pod-{number}", "warmpath.lab.simworker", "--model=demo", f"--listen={address}",
                    f"--events-endpoint={events}", f"--replay-endpoint={replay}", "--topic=",
                    "--blocks=2000", "--block-size=16", "--vocab-size=2048", "--speed=1000",
                )
            )  # fmt: skip
            publishers.append(
                Process(
                    tmp_path, f"publisher-{number}", "warmpath.publisher.main", f"--pod=pod-{number}",
                    "--model=demo", f"--events={events}", f"--replay={replay}",
                    f"--listen={HOST}:0", "--metrics-listen=", f"--redis={redis.url}",
                )
            )  # fmt: skip
        for router in routers:
            router.configure(redis.url, addresses)
        text = config(
            [f"{HOST}:{router.port}" for router in routers],
            addresses,
            [*changes, FAIL_CLOSE, *PATIENT],
        )
        async with running(*workers, *publishers, *(router.process for router in routers)):
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
                await workers[0].roll(signal.SIGKILL)
                await callers.until(0.85)
                redis.stop()
                redis.restart()
                await calling
    assert callers.outcomes == {"200": REQUESTS}
    assert set(callers.pods) == {f"pod-{number}" for number in range(PODS)}
