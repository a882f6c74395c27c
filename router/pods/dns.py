"""Finds the pods behind a DNS name that resolves to all of them, such as a headless service's."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from warmpath.router.config import schema as config
from warmpath.router.pods.absence import Absences
from warmpath.router.pods.discover import STAY, SourceError, SourceState
from warmpath.router.pods.found_pod import FoundPod

REFRESH_SECONDS = 5.0
"""Pause between look-ups."""
LACKING_SECONDS = 10.0
"""Answers have to lack an address for so long before it counts as gone."""
SILENT_SECONDS = 30.0
"""A look-up that takes longer does not come back: resolvers give up earlier."""
LACKS = "its pods are gone once several answers have said so, unless no others are healthy"
UNLISTED = "its DNS name does not have its address any more"
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
    """Resolves a name every REFRESH_SECONDS; each address is a pod with the id `SET-ADDRESS`.

    An address has no identity: if another engine takes it over, only the event stream shows that. One
    that several answers lack takes no requests, and is forgotten when its events end; but see
    `Reconciler.reconcile` where no other pod is healthy.
    """

    def __init__(
        self,
        pods: config.PodSetSpec,
        *,
        ask: Resolve = resolve,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state = SourceState(
            f"pod-sets {pods.name} (dns {pods.dns})",
            pods.model,
            clock,
            REFRESH_SECONDS + SILENT_SECONDS,
        )
        self._pods = pods
        self._ask = ask
        self._clock = clock

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

    async def sets(self) -> AsyncIterator[Mapping[str, FoundPod]]:
        """Yield all pods by id after each answer, as what is believed may change while none does."""
        absences = Absences(LACKING_SECONDS, UNLISTED)
        is_first = True
        while True:
            answer: Mapping[str, FoundPod] | None
            try:
                answer = await self.look()
                self.state.answered()
            except SourceError as error:
                answer = {} if error.empty else None
                effect = LACKS if error.empty else STAY
                self.state.failed(str(error), effect, error.advice)
            if answer is not None:
                yield absences.believe(answer, self._clock())
            elif is_first:
                yield {}
            is_first = False
            await asyncio.sleep(REFRESH_SECONDS)
