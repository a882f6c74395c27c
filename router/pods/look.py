"""Looks for pods: asks all sources once, and a DNS name or a file of pods again and again.

One answer that lacks a pod, or an empty one, may be wrong. A name server that has lost its upstream says
that a name does not exist, and a file is empty while it is written.
"""

import asyncio
import logging
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

from warmpath.process.command_line import in_words
from warmpath.process.reread import read_bytes
from warmpath.router.config import read as read_config
from warmpath.router.config import schema as config
from warmpath.router.config.schema import Config, PodSpec
from warmpath.router.pods.discover import STAY, PodSource, SourceError, SourceState
from warmpath.router.pods.kubernetes import KubernetesSource
from warmpath.router.pods.names import FoundPod, Names

log = logging.getLogger(__name__)

SILENT_SECONDS = 30.0
"""A look that takes longer does not come back: resolvers give up earlier, or a disk is away."""
ANSWERS = 3
"""How many answers in a row have to lack a pod before it counts as gone."""
KEPT_SECONDS = 300.0
"""How long a pod that answers lack is kept by a source that keeps such pods (`unlisted`)."""

LACKS = "its pods are gone once several answers have said so, unless no others are healthy"
UNLISTED = "its DNS name does not have its address any more"
GONE = (socket.EAI_NONAME, socket.EAI_NODATA)
NO_NAME = (
    "compare `dns` with the headless Service's name; while none of its pods is ready it has none"
)
NO_SERVER = "look whether this machine's name server answers (/etc/resolv.conf)"
UNREADABLE = (
    "create the file, let this process read it, or change `pods-file`; it is looked at each second"
)
WRONG = (
    "correct the file; it is read again by itself, and `warmpath check-config` names every mistake"
)

Resolve = Callable[[str], Awaitable[list[str]]]
"""Returns a name's addresses. Raises socket.gaierror."""


class PolledSource(ABC):
    """Looks for pods every `pause` seconds; while they cannot be read, they stay as they were.

    A pod is believed to be gone once ANSWERS in a row have lacked it, over at least `lacking_seconds`.
    If `unlisted` is not empty, it stays for KEPT_SECONDS, withheld for that reason, as long as its
    events come.
    """

    pause: float
    lacking_seconds: float
    unlisted = ""

    def __init__(self, name: str, model: str, clock: Callable[[], float]) -> None:
        self.state = SourceState(name, model, clock, self.pause + SILENT_SECONDS)
        self._clock = clock
        self._found: Mapping[str, FoundPod] | None = None
        self._lacking: dict[str, tuple[FoundPod, float, int]] = {}
        """The pods that were found before and not since: since when, and by how many answers."""

    @abstractmethod
    async def look(self) -> Mapping[str, FoundPod]: ...

    async def sets(self) -> AsyncIterator[Mapping[str, FoundPod]]:
        """Yield all pods by id after each answer: the same answer again may show that a pod is gone."""
        while True:
            found: Mapping[str, FoundPod] | None
            try:
                found = await self.look()
                self.state.answered()
                if not found and self._found != {}:
                    log.warning("%s lists no pods", self.state.name)
            except SourceError as error:
                found = {} if error.empty else None
                self.state.failed(error.brief, LACKS if error.empty else STAY, error.advice)
            if found is not None:
                yield self._believed(found)
            await asyncio.sleep(self.pause)

    def _believed(self, found: Mapping[str, FoundPod]) -> dict[str, FoundPod]:
        now = self._clock()
        before = {name: (pod, now, 0) for name, pod in (self._found or {}).items()}
        gone = {name: one for name, one in (before | self._lacking).items() if name not in found}
        self._found, self._lacking = found, {}
        there = dict(found)
        for name, (pod, since, answers) in gone.items():
            is_sure = answers + 1 >= ANSWERS and now - since >= self.lacking_seconds
            if is_sure and (not self.unlisted or now - since >= KEPT_SECONDS):
                continue
            self._lacking[name] = pod, since, answers + 1
            there[name] = replace(pod, withheld=self.unlisted, is_unlisted=True) if is_sure else pod
        return there


