"""Picks of one prompt that come together are placed together.

Samples of one prompt (n-sampling, groups of reinforcement learning) come as requests of their own.
One after the other each would go wherever it waits least, and make a cold copy of the prompt there. A
pick that may wait a moment for its siblings is placed with them: a pod takes `size` of them, which
share one prefill, before the next pod gets any.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from router.pick import Ask, Choice, Picker

Chosen = tuple[str, Choice]
"""What reports call a pick, and the choice."""


@dataclass(slots=True)
class _Group:
    ask: Ask
    members: list[asyncio.Future[Chosen]] = field(default_factory=list)


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

    async def choose(self, ask: Ask) -> Chosen:
        """Choose for a request. Raises like `Picker.choose`."""
        if not self._seconds or ask.shadow or ask.disaggregated:
            return self._picker.choose(ask, self._clock())
        name = (ask.prompt, ask.policy, tuple(pod.id for pod in ask.pods))
        loop = asyncio.get_running_loop()
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = _Group(ask)
            loop.call_later(self._seconds, self._place, name)
        member: asyncio.Future[Chosen] = loop.create_future()
        group.members.append(member)
        return await member

    def _place(self, name: object) -> None:
        group = self._groups.pop(name)
        # A caller that went away wants no pick.
        members = [one for one in group.members if not one.done()]
        for start in range(0, len(members), self._size):
            self._place_some(group.ask, members[start : start + self._size])

    def _place_some(self, ask: Ask, members: list[asyncio.Future[Chosen]]) -> None:
        """Place so many on one pod."""
        now = self._clock()
        try:
            booking_id, choice = self._picker.choose(ask, now)
            members[0].set_result((booking_id, choice))
            there = replace(ask, pods=[choice.options[0].pod])
            for member in members[1:]:
                booking_id, _ = self._picker.choose(there, now)
                member.set_result((booking_id, choice))
        except Exception as error:  # noqa: BLE001  whatever it is, each caller is told
            for member in members:
                if not member.done():
                    member.set_exception(error)
