"""Reloading the configuration of a running router: what is taken over, and what is said of the rest."""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import grpc.aio
import pytest

from tests.odd_files import ODD, become, remove
from tests.router.config.test_environment import reloadable_keys
from tests.router.pick_stand import QUIET, pod, prompt
from tests.router.running_router import TRANSPORT, running_router, serving
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc
from warmpath.router.assemble.calls import Calls
from warmpath.router.assemble.index import Indexed
from warmpath.router.assemble.means import Means
from warmpath.router.assemble.picks import Picks
from warmpath.router.config.read import load, parse
from warmpath.router.config.schema import Config
from warmpath.router.processes import share_of
from warmpath.router.reload import Reloader, content_of, differing
from warmpath.scorer.policy import make_policy

MODEL = '[[models]]\nname = "demo"\n'


class Reloaded:
    """A reloader of a file, and what it has applied."""

    def __init__(self, path: Path, text: str = MODEL) -> None:
        path.write_text(text)
        self.path = path
        self.applied: list[Config] = []
        content = partial(content_of, path)
        self.reloader = Reloader(
            load(path), partial(load, path), self._apply, content=content, begun=content()
        )

    async def _apply(self, config: Config) -> None:
        self.applied.append(config)

    async def to(self, text: str) -> None:
        await asyncio.to_thread(self.path.write_text, text)
        await self.reloader.reload()


@pytest.fixture
def router(tmp_path: Path) -> Reloaded:
    return Reloaded(tmp_path / "router.toml")


