"""Finds the pods behind a DNS name that resolves to all of them, such as a headless service's."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from router.config import schema as config
from router.pods.discover import FoundPod, SourceError
from router.pods.source_state import STAY, SourceState

GONE = (socket.EAI_NONAME, socket.EAI_NODATA)
NO_NAME = (
    "compare `dns` with the headless Service's name; while none of its pods is ready it has none"
)
NO_SERVER = "look whether this machine's name server answers (/etc/resolv.conf)"

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

    def __init__(
        self,
        pods: config.PodSetSpec,
        *,
        ask: Resolve = resolve,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state = SourceState(f"pod-sets {pods.name} (dns {pods.dns})", pods.model, clock)
        self._pods = pods
        self._ask = ask

    async def look(self) -> Mapping[str, FoundPod]:
        """Return the pods of this moment by id. Raises SourceError."""
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

    async def sets(self) -> AsyncIterator[Mapping[str, FoundPod]]:
        """Yield all pods by id, now and after each change of the addresses."""
        before: Mapping[str, FoundPod] | None = None
        while True:
            try:
                found = await self.look()
                self.state.answered()
            except SourceError as error:
                found = {} if error.empty else (before or {})
                effect = "it has no pods" if error.empty else STAY
                self.state.failed(str(error), effect, error.advice)
            if found != before:
                before = found
                yield found
            await asyncio.sleep(self._pods.refresh_seconds)
