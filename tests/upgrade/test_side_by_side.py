"""Routers and publishers of the last release and of this version, on one Redis and over gRPC."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import grpc.aio
import pytest

from tests.publisher.published_pod import FULL, IDS, Asker, Pod
from tests.servers.redis_server import RedisServer
from tests.upgrade.older import Older, unpacked
from warmpath.lab.local.cluster import MODEL, Process
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb

pytestmark = [pytest.mark.deep, pytest.mark.timeout(900)]

LEASE = ("--redis-lease-seconds=2",)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(tmp_path_factory.mktemp("older"))


class Stand:
    """Two pods, one for a publisher of each version, and whatever routers a test starts."""

    def __init__(self, folder: Path, sources: Path, stack: AsyncExitStack) -> None:
        self._folder = folder
        self._sources = sources
        self._stack = stack
        self.pods: dict[str, Pod] = {}

    async def pod(self, name: str, *options: str, older: bool) -> Pod:
        """Start a pod and its publisher."""
        folder = self._folder / name
        folder.mkdir()
        pod = await self._stack.enter_async_context(Pod(folder))
        self.pods[name] = pod
        await self.publish(name, *options, older=older)
        await pod.generate(IDS)
        return pod

    async def publish(self, name: str, *options: str, older: bool) -> None:
        """Start a pod's publisher, of either version."""
        pod, log = self.pods[name], self._folder / name / "publisher.log"
        await pod.publisher.stop()
        if older:
            pod.publisher = Older("publisher", log, self._sources)
        else:
            pod.publisher = Process("publisher", log)
        await pod.publish(f"--pod={name}", *options)

    async def router(self, name: str, more: str, *, older: bool, watch: bool = False) -> Asker:
        """Start a router that follows both pods."""
        config = self._folder / f"{name}.toml"
        text = (
            '[server]\nlisten = "127.0.0.1:0"\nmetrics-listen = ""\n'
            f'[[models]]\nname = "{MODEL}"\n{more}'
        )
        for pod_id, pod in self.pods.items():
            text += (
                f'[[pods]]\nid = "{pod_id}"\nmodel = "{MODEL}"\naddress = "{pod.worker.address}"\n'
            )
            text += f'watch = "{pod.address}"\n' if watch else ""
        config.write_text(text)
        log = self._folder / f"{name}.log"
        process = Older(name, log, self._sources) if older else Process(name, log)
        self._stack.push_async_callback(process.stop)
        line = await process.start("warmpath.cli", "serve", f"--config={config}")
        address = line.split(" gRPC on ")[1].split(",")[0].strip()
        channel = grpc.aio.insecure_channel(address)
        await self._stack.enter_async_context(channel)
        return Asker(channel)


@pytest.fixture
async def stand(tmp_path: Path, sources: Path) -> AsyncIterator[Stand]:
    async with AsyncExitStack() as stack:
        yield Stand(tmp_path, sources, stack)


async def all_is_known(asker: Asker, pods: int = 2) -> None:
    """Wait until a router has found the prompt on every pod and believes it."""
    async with asyncio.timeout(240):
        while True:
            scores = (await asker.scores()).scores
            if [(one.matched_tokens, one.trust.level) for one in scores] == pods * [
                (FULL, pb.Trust.EXACT)
            ]:
                return
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("mode", ["replica", "shared"])
async def test_routers_of_both_versions_agree_on_one_redis_with_publishers_of_both(
    stand: Stand, redis_server: RedisServer, prefix: str, mode: str
) -> None:
    options = (f"--redis={redis_server.url}", f"--redis-prefix={prefix}", *LEASE)
    await stand.pod("older", *options, older=True)
    await stand.pod("newer", *options, older=False)
    index = (
        f'[shared-index]\nurl = "{redis_server.url}"\nprefix = "{prefix}"\nmode = "{mode}"\n'
        "deadline-seconds = 5.0\nshare-bookings = true\n"
    )
    routers = [
        await stand.router("older-router", index, older=True),
        await stand.router("newer-router", index, older=False),
    ]
    for router in routers:
        await all_is_known(router)
    # An update of one publisher, and the way back of the other.
    await stand.publish("older", *options, older=False)
    await stand.publish("newer", *options, older=True)
    for router in routers:
        await all_is_known(router)


async def test_routers_of_both_versions_watch_publishers_of_both(stand: Stand) -> None:
    await stand.pod("older", older=True)
    await stand.pod("newer", older=False)
    for older in (True, False):
        await all_is_known(await stand.router(f"router-{older}", "", older=older, watch=True))
