"""Routers and publishers of the last release and of this version, on one Redis and over gRPC."""

import asyncio
import io
import os
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import grpc.aio
import pytest

from tests.publisher.published_pod import FULL, IDS, Asker, Pod
from tests.servers.redis_server import RedisServer
from warmpath.cli.child import START_SECONDS, ChildError, Process
from warmpath.lab.local.cluster import MODEL
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb

pytestmark = [pytest.mark.deep, pytest.mark.timeout(900)]

LEASE = ("--redis-lease-seconds=2",)
ROOT = Path(__file__).parents[2]
OLDER = "WARMPATH_OLDER"
"""The environment variable with a commit or tag to take for the last release."""
COMPILES = "from warmpath.indexer.embedded import warm_up_compiled; warm_up_compiled()"
"""Takes minutes; then the older version's processes start at once."""


def git(*words: str) -> bytes:
    """Return what git prints, nothing where it fails."""
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, check=False)
    return done.stdout if done.returncode == 0 else b""


def unpacked(folder: Path) -> Path:
    """Return a folder with the sources of the last release; skips the test where there are none."""
    tags = git("tag", "--list", "v*", "--sort=-version:refname", "--merged", "HEAD").split()
    older = os.environ.get(OLDER) or (tags[0].decode() if tags else "")
    if not older:
        pytest.skip(f"this clone has no tag of a release; {OLDER} names a commit to take for one")
    packed = git("archive", "--format=tar", older)
    assert packed, f"git has no {older}"
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    where = f"{COMPILES}; "
    where += "from warmpath import publisher, router; print(publisher.__file__, router.__file__)"
    told = subprocess.run(
        [sys.executable, "-c", where],
        cwd=folder,
        env=_environment(folder),
        capture_output=True,
        text=True,
        check=True,
    )
    assert [Path(one).parents[2] for one in told.stdout.split()] == [folder, folder]
    return folder


def _environment(folder: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(folder)}


class Older(Process):
    """A process of the last release."""

    def __init__(self, name: str, log: Path, sources: Path) -> None:
        super().__init__(name, log)
        self._sources = sources

    async def start(self, *args: str) -> str:
        """Start `python -m ARGS` and return the first line it prints."""
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", *args,
                cwd=self._sources,
                env=_environment(self._sources),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )  # fmt: skip
        assert self._process.stdout is not None
        async with asyncio.timeout(START_SECONDS):
            line = await self._process.stdout.readline()
        if not line:
            raise ChildError(f"{self.name} ended while starting: {self._log.read_text()[-2000:]}")
        return line.decode()


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
