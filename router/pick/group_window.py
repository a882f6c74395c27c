"""Picks of one prompt that come together are placed together.

Samples of one prompt (n-sampling, groups of reinforcement learning) come as requests of their own.
One after the other each would go wherever it waits least, and make a cold copy of the prompt there. A
pick that may wait a moment for its siblings is placed with them: a rank takes `size` of them, which
share one prefill, before another gets any. The policy chooses for the first of these; the others
follow it, and so may lie past the policy's load margin.

Each is weighed and booked as a pick of its own, with its own session and its own fall-backs.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from indexer.invariant import BrokenInvariantError
from router.pick.pending import Placed
from router.pick.picker import Picker
from router.pick.weigh import Ask, Choice

Chosen = tuple[Placed, Choice]
"""A pick, and the choice."""


@dataclass(slots=True, eq=False)
class _Member:
    ask: Ask
    told: asyncio.Future[Chosen]


@dataclass(slots=True, eq=False)
class _Group:
    closing: asyncio.TimerHandle
    members: list[_Member] = field(default_factory=list)


class GroupWindow:
    """Chooses, after at most `seconds`; at once where that is 0."""

    def __init__(
        self, picker: Picker, *, seconds: float, size: int, clock: Callable[[], float]
    ) -> None:
        self._picker = picker
        self._seconds = seconds
        self._size = size
        self._clock = clock
        self._groups: dict[object, _Group] = {}

    def __len__(self) -> int:
        """Return how many groups wait."""
        return len(self._groups)

    async def choose(self, ask: Ask) -> Chosen:
        """Choose for a request whose answer is still to be written. Like `Picker.reserve`."""
        if not self._seconds or ask.shadow or ask.disaggregated:
            return self._picker.reserve(ask, self._clock())
        name = (ask.prompt, ask.policy, frozenset(pod.id for pod in ask.pods))
        loop = asyncio.get_running_loop()
        group = self._groups.get(name)
        if group is None:
            closing = loop.call_later(self._seconds, self._close, name)
            group = self._groups[name] = _Group(closing)
        member = _Member(ask, loop.create_future())
        group.members.append(member)
        try:
            return await member.told
        except asyncio.CancelledError:
            if member.told.cancelled():
                self._leave(name, group, member)
            elif member.told.exception() is None:
                # Placed in the very turn in which its caller went away.
                self._picker.withdraw(member.told.result()[0], self._clock())
            raise

    def _leave(self, name: object, group: _Group, member: _Member) -> None:
        """Let a member's place go, and its group where it was the last one."""
        if self._groups.get(name) is group:
            group.members.remove(member)
            if not group.members:
                group.closing.cancel()
                del self._groups[name]

    def _close(self, name: object) -> None:
        """Place a group, which gets no more members."""
        self._place(self._groups.pop(name).members)

    def _place(self, members: list[_Member]) -> None:
        """Place as many as one rank takes, and leave the others to the loop's next turn."""
        # A caller that went away wants no pick.
        wanted = [one for one in members if not one.told.done()]
        rank: tuple[str, int] | None = None
        for member in wanted[: self._size]:
            try:
                chosen = self._picker.reserve(replace(member.ask, beside=rank), self._clock())
            except Exception as error:  # noqa: BLE001  whatever it is, its caller is told
                member.told.set_exception(error)
            else:
                member.told.set_result(chosen)
                best = chosen[1].options[0]
                rank = rank or (best.pod.id, best.rank.number)
        if len(wanted) > self._size:
            # Other calls get their turn: a group may be of hundreds.
            asyncio.get_running_loop().call_soon(self._place, wanted[self._size :])

    def check(self) -> None:
        """Raise BrokenInvariantError where a group has no members, or one that was answered."""
        for group in self._groups.values():
            if not group.members:
                raise BrokenInvariantError("a group without members waits")
            if any(one.told.done() and not one.told.cancelled() for one in group.members):
                raise BrokenInvariantError("a member that was answered waits")
