"""Processes that benchmarks measure: publishers of events, the router, the peer's indexer."""

import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

import grpc
import msgspec
from google.protobuf.message import Message

from warmpath.lab.bench import peer
from warmpath.lab.bench.stand import words
from warmpath.lab.bench.stand.made_up_fleet import BLOCK_SIZE, MODEL, VOCAB_SIZE
from warmpath.lab.local.ports import HeldPorts
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc
from warmpath.router.config.schema import Config, ModelSpec, PodSpec, ProbeTable, ServerTable
from warmpath.router.config.write import as_toml

WAIT_SECONDS = 120.0


def until(holds: Callable[[], bool], what: str, pause: float = 0.01) -> None:
    """Wait until `holds` returns true; `what` names the awaited condition in the TimeoutError."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(pause)


class Python:
    """A child process `python -m …`. A context manager."""

    def __init__(self, *args: str, log: Path) -> None:
        self._args = args
        self._log = log

    def __enter__(self) -> Self:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(  # noqa: S603  ourselves
                (sys.executable, "-m", *self._args),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        return self

    def hear(self) -> str:
        """Return the next line that the process prints."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._args[0]} ended; its log: {self._log.read_text()[-2000:]}")
        return line

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.communicate()


GRPC = ("-H", "content-type: application/grpc", "-H", "te: trailers")
JSON = ("--h1", "-H", "content-type: application/json")


class Load(NamedTuple):
    """A client's figures: requests a second, and percentiles of a request's microseconds."""

    rate: float
    p50: float
    p99: float


NameT = TypeVar("NameT")


def medians(ways: Mapping[NameT, Callable[[], Load]], rounds: int) -> dict[NameT, Load]:
    """Load each way in turn, `rounds` times; return the medians of each."""
    found: dict[NameT, list[Load]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            found[name].append(way())
    return {
        name: Load(*map(statistics.median, zip(*loads, strict=True)))
        for name, loads in found.items()
    }


CONNECTIONS = 16
"""Connections to a router of several processes, which the kernel spreads: each process has one."""


class Router:
    """A router of one or more processes that serves gRPC at a port of this machine."""

    def __init__(self, process: Python, channels: ExitStack, processes: int) -> None:
        self.pid = process.process.pid
        found = re.search(r":(\d+)", process.hear())
        assert found
        self.port = int(found[1])
        self._stubs = [
            router_pb2_grpc.RouterStub(
                channels.enter_context(
                    grpc.insecure_channel(
                        f"127.0.0.1:{self.port}", [("grpc.use_local_subchannel_pool", 1)]
                    )
                )
            )
            for _ in range(CONNECTIONS if processes > 1 else 1)
        ]
        self.stub = self._stubs[0]

    def is_connected(self) -> bool:
        """Return whether each process follows all pods."""
        return all(pod.ready for pods in self._pods() for pod in pods)

    def stored(self) -> int:
        """Return the number of blocks that every process has counted as stored, or more."""
        return min(
            sum(rank.events.stored_blocks for pod in pods for rank in pod.ranks)
            for pods in self._pods()
        )

    def await_stored(self, blocks: int) -> None:
        until(lambda: self.stored() >= blocks, "the events become known", 0.1)

    def load(self, method: str, request: Message, calls: int, clients: int) -> Load:
        """Ask `calls` times in all, with `clients` clients that make one call at a time each."""
        url = f"http://127.0.0.1:{self.port}/warmpath.v1.Router/{method}"
        return h2load(url, framed(request), *GRPC, f"-n{calls}", f"-c{clients}", "-m1")

    def _pods(self) -> list[Sequence[pb.Pod]]:
        """Return the pods as each connection's process knows them."""
        return [stub.ListPods(pb.ListPodsRequest(), timeout=5).pods for stub in self._stubs]


class Fleet:
    """Publishers of events, and routers and the peer that follow them. A context manager.

    There is one router for each of `transports` (`server.transport`), of `processes` processes.
    """

    def __init__(
        self,
        pods: int,
        *,
        apart: bool = False,
        has_words: bool = False,
        transports: Sequence[str] = ("auto",),
        addresses: Sequence[str] = (),
        limits: Sequence[str] = (),
        processes: int = 1,
    ) -> None:
        self.pods = pods
        self._processes = processes
        self._limits = limits
        """Lines of the routers' table `[limits]`."""
        self._addresses = addresses or ("127.0.0.1:1",) * pods
        """Where each pod serves, for routers that are asked for one."""
        self._transports = transports
        self._has_words = has_words
        """Whether the router accepts texts (`lab.bench.stand.words`)."""
        self._apart = apart
        """Whether the peer has publishers of its own, so that each can be loaded without the other."""
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="warmpath-")))
            self.flood, ours = self._start_flood(stack, folder / "flood.log")
            self.peer_flood, theirs = self.flood, ours
            if self._apart and peer.is_installed():
                self.peer_flood, theirs = self._start_flood(stack, folder / "peer-flood.log")
            if self._has_words:
                words.save(folder / "words")
            tokenizer = "words" if self._has_words else ""
            self.routers = {}
            for transport in self._transports:
                config = folder / f"{transport}.toml"
                # Processes that share a port cannot be given any that is free.
                port = stack.enter_context(HeldPorts()).take() if self._processes > 1 else 0
                server = {
                    "listen": f"127.0.0.1:{port}", "transport": transport,
                    "processes": self._processes,
                }  # fmt: skip
                limits = "\n".join(("[limits]", *self._limits, ""))
                text = _config(server, ours, self._addresses, tokenizer)
                config.write_text(limits + text, encoding="utf-8")
                log = folder / f"{transport}.log"
                serve = Python("warmpath.cli", "serve", "--config", str(config), log=log)
                self.routers[transport] = Router(stack.enter_context(serve), stack, self._processes)
            self.router = self.routers[self._transports[0]]
            if peer.is_installed():
                self.peer_port = stack.enter_context(HeldPorts()).take()
                command = peer.command(self.peer_port, BLOCK_SIZE, MODEL, theirs)
                stack.enter_context(Python(*command, log=folder / "peer.log"))
            for router in self.routers.values():
                until(router.is_connected, "the router connects to the publishers")
            if peer.is_installed():
                until(self._peer_answers, "the peer answers")
                time.sleep(1.0)  # the peer does not announce that its subscriptions exist
            self._stack = stack.pop_all()
        return self

    def _start_flood(self, stack: ExitStack, log: Path) -> tuple[Python, list[str]]:
        """Start the publisher of all pods; return it with each pod's endpoint."""
        process = stack.enter_context(
            Python("warmpath.lab.bench.stand.flood", str(self.pods), log=log)
        )
        return process, json.loads(process.hear())

    def hold(self, *, seed: int, prompts: int, blocks: int) -> None:
        """Let all pods hold prompts, and wait until every router knows them."""
        before = [(router, router.stored()) for router in self.routers.values()]
        order(
            self.flood,
            seed=seed,
            prompts=prompts,
            blocks=blocks,
            events=1,
            each=blocks,
            pods=self.pods,
        )
        release(self.flood)
        assert self.flood.hear() == "sent\n"
        for router, stored in before:
            router.await_stored(stored + self.pods * prompts * blocks)

    def _peer_answers(self) -> bool:
        try:
            peer.query(self.peer_port, peer.query_body([1], MODEL))
        except OSError:
            return False
        return True

    def peer_holds(self, body: bytes, blocks: int) -> bool:
        """Whether all of the peer's workers hold `blocks` leading blocks of a query's prompt."""
        scores = peer.query(self.peer_port, body)
        held = [ranks["0"] for ranks in scores.values()]
        return len(held) == self.pods and min(held) >= blocks * BLOCK_SIZE

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def order(flood: Python, **what: int) -> None:
    """Let a publisher make messages, which `release` lets it send."""
    flood.tell(json.dumps({"pace": 0, "pods": 1, **what}))
    assert flood.hear() == "made\n"


