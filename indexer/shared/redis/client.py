"""Asks Redis within a time limit: finds each command's node, and follows a cluster's redirections."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import zip_longest

from warmpath.indexer.shared.redis.command import (
    NO_CONNECTION,
    SLOW_TLS_HINT,
    Call,
    Command,
    CommandFailedError,
    CommandRefusedError,
    Fault,
    Reply,
    UnreachableError,
    fault_of,
    hint_of,
)
from warmpath.indexer.shared.redis.node import Node, NotSentError
from warmpath.indexer.shared.redis.topology import Topology

FIRST_PAUSE = 0.01
"""Seconds before a node that cannot answer just now is asked again; doubled each time."""
LAST_PAUSE = 0.2

_PASSING = frozenset({"TRYAGAIN", "CLUSTERDOWN", "LOADING", "MASTERDOWN"})
"""Errors of a state that soon ends. Redis did not carry the command out."""
_OF_THE_COMMAND = frozenset(
    {
        *("MOVED", "ASK", "TRYAGAIN", "NOPERM", "WRONGTYPE"),
        # Redis refuses these to writes alone, and goes on answering reads from the same data.
        *("OOM", "MISCONF", "NOREPLICAS", "READONLY"),
    }
)
"""Errors that are about the command that was sent. They say nothing of what else the node holds."""


class RedisClient:
    """Implements `command.Redis`. Belongs to one event loop; any number of tasks may ask at once."""

    topology: Topology
    """Finds the node for each key. It is set before anything is asked: its nodes call `disrupted`."""

    def __init__(self, *, named: str = "", tls: bool = False) -> None:
        """`named` is as in `address.parse`; `tls` says whether connections use TLS."""
        self.disruptions = 0
        self._named = named
        self._is_tls = tls

    def disrupted(self) -> None:
        self.disruptions += 1

    async def run(self, asked: Sequence[Command | Call], *, timeout: float) -> list[Reply]:
        round_ = _Round(self.topology, asked, self.disrupted)
        try:
            async with asyncio.timeout(timeout):
                await round_.run()
        except TimeoutError:
            round_.time_is_up(timeout)
        return [
            self._explained(one, reply) for one, reply in zip(asked, round_.replies, strict=True)
        ]

    async def place_of(self, key: str) -> str:
        """Return the name of the node to ask for a key, with its host and port.

        A master that Sentinel watches has the name that Sentinel gives it. Raises as `Topology.node_of`.
        """
        return (await self.topology.node_of(key.encode())).name

    def _explained(self, one: Command | Call, reply: Reply) -> Reply:
        """Return a reply; an error with the addition of what helps."""
        if not isinstance(reply, CommandFailedError):
            return reply
        if fault_of(reply) is Fault.RIGHT:
            hint = _lacking_right(one, reply)
        elif NO_CONNECTION in str(reply) and self._is_tls and not self.disruptions:
            # No connection was ever made, so the server may not know TLS.
            hint = SLOW_TLS_HINT
        else:
            hint = hint_of(reply, self._named)
        return type(reply)(f"{reply} ({hint})") if hint else reply

    async def close(self) -> None:
        await self.topology.close()


class _Round:
    """The commands of one `run`, until each has its reply."""

    def __init__(
        self, topology: Topology, asked: Sequence[Command | Call], disrupted: Callable[[], None]
    ) -> None:
        self._topology = topology
        self._asked = asked
        self._disrupted = disrupted
        self.replies: list[Reply] = [_MISSING] * len(asked)
        self._asking: dict[int, Node] = {}
        """The nodes to which a cluster's ASK sends commands this once."""
        self._loaded: set[int] = set()
        self._redirected: set[int] = set()
        self._pause = FIRST_PAUSE
        self._is_to_wait = False

    def time_is_up(self, timeout: float) -> None:
        """Put an error in each missing reply's place; keep refusals, even those worth a retry."""
        # Where no connection can be made, that says more than that there is no answer.
        problem = self._topology.late(timeout) or f"no answer within {timeout:g} s"
        late = UnreachableError(str(problem))
        self.replies = [late if reply is _MISSING else reply for reply in self.replies]

    async def run(self) -> None:
        todo = list(range(len(self._asked)))
        while todo:
            groups, todo = await self._group(todo), []
            asks = [self._ask(*group, numbers) for group, numbers in groups.items()]
            if len(asks) == 1:
                await asks[0]
            else:
                await asyncio.gather(*asks)
            self._is_to_wait = False
            for (node, _), numbers in groups.items():
                todo += [one for one in numbers if await self._is_to_repeat(node, one)]
            todo.sort()
            if todo and self._is_to_wait:
                await asyncio.sleep(self._pause)
                self._pause = min(2 * self._pause, LAST_PAUSE)

    async def _group(self, numbers: list[int]) -> dict[tuple[Node, bool], list[int]]:
        groups: dict[tuple[Node, bool], list[int]] = {}
        for number in numbers:
            node = self._asking.pop(number, None)
            try:
                group = (node, True) if node else (await self._node_of(number), False)
            except CommandFailedError as error:
                self.replies[number] = error
            else:
                groups.setdefault(group, []).append(number)
        return groups

    async def _node_of(self, number: int) -> Node:
        return await self._topology.node_of(_key_of(self._asked[number]))

    async def _ask(self, node: Node, asking: bool, numbers: list[int]) -> None:
        got: list[Reply] = []
        problem: Reply = _MISSING
        try:
            await node.ask([self._asked[number] for number in numbers], got, asking=asking)
        except CommandFailedError as error:
            problem = error
        finally:
            # What did not come also replaces a passing refusal from the attempt before.
            for number, reply in zip_longest(numbers, got, fillvalue=problem):
                self.replies[number] = reply
            if any(
                isinstance(self._asked[number], Command) and _is_of_the_node(reply)
                for number, reply in zip(numbers, got, strict=False)
            ):
                self._disrupted()

    async def _is_to_repeat(self, node: Node, number: int) -> bool:
        reply = self.replies[number]
        if isinstance(reply, CommandRefusedError):
            return await self._is_passing(node, number, reply)
        # Once for each command: another node may have the slots of a node that is gone.
        if not isinstance(reply, NotSentError) or number in self._redirected:
            return False
        try:
            is_known = await self._topology.doubt(node)
            if not is_known or await self._node_of(number) is node:
                return False
        except CommandFailedError:
            return False
        self._redirected.add(number)
        return True

    async def _is_passing(self, node: Node, number: int, reply: CommandRefusedError) -> bool:
        code, *rest = str(reply).split(" ")
        try:
            match code:
                case "MOVED":
                    # The first time at once; nodes that send a command to and fro get time to agree.
                    self._is_to_wait |= number in self._redirected
                    self._redirected.add(number)
                    await self._topology.moved(rest[1], int(rest[0]), node)
                case "ASK":
                    key = _key_of(self._asked[number])
                    self._asking[number] = self._topology.asked(rest[1], key, node)
                case "NOSCRIPT":
                    one = self._asked[number]
                    if number in self._loaded or not isinstance(one, Call):
                        return False
                    self._loaded.add(number)
                    node.forget_script(one.script)
                case "READONLY":
                    self._is_to_wait = True
                    return await self._topology.doubt(node)
                case "CLUSTERDOWN":
                    self._is_to_wait = True
                    await self._topology.doubt(node)
                case _ if code in _PASSING:
                    self._is_to_wait = True
                case _:
                    return False
        except CommandFailedError as error:
            self.replies[number] = error
            return False
        return True


_MISSING = object()


def _is_of_the_node(reply: Reply) -> bool:
    """Return whether a reply refuses a command for the state of the node, or of a proxy before it."""
    if not isinstance(reply, CommandRefusedError):
        return False
    return str(reply).partition(" ")[0] not in _OF_THE_COMMAND


def _lacking_right(one: Command | Call, refusal: Exception) -> str:
    """Return where the ACL rule is documented, and which keys it must allow."""
    key = _key_of(one).decode(errors="replace")
    prefix = key.partition(":{")[0] if ":{" in key else key.rpartition(":")[0]
    why = "docs/guides/shared-index.md has the ACL rule"
    if prefix and "key" in str(refusal):
        why = f"the ACL user may not use keys under '{prefix}:'; {why}"
    return why


def _key_of(one: Command | Call) -> bytes:
    key, *_ = *one.keys, b""
    return key if isinstance(key, bytes) else str(key).encode()
