"""Asks each source of pods once, all at the same time, for a bounded time.

`sources` names the places where pods are found, besides the [[pods]] of the configuration.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

from warmpath.router.config.schema import Config, PodSpec
from warmpath.router.pods.discover import PodSource, SourceError
from warmpath.router.pods.kubernetes import KubernetesSource
from warmpath.router.pods.names import Names
from warmpath.router.pods.polled import DnsSource, FileSource


class Looked(NamedTuple):
    """The answer of one source."""

    source: str
    pods: list[str]
    problem: str
    """Why it cannot be asked; empty if it answered."""
    mistakes: tuple[str, ...] = ()
    """The mistakes in a file of pods, each with its line."""
    specs: tuple[PodSpec, ...] = ()
    """The pods themselves, in the order of their ids."""


def look(sources: Sequence[PodSource], seconds: float) -> list[Looked]:
    """Return the answers of all sources, in their order, after at most `seconds`."""
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
            looked.append(Looked(name, [], str(answer), answer.mistakes))
        elif isinstance(answer, TimeoutError):
            looked.append(Looked(name, [], f"no answer within {seconds:g} s"))
        elif isinstance(answer, BaseException):
            raise answer
        else:
            pods = sorted(names.heard(name, answer)[name].items())
            specs = tuple(one.spec for _, one in pods)
            looked.append(Looked(name, [pod for pod, _ in pods], "", specs=specs))
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
