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
from dataclasses import dataclass, replace

from indexer.index import BrokenInvariantError
from router.pick import Picker
from router.weigh import Ask, Choice

Chosen = tuple[str, Choice]
"""What reports call a pick, and the choice."""


@dataclass(slots=True)
class _Member:
    ask: Ask
    told: asyncio.Future[Chosen]


class GroupWindow:
    """Chooses, after at most `seconds`; at once where that is 0."""

    def __init__(
        self, picker: Picker, *, seconds: float, size: int, clock: Callable[[], float]
    ) -> None:
        self._picker = picker
        self._seconds = seconds
        self._size = size
        self._clock = clock
        self._groups: dict[object, list[_Member]] = {}

    def __len__(self) -> int:
        """Return how many groups wait."""
        return len(self._groups)

    async def choose(self, ask: Ask) -> Chosen:
        """Choose for a request. Raises like `Picker.choose`."""
        if not self._seconds or ask.shadow or ask.disaggregated:
            return self._picker.choose(ask, self._clock())
        name = (ask.prompt, ask.policy, frozenset(pod.id for pod in ask.pods))
        loop = asyncio.get_running_loop()
        if name not in self._groups:
            self._groups[name] = []
            loop.call_later(self._seconds, self._close, name)
        member = _Member(ask, loop.create_future())
        self._groups[name].append(member)
        try:
            return await member.told
        except asyncio.CancelledError:
            # Placed in the very turn in which its caller went away.
            if not member.told.cancelled() and member.told.exception() is None:
                self._picker.ended(member.told.result()[0], "failed", self._clock())
            raise

    def _close(self, name: object) -> None:
        """Place a group, which gets no more members."""
        self._place(self._groups.pop(name))

    def _place(self, members: list[_Member]) -> None:
        """Place as many as one rank takes, and leave the others to the loop's next turn."""
        # A caller that went away wants no pick.
        wanted = [one for one in members if not one.told.done()]
        rank: tuple[str, int] | None = None
        for member in wanted[: self._size]:
            try:
                chosen = self._picker.choose(replace(member.ask, beside=rank), self._clock())
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
        for members in self._groups.values():
            if not members:
                raise BrokenInvariantError("a group without members waits")
            if any(one.told.done() and not one.told.cancelled() for one in members):
                raise BrokenInvariantError("a member that was answered waits")
