"""Pods behind a name that resolves to all of them: a headless service."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from router.config import schema as config
from router.pods.discover import Found

log = logging.getLogger(__name__)

GONE = (socket.EAI_NONAME, socket.EAI_NODATA)

Resolve = Callable[[str], Awaitable[list[str]]]
"""A name's addresses. Raises socket.gaierror."""


async def resolve(name: str) -> list[str]:
    """Return the addresses of a name, as the system resolves it."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return sorted({str(entry[4][0]) for entry in found})


class DnsSource:
    """Asks for a name's addresses every so often; each is a pod, named `SET-ADDRESS`.

    Names tell no identity: that another engine has taken an address over shows in its event stream.
    """

    def __init__(self, pods: config.PodSet, *, ask: Resolve = resolve) -> None:
        self.name = f"pod-sets {pods.name} (dns {pods.dns})"
        self._pods = pods
        self._ask = ask
        self._problem = ""

    async def sets(self) -> AsyncIterator[Mapping[str, Found]]:
        """Yield all pods by id, now and whenever the addresses have changed."""
        before: list[str] | None = None
        while True:
            try:
                addresses = await self._ask(self._pods.dns)
                self._say("")
            except (socket.gaierror, UnicodeError) as error:
                # A headless service without pods has no name; anything else may pass.
                gone = isinstance(error, socket.gaierror) and error.errno in GONE
                addresses = [] if gone else (before or [])
                self._say(f"{error}; {'no pods' if gone else 'the pods stay as they were'}")
            if addresses != before:
                before = addresses
                yield {
                    spec.id: Found(spec)
                    for spec in (
                        self._pods.pod(f"{self._pods.name}-{address}", address)
                        for address in addresses
                    )
                }
            await asyncio.sleep(self._pods.refresh_seconds)

    def _say(self, problem: str) -> None:
        """Log a problem once for as long as it lasts."""
        if problem and problem != self._problem:
            log.warning("%s: %s", self.name, problem)
        self._problem = problem
