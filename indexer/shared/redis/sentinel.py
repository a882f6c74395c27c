"""The master that sentinels name; they are asked at each connection, and each second in use."""

import asyncio
from collections.abc import Iterable
from functools import partial

from warmpath.indexer.shared.redis.address import HostPort
from warmpath.indexer.shared.redis.command import (
    CommandFailedError,
    CommandRefusedError,
    Reply,
    UnreachableError,
)
from warmpath.indexer.shared.redis.link import Link, Wire
from warmpath.indexer.shared.redis.node import Node, NotSentError
from warmpath.indexer.shared.redis.topology import DialPlace, Disrupted, Topology

ANSWER_SECONDS = 1.0
"""How long a sentinel may take to answer, and a server to say whether it is a master."""
LOOK_SECONDS = 1.0
"""How often sentinels are asked, while there is work, whether the master is still the master.

A master that was replaced while it lived goes on answering until it learns of that: 10 s or more."""


class SentinelMaster(Topology):
    """The master with one name, which holds every key."""

    def __init__(
        self,
        name: str,
        sentinels: Iterable[HostPort],
        dial: DialPlace,
        dial_sentinel: DialPlace,
        disrupted: Disrupted,
    ) -> None:
        super().__init__(Node(f"master {name}", self._dial, disrupted))
        self._name = name
        self._dial_place = dial
        self._loop = asyncio.get_running_loop()
        self._sentinels = [
            Node(f"sentinel {place}", partial(dial_sentinel, place), lambda: None)
            for place in sentinels
        ]
        self._place: HostPort | None = None
        """The server of the last connection; None before the first."""
        self._looking: asyncio.Task[None] | None = None
        self._look_at = 0.0

    def late(self, seconds: float) -> Exception | None:
        if self._node.is_connected:
            return None
        asked = [one for one in self._sentinels if one.is_connecting]
        is_found = self._node.failure is not None or len(asked) < len(self._sentinels)
        return (self._node if is_found else asked[0]).late(seconds)

    async def node_of(self, key: bytes) -> Node:
        if self._looking is None and self._loop.time() >= self._look_at:
            self._looking = self._loop.create_task(self._look())
        return await super().node_of(key)

    async def doubt(self, node: Node) -> bool:
        """Close the connection, so that the sentinels are asked for the master again; return True."""
        await node.hang_up()
        return True

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
        for node in (self._node, *self._sentinels):
            await node.close()

    async def _dial(self) -> Wire:
        place = await self._find()
        wire = await self._dial_place(place)
        try:
            await self._make_sure(place, wire)
        except BaseException:
            await wire.close()
            raise
        self._place = place
        return wire

    @staticmethod
    async def _make_sure(place: HostPort, wire: Wire) -> None:
        replies: list[Reply] = []
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await Link(wire, lambda: None).ask([("ROLE",)], replies)
        except TimeoutError:
            raise UnreachableError(f"{place}: no answer within {ANSWER_SECONDS:g} s") from None
        [role] = replies
        if isinstance(role, CommandRefusedError):
            raise role
        if role[0] != b"master":
            raise UnreachableError(f"{place} is not a master now, although a sentinel names it")

    async def _look(self) -> None:
        try:
            if self._node.is_connected and await self._find() != self._place:
                await self._node.hang_up()
        except CommandFailedError:
            pass  # No sentinel answers, and the connection is as good as before.
        finally:
            self._looking = None
            self._look_at = self._loop.time() + LOOK_SECONDS

    async def _find(self) -> HostPort:
        """Ask all sentinels until more than half have named a master, or none is left to answer.

        Believe the answer with the latest epoch.
        """
        problems: list[str] = []
        found: list[tuple[int, HostPort]] = []
        asked = [self._loop.create_task(self._ask(sentinel)) for sentinel in self._sentinels]
        try:
            for next_ in asyncio.as_completed(asked):
                try:
                    found.append(await next_)
                except CommandFailedError as error:
                    problems.append(str(error))
                if len(found) > len(asked) // 2:
                    break
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        if not found:
            raise NotSentError("; ".join(problems))
        return max(found, key=lambda one: one[0])[1]

    async def _ask(self, sentinel: Node) -> tuple[int, HostPort]:
        words, about = ("SENTINEL", "MASTER", self._name), f"{self._name!r}: "
        reply = await sentinel.answer(words, ANSWER_SECONDS, about)
        facts = dict(zip(reply[::2], reply[1::2], strict=True))
        return int(facts[b"config-epoch"]), HostPort(facts[b"ip"].decode(), int(facts[b"port"]))
