"""Finds the node to ask for a key: the only one, that of its slot in a cluster, or Sentinel's master."""

import asyncio
from binascii import crc_hqx
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from warmpath.indexer.shared.redis.command import (
    CommandFailedError,
    CommandRefusedError,
    Reply,
    UnreachableError,
)
from warmpath.indexer.shared.redis.node import Link, Node, NotSentError, Wire, again
from warmpath.process.address import HostPort

SLOTS = 16384
REFRESH_SECONDS = 1.0
"""How long one node may take to say where the slots are."""
REFRESH_PAUSE = 0.05
"""The shortest time between two questions where the slots are, seconds."""
ANSWER_SECONDS = 1.0
"""How long a sentinel may take to answer, and a server to say whether it is a master."""
LOOK_SECONDS = 1.0
"""How often sentinels are asked, while there is work, whether the master is still the master.

A master that was replaced while it lived goes on answering until it learns of that: 10 s or more."""

Disrupted = Callable[[], None]
DialPlace = Callable[[HostPort], Awaitable[Wire]]


def slot_of(key: bytes) -> int:
    """Return a key's slot in a cluster: by the CRC16 of its hash tag, or else of the whole key."""
    begin = key.find(b"{")
    if begin >= 0:
        end = key.find(b"}", begin + 1)
        if end > begin + 1:
            key = key[begin + 1 : end]
    return crc_hqx(key, 0) % SLOTS


class Topology:
    """Finds the node to ask for each key. Here it is a single server, which holds every key."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def late(self, seconds: float) -> Exception | None:
        """Return why the servers were not reached within `seconds`; None where they were."""
        node = self._node
        return node.late(seconds) if node.failure or node.is_connecting else None

    async def node_of(self, key: bytes) -> Node:  # noqa: ARG002 - all keys lie on it
        """Return the node to ask. Raises CommandRefusedError or UnreachableError where none is known."""
        return self._node

    async def moved(self, place: str, slot: int, sender: Node) -> None:  # noqa: ARG002 - a cluster's
        """Follow MOVED, which `sender` sent: a slot lies at that place ("host:port") for good."""
        self.asked(place, b"", sender)

    def asked(self, place: str, key: bytes, sender: Node) -> Node:  # noqa: ARG002 - a cluster's
        """Follow ASK: return the node ("host:port") that has a key already, while its slot moves.

        Where the URL is not a cluster's, its redirections are refused.
        """
        raise CommandRefusedError(
            f"{sender.name} belongs to a cluster, whose URL begins with redis-cluster://"
        )

    async def doubt(self, node: Node) -> bool:  # noqa: ARG002 - there is no other
        """Look for the master again, since `node` may not be it; return whether to ask again."""
        return False

    async def close(self) -> None:
        await self._node.close()


class Cluster(Topology):
    """The nodes of a cluster. Only masters are asked."""

    def __init__(self, seeds: Iterable[HostPort], dial: DialPlace, disrupted: Disrupted) -> None:
        self._seeds = tuple(seeds)
        self._dial = dial
        self._disrupted = disrupted
        self._loop = asyncio.get_running_loop()
        self._nodes: dict[HostPort, Node] = {}
        self._slots: list[HostPort | None] = []
        self._ahead: dict[bytes, HostPort] = {}
        """The nodes of keys that lie elsewhere already, while their slots are moved."""
        self._refreshing: asyncio.Task[Exception | None] | None = None
        self._failure: Exception | None = None
        """Why the last attempt to look up the slots failed; None where it did not."""
        self._not_before = 0.0
        self._turn = 0

    def late(self, seconds: float) -> Exception | None:
        nodes = self._nodes.values()
        if any(node.is_connected for node in nodes):
            return None
        return self._failure or next(
            (node.late(seconds) for node in nodes if node.is_connecting), None
        )

    async def node_of(self, key: bytes) -> Node:
        if not self._slots and (problem := await self._refresh()):
            raise problem
        slot = slot_of(key)
        if self._slots[slot] is None:
            # When the slots were looked up, no node served this one, as happens in a fail-over.
            await self._refresh()
        place = self._slots[slot]
        if place is None:
            raise CommandRefusedError(f"CLUSTERDOWN no node of the cluster serves slot {slot}")
        return self._at(place)

    async def moved(self, place: str, slot: int, sender: Node) -> None:
        there = _read_place(place, sender)
        if self._slots and self._slots[slot] != there:
            self._slots[slot] = there
            self._ahead.clear()
            self._disrupted()
            self._start_refresh()

    def asked(self, place: str, key: bytes, sender: Node) -> Node:
        """Return the node at that place; count a disruption the first time that a key is asked there."""
        there = _read_place(place, sender)
        if self._ahead.get(key) != there:
            self._ahead[key] = there
            self._disrupted()
        return self._at(there)

    async def doubt(self, node: Node) -> bool:  # noqa: ARG002 - all of it is looked up
        return await self._refresh() is None

    async def close(self) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.wait([self._refreshing])
        for node in self._nodes.values():
            await node.close()

    def _at(self, place: HostPort) -> Node:
        node = self._nodes.get(place)
        if node is None:
            node = Node(str(place), lambda: self._dial(place), self._disrupted)
            self._nodes[place] = node
        return node

    async def _refresh(self) -> Exception | None:
        self._start_refresh()
        if self._refreshing is None:
            return again(self._failure or NotSentError("the slots were looked up a moment ago"))
        return await asyncio.shield(self._refreshing)

    def _start_refresh(self) -> None:
        if self._refreshing is None and self._loop.time() >= self._not_before:
            self._refreshing = self._loop.create_task(self._look_up())

    async def _look_up(self) -> Exception | None:
        problem: Exception = NotSentError("no node of the cluster is known")
        try:
            self._turn += 1
            places = list(dict.fromkeys([*self._nodes, *self._seeds]))
            turn = self._turn % len(places)
            places = places[turn:] + places[:turn]
            places.sort(key=lambda place: not self._at(place).is_connected)
            for place in places:
                try:
                    slots = await self._ask_slots(place)
                except CommandFailedError as error:
                    problem = error
                else:
                    await self._take(slots)
                    self._failure = None
                    return None
            self._failure = problem
            return problem
        finally:
            self._refreshing = None
            self._not_before = self._loop.time() + REFRESH_PAUSE

    async def _ask_slots(self, place: HostPort) -> list[HostPort | None]:
        found = await self._at(place).answer(("CLUSTER", "SLOTS"), REFRESH_SECONDS)
        slots: list[HostPort | None] = [None] * SLOTS
        for first, last, (host, port, *_), *_ in found:
            master = HostPort(host.decode() if host else place.host, port)
            slots[first : last + 1] = [master] * (last + 1 - first)
        if not any(slots):
            raise CommandRefusedError(f"CLUSTERDOWN {place} knows of no node that serves a slot")
        return slots

    async def _take(self, slots: list[HostPort | None]) -> None:
        if slots == self._slots:
            return
        if self._slots:
            self._disrupted()
        self._slots = slots
        self._ahead.clear()
        masters = set(slots)
        for place in [place for place in self._nodes if place not in masters]:
            await self._nodes.pop(place).close()


class SentinelMaster(Topology):
    """The master with one name. Sentinels are asked at each connection, and each second in use."""

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


def _read_place(text: str, sender: Node) -> HostPort:
    """Return the place in a MOVED or ASK; without a host it is on the host of the node that sent it."""
    place = HostPort.of(text)
    return place if place.host else place._replace(host=HostPort.of(sender.name).host)
