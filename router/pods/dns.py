"""Finds the pods behind a DNS name that resolves to all of them, such as a headless service's."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from router.config import schema as config
from router.pods.discover import FoundPod, SourceError

log = logging.getLogger(__name__)

GONE = (socket.EAI_NONAME, socket.EAI_NODATA)

Resolve = Callable[[str], Awaitable[list[str]]]
"""Returns a name's addresses. Raises socket.gaierror."""


async def resolve(name: str) -> list[str]:
    """Return the addresses to which the system resolves a name, in order."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return sorted({str(entry[4][0]) for entry in found})


class DnsSource:
    """Resolves a name every `refresh_seconds`; each address is a pod with the id `SET-ADDRESS`.

    An address has no identity: if another engine takes it over, only the event stream shows that.
    """

    def __init__(self, pods: config.PodSetSpec, *, ask: Resolve = resolve) -> None:
        self.name = f"pod-sets {pods.name} (dns {pods.dns})"
        self._pods = pods
        self._ask = ask
        self._problem = ""

    async def look(self) -> Mapping[str, FoundPod]:
        """Return the pods of this moment by id. Raises SourceError."""
        try:
            addresses = await self._ask(self._pods.dns)
        except (socket.gaierror, UnicodeError) as error:
            # A headless service without pods has no DNS name; other errors may be temporary.
            gone = isinstance(error, socket.gaierror) and error.errno in GONE
            raise SourceError(str(error), empty=gone) from error
        pods = [self._pods.pod(f"{self._pods.name}-{one}", one) for one in addresses]
        return {pod.id: FoundPod(pod) for pod in pods}

    async def sets(self) -> AsyncIterator[Mapping[str, FoundPod]]:
        """Yield all pods by id, now and after each change of the addresses."""
        before: Mapping[str, FoundPod] | None = None
        while True:
            try:
                found = await self.look()
                self._say("")
            except SourceError as error:
                found = {} if error.empty else (before or {})
                self._say(f"{error}; {'no pods' if error.empty else 'the pods stay as they were'}")
            if found != before:
                before = found
                yield found
            await asyncio.sleep(self._pods.refresh_seconds)

    def _say(self, problem: str) -> None:
        """Log a problem once, until it has ended or changed."""
        if problem and problem != self._problem:
            log.warning("%s: %s", self.name, problem)
        self._problem = problem