async def test_keys_that_need_a_restart_are_named_each_time_and_the_others_taken_over(
    router: Reloaded, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    changed = f'[server]\nlisten = "127.0.0.1:1"\n[limits]\ntokenize-seconds = 1\n{MODEL}'
    await router.to(changed)
    [applied] = router.applied
    assert applied.limits.tokenize_seconds == 1
    assert applied.server.listen != "127.0.0.1:1"
    await router.to(changed)
    await router.to(f"[index]\nmax-bytes = 999999999\n{changed}")
    assert router.applied == [applied]
    assert caplog.messages == [
        "the configuration is reloaded: limits.tokenize-seconds",
        "server.listen needs a restart",
        "the configuration is reloaded: nothing to take over",
        "server.listen needs a restart",
        "the configuration is reloaded: nothing to take over",
        "server.listen, index.max-bytes need a restart",
    ]


async def test_keys_that_contradict_those_that_need_a_restart_are_not_taken_over(
    router: Reloaded, caplog: pytest.LogCaptureFixture
) -> None:
    await router.to(
        f'{MODEL}[[models]]\nname = "m2"\n[[pods]]\nid = "a"\nmodel = "m2"\naddress = "h:1"'
    )
    assert not router.applied
    assert "pods[0].model: no model is named 'm2'; known: demo" in caplog.text


class Looks:
    """Waits between looks at a file, each of which a test ends."""

    def __init__(self) -> None:
        self._waits: asyncio.Queue[asyncio.Future[None]] = asyncio.Queue()
        self._wait: asyncio.Future[None] | None = None

    async def sleep(self, seconds: float) -> None:
        assert seconds > 0
        ended = asyncio.get_running_loop().create_future()
        self._waits.put_nowait(ended)
        await ended

    async def look(self) -> None:
        """Let the file be looked at once."""
        if self._wait is None:
            self._wait = await self._waits.get()
        self._wait.set_result(None)
        self._wait = await self._waits.get()


@asynccontextmanager
async def watching(router: Reloaded) -> AsyncIterator[tuple[Looks, asyncio.Event]]:
    """Have its file looked at; the event asks for a reload."""
    looks, asked = Looks(), asyncio.Event()
    task = asyncio.ensure_future(router.reloader.watch(asked, sleep=looks.sleep))
    yield looks, asked
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_file_is_read_when_two_looks_find_the_same_change_by_its_content(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "warmpath.router.reload")
    for name, text in (
        ("first", MODEL),
        ("same", MODEL),
        ("half", f"{MODEL}[limi"),
        ("other", f"[limits]\ntokenize-seconds = 1\n{MODEL}"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "router.toml").write_text(text)
    # As Kubernetes mounts a ConfigMap: a symbolic link above the file is replaced.
    path = tmp_path / "data" / "router.toml"

    def swap(name: str) -> None:
        (tmp_path / "new").symlink_to(name)
        (tmp_path / "new").replace(tmp_path / "data")

    swap("first")
    router = Reloaded(path)
    async with watching(router) as (looks, asked):

        async def settles(*, reloads: bool) -> str:
            caplog.clear()
            await looks.look()
            assert not asked.is_set(), "it may be half written"
            await looks.look()
            assert asked.is_set() is reloads
            if reloads:
                asked.clear()
                await router.reloader.reload()
            for _ in range(3):
                await looks.look()
                assert not asked.is_set(), "each state of the file is read once"
            return "\n".join(caplog.messages)

        assert not await settles(reloads=False)
        swap("same")
        assert not await settles(reloads=False)
        swap("half")
        assert "is not reloaded, nothing has changed: " in await settles(reloads=True)
        assert not router.applied
        swap("half")
        assert not await settles(reloads=False)
        (tmp_path / "data").unlink()
        assert "there is no such file" in await settles(reloads=True)
        swap("other")
        assert (
            await settles(reloads=True) == "the configuration is reloaded: limits.tokenize-seconds"
        )
        assert [one.limits.tokenize_seconds for one in router.applied] == [1]


async def test_a_change_that_a_signal_had_read_is_not_read_again(router: Reloaded) -> None:
    async with watching(router) as (looks, asked):
        await router.to(f"[limits]\ntokenize-seconds = 1\n{MODEL}")
        for _ in range(3):
            await looks.look()
            assert not asked.is_set()


@pytest.mark.parametrize("name", ODD)
def test_what_is_no_file_is_left_alone(tmp_path: Path, name: str) -> None:
    become(tmp_path / "file", name)
    assert content_of(tmp_path / "file") is None


CHANGED = """
[server]
ready = []
ready-coverage = 0.75
[limits]
tokenize-seconds = 1.5
max-in-flight-bytes = 99999999
[pick]
queue = "on"
policy = "weighted"
options = { kv = 0.5 }
[queue]
hold-seconds = 0.1
prefill-times = 3
passed-seconds = 4
wait-seconds = 5
cold-start-seconds = 7
max-requests = 6
max-bytes = 777777
classes = ["one", "two"]
usual-class = "two"
objectives = { batch = "one" }
shares = { a = 3.0 }
"""


class ReloadableParts(NamedTuple):
    """The parts of a running router that take other settings."""

    means: Means
    indexed: Indexed
    chosen: Picks
    made: Calls


def queue(parts: ReloadableParts) -> Any:
    return parts.made.service.picks.held.queue  # type: ignore[union-attr]


def classes(parts: ReloadableParts) -> Any:
    return parts.made.service.picks.held.classes  # type: ignore[union-attr]


REACHED: dict[str, tuple[object, Callable[[ReloadableParts], object]]] = {
    "pods": (["new"], lambda parts: [one.id for one in parts.indexed.pods]),
    "server.ready": (False, lambda parts: parts.means.readiness.requires("pods")),
    "server.ready-coverage": (0.75, lambda parts: parts.means.readiness._looks["coverage"].args[2]),  # type: ignore[attr-defined]
    "limits.tokenize-seconds": ((1.5, 1.5), lambda parts: (parts.made.service.tokenize_seconds, parts.made.endpoint_picker.picks.tokenize_seconds)),
    "limits.max-in-flight-bytes": (99999999, lambda parts: parts.made.service.intake.calls.limit),
    "pick.policy": ("weighted", lambda parts: parts.chosen.picking.picker._weigher._usual),
    "pick.options": (make_policy("weighted", {"kv": 0.5}), lambda parts: parts.chosen.picking.picker._weigher._policies["weighted"][0]),
    "queue.hold-seconds": (0.1, lambda parts: queue(parts)._settings.hold_seconds),
    "queue.prefill-times": ((3.0, 3.0), lambda parts: (parts.chosen.picking.picker.precedence.times, queue(parts)._precedence.times)),
    "queue.passed-seconds": ((4.0, 4.0), lambda parts: (parts.chosen.picking.picker.precedence.most_seconds, queue(parts)._precedence.most_seconds)),
    "queue.wait-seconds": (5.0, lambda parts: queue(parts)._settings.wait_seconds),
    "queue.cold-start-seconds": (7.0, lambda parts: parts.made.service.picks.cold_starts.seconds),  # type: ignore[union-attr]
    "queue.max-requests": (6, lambda parts: queue(parts)._settings.max_requests),
    "queue.max-bytes": (777777, lambda parts: queue(parts)._settings.max_bytes),
    "queue.classes": (("one", "two"), lambda parts: classes(parts).names),
    "queue.usual-class": (1, lambda parts: classes(parts).place("")),
    "queue.objectives": ({"batch": "one"}, lambda parts: classes(parts).of_objectives),
    "queue.shares": ({"a": 3.0}, lambda parts: queue(parts)._order._weights),
}  # fmt: skip


async def test_every_reloadable_key_reaches_its_part(tmp_path: Path) -> None:
    assert set(REACHED) == set(reloadable_keys())
    before = f'[pick]\nqueue = "on"\n{MODEL}{QUIET}{pod("old")}'
    async with running_router(tmp_path, before) as (router, _):
        parts = ReloadableParts(*router.reload.args)  # type: ignore[attr-defined]
        await router.reload(parse(f"{CHANGED}{MODEL}{pod('new')}", "file"))
        for key, (expected, look) in REACHED.items():
            assert look(parts) == expected, key


def file_of(*pods: str, listen: str = "127.0.0.1:0", more: str = "") -> str:
    return (
        f'[server]\nlisten = "{listen}"\nmetrics-listen = ""\ntransport = "{TRANSPORT}"\n'
        f"drain-delay-seconds = 0.2\ndrain-seconds = 5\n{more}{QUIET}{MODEL}"
        + "".join(map(pod, pods))
    )


async def test_sighup_reloads_and_sigterm_ends_step_by_step(tmp_path: Path) -> None:
    async with serving(tmp_path / "router.toml", file_of("a")) as router:
        async with grpc.aio.insecure_channel(router.address) as channel:
            stub = router_pb2_grpc.RouterStub(channel)

            async def pods() -> list[str]:
                reply = await stub.ListPods(pb.ListPodsRequest(), timeout=30)
                return sorted(one.id for one in reply.pods)

            assert await pods() == ["a"]
            await router.reload(file_of("b", "c", listen="127.0.0.1:1"))
            assert await router.said("the configuration is reloaded: pods$")
            assert await router.said("server.listen needs a restart$")
            assert await pods() == ["b", "c"]
            await router.reload(file_of("b", "b"))
            assert "pods[1].id: 'b' is taken" in await router.said(
                "is not reloaded, nothing has changed: "
            )
            assert await pods() == ["b", "c"]
            router.process.send_signal(signal.SIGTERM)
            assert await router.said(
                "it is not ready from now on; calls are answered for 0.2 s more"
            )
            assert await router.said("new calls are refused; GOAWAY on [01] connections")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.Score(pb.ScoreRequest(prompt=prompt(50)), timeout=30)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert await router.said("; 0 calls and 0 streams are cut off")
        assert await router.process.wait() == 0


async def test_a_file_that_is_none_for_a_while_is_read_again_and_the_process_ends(
    tmp_path: Path,
) -> None:
    file, more = tmp_path / "router.toml", tmp_path / "pods.toml"
    more.write_text(pod("a"))
    listed = 'pods-file = "pods.toml"\n'
    async with serving(file, listed + file_of("b")) as router:
        for name in ("pipe", "endless"):
            said = become(more, name)
            assert said in await router.said("pods-file .*; the pods stay as they were")
            said = become(file, name)
            assert said in await router.said("is not reloaded, nothing has changed: ")
            router.process.send_signal(signal.SIGHUP)
            assert said in await router.said("is not reloaded, nothing has changed: ")
            remove(more)
            more.write_text(pod("a"))
            remove(file)
            await router.reload(listed + file_of("b", name))
            assert await router.said("the configuration is reloaded: pods$")
        become(file, "pipe")
        become(more, "pipe")
        assert await router.said("is not reloaded, nothing has changed: ")
        router.process.send_signal(signal.SIGTERM)
        assert await router.process.wait() == 0


@pytest.mark.deep
async def test_sighup_and_a_changed_file_reach_all_processes(
    tmp_path: Path, held_port: int
) -> None:
    listen = f"127.0.0.1:{held_port}"
    text = file_of("a", listen=listen, more="processes = 2\n")
    async with serving(tmp_path / "router.toml", text) as router:
        await router.reload(text + pod("b"))
        lines = [await router.said("the configuration is reloaded: pods$") for _ in range(2)]
        assert {line[: line.index("]") + 1].split()[-1] for line in lines} == {"[0]", "[1]"}
        # Each also notices a change of the file by itself.
        router.file.write_text(text)
        lines = [await router.said("the configuration is reloaded: pods$") for _ in range(2)]
        assert {line[: line.index("]") + 1].split()[-1] for line in lines} == {"[0]", "[1]"}
        router.process.send_signal(signal.SIGTERM)
        assert await router.process.wait() == 0


def test_a_process_can_read_a_file_that_has_fewer_processes_by_now() -> None:
    several = f'[server]\nprocesses = 4\nlisten = "127.0.0.1:7"\n[index]\nstate-file = "s"\n{MODEL}'
    before = share_of(parse(several, "file"), 3)
    after = share_of(parse(several.replace("processes = 4", "processes = 1"), "file"), 3)
    assert dict(differing(before, after)) == {"server.processes": False}