async def resolve(name: str) -> list[str]:
    """Return the IP addresses to which the system resolves a name, sorted. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return sorted({str(entry[4][0]) for entry in found})


class DnsSource(PolledSource):
    """Resolves a name, such as a headless service's; each address is a pod with the id `SET-ADDRESS`.

    An address has no identity: if another engine takes it over, only the event stream shows that. One
    that several answers lack takes no requests, and is forgotten when its events end; but see
    `Reconciler.reconcile` where no other pod is healthy.
    """

    pause = 5.0
    lacking_seconds = 10.0
    unlisted = UNLISTED

    def __init__(
        self,
        pods: config.PodSetSpec,
        *,
        ask: Resolve = resolve,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(f"pod-sets {pods.name} (dns {pods.dns})", pods.model, clock)
        self._pods = pods
        self._ask = ask

    async def look(self) -> Mapping[str, FoundPod]:
        try:
            addresses = await self._ask(self._pods.dns)
        except (socket.gaierror, UnicodeError) as error:
            # A headless service without pods has no DNS name; other errors may be temporary.
            gone = isinstance(error, socket.gaierror) and error.errno in GONE
            advice = NO_NAME if gone else NO_SERVER
            problem = getattr(error, "strerror", "") or str(error)
            raise SourceError(problem, advice=advice, empty=gone) from error
        pods = [self._pods.pod(f"{self._pods.name}-{one}", one) for one in addresses]
        return {pod.id: FoundPod(pod) for pod in pods}


class FileSource(PolledSource):
    """Reads [[pods]] from a file, which somebody may be writing meanwhile."""

    pause = 1.0
    lacking_seconds = 3.0

    def __init__(
        self,
        path: Path,
        models: Sequence[config.ModelSpec],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(f"pods-file {path}", "", clock)
        self._path = path
        self._models = models
        self._read: tuple[bytes, Mapping[str, FoundPod] | SourceError] | None = None
        """The file's last content, and its pods or its mistakes."""

    async def look(self) -> Mapping[str, FoundPod]:
        # A file of thousands of pods takes a second to parse.
        return await asyncio.to_thread(self._look)

    def _look(self) -> Mapping[str, FoundPod]:
        try:
            raw = read_bytes(self._path, read_config.MOST_BYTES)
        except OSError as error:
            problem = in_words(error)
            brief = problem.removeprefix(f"{self._path}: ")
            raise SourceError(problem, brief=brief, advice=UNREADABLE) from error
        if self._read is None or raw != self._read[0]:
            self._read = raw, self._parsed(raw)
        if isinstance(self._read[1], SourceError):
            raise self._read[1].with_traceback(None)
        return self._read[1]

    def _parsed(self, raw: bytes) -> Mapping[str, FoundPod] | SourceError:
        try:
            pods = read_config.parse_pods(raw, str(self._path), self._models)
        except read_config.ConfigError as error:
            return SourceError(error.brief, advice=WRONG, mistakes=error.problems)
        return {pod.id: FoundPod(pod) for pod in pods}


class Looked(NamedTuple):
    """The answer of one source."""

    source: str
    pods: Sequence[PodSpec] = ()
    """The pods that it found, in the order of their ids."""
    problem: str = ""
    """Why it cannot be asked; empty if it answered."""
    advice: str = ""
    """The remedy of `problem`; may be empty."""
    mistakes: tuple[str, ...] = ()
    """The mistakes in a file of pods, each with its line."""


def look(sources: Sequence[PodSource], seconds: float) -> list[Looked]:
    """Return the answers of all sources, each asked once, in their order, after at most `seconds`."""
    return asyncio.run(_all(sources, seconds)) if sources else []


async def _all(sources: Sequence[PodSource], seconds: float) -> list[Looked]:
    asyncio.get_running_loop().set_default_executor(_DaemonThreads())
    asked = (asyncio.wait_for(source.look(), seconds) for source in sources)
    answers = await asyncio.gather(*asked, return_exceptions=True)
    # The sources in their order give the ids of a router that starts now.
    names = Names()
    looked = []
    for source, answer in zip(sources, answers, strict=True):
        name = source.state.name
        if isinstance(answer, SourceError):
            looked.append(Looked(name, (), str(answer), answer.advice, answer.mistakes))
        elif isinstance(answer, TimeoutError):
            looked.append(Looked(name, (), f"no answer within {seconds:g} s"))
        elif isinstance(answer, BaseException):
            raise answer
        else:
            pods = sorted(names.heard(name, answer)[name].items())
            looked.append(Looked(name, [one.spec for _, one in pods if one]))
    return looked


class _DaemonThreads(ThreadPoolExecutor):
    """Runs each call in a thread that nothing waits for.

    A name server or a disk that does not answer holds its thread for minutes. asyncio and the
    interpreter would wait for it at their end.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001  the caller gets it
                future.set_exception(error)

        Thread(target=run, daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for nothing."""


def sources(config: Config, folder: Path) -> list[PodSource]:
    """Return a source for each of [[pod-sets]], and one for `pods-file`, relative to `folder`."""
    found: list[PodSource] = [
        DnsSource(pods) if pods.dns else KubernetesSource(pods) for pods in config.pod_sets
    ]
    if config.pods_file:
        found.append(FileSource(folder / config.pods_file, config.models))
    return found