def release(flood: Python) -> None:
    """Let a publisher send the messages that it has made."""
    flood.tell("go")


def _config(
    server: Mapping[str, object], events: Sequence[str], addresses: Sequence[str], tokenizer: str
) -> str:
    """Return a router's configuration."""
    own = {"metrics-listen": "", "drain-delay-seconds": 0}
    pods = [
        PodSpec(id=f"pod-{at}", model=MODEL, address=address, events=endpoint)
        for at, (endpoint, address) in enumerate(zip(events, addresses, strict=True))
    ]
    return as_toml(
        Config(
            models=[ModelSpec(name=MODEL, vocab_size=VOCAB_SIZE, tokenizer=tokenizer)],
            server=msgspec.convert({**server, **own}, ServerTable),
            probe=ProbeTable(interval_seconds=0),
            pods=pods,
        )
    )


def framed(message: Message) -> bytes:
    """Return a message in gRPC's frame: a flag for no compression, the length, the bytes."""
    raw = message.SerializeToString()
    return b"\0" + len(raw).to_bytes(4, "big") + raw


def h2load(url: str, body: bytes, *options: str) -> Load:
    """Load a server with one C client.

    Raises FileNotFoundError if h2load (Debian's nghttp2-client) is missing.
    """
    with (
        tempfile.NamedTemporaryFile("r", suffix=".log") as log,
        tempfile.NamedTemporaryFile() as data,
    ):
        data.write(body)
        data.flush()
        ended = subprocess.run(  # noqa: S603
            ("h2load", *options, "-d", data.name, f"--log-file={log.name}", url),  # noqa: S607
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        taken = sorted(int(line.split()[2]) for line in log.read().splitlines())
    if ", 0 failed, 0 errored" not in ended.stdout.replace("  ", " "):
        raise RuntimeError(ended.stdout)
    found = re.search(r"([\d.]+) req/s", ended.stdout)
    assert found
    return Load(float(found[1]), statistics.median(taken), taken[int(len(taken) * 0.99)])


def family(process: int) -> list[int]:
    """Return a process and all that descend from it."""
    found, left = [], [process]
    while left:
        found.append(one := left.pop())
        with suppress(OSError):
            for task in Path(f"/proc/{one}/task").iterdir():
                left += map(int, (task / "children").read_text(encoding="ascii").split())
    return found


def busy(process: int) -> float:
    """Return the processor seconds that a process has used. Raises OSError if it is not there."""
    # The number of another process' clock: clock_getcpuclockid(3), as Linux makes it.
    return time.clock_gettime(~process << 3 | 2)


def resident(process: int) -> int:
    """Return the resident memory of a process, bytes."""
    for line in Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise RuntimeError(f"process {process} has no VmRSS")
