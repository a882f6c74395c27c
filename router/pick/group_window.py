"""Places picks of one prompt that arrive within a short window on the same rank.

Samples of one prompt (n-sampling, groups of reinforcement learning) arrive as separate requests. Pick
one by one, each would go to the rank with the shortest wait and compute the prompt there again. With a
window, a pick waits a moment for its siblings; `size` of them go to one rank and share one prefill
before another rank gets any. The policy chooses for the first of each `size`; the others follow it, so
they may exceed the policy's load margin.

Each pick is weighed and booked on its own, with its own session and fall-backs.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from warmpath.indexer.index.slot import RankName
from warmpath.router.pick.pick import Pick
from warmpath.router.pick.picker import Picker
from warmpath.router.pick.weigh import Ask
from warmpath.router.tracing.steps import NO_STEPS, Step, Steps


@dataclass(slots=True, eq=False)
class _Member:
    ask: Ask
    chosen: asyncio.Future[Pick]


@dataclass(slots=True, eq=False)
class _Group:
    closing: asyncio.TimerHandle
    members: list[_Member] = field(default_factory=list)


class GroupWindow:
    """Collects picks for at most `seconds`, then makes them together; at once if `seconds` is 0."""

    def __init__(
        self,
        picker: Picker,
        *,
        seconds: float,
        size: int,
        clock: Callable[[], float],
        steps: Steps = NO_STEPS,
    ) -> None:
        self._steps = steps
        self._picker = picker
        self._seconds = seconds
        self._size = size
        self._clock = clock
        self._groups: dict[object, _Group] = {}

    def __len__(self) -> int:
        """Return the number of waiting groups."""
        return len(self._groups)

    async def choose(self, ask: Ask) -> Pick:
        """Reserve a pick for a request, like `Picker.reserve`, after waiting for its siblings."""
        if not self._seconds or ask.shadow or ask.wanted.disaggregated:
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
            with self._steps.step(Step.GROUP):
                return await member.chosen
        except asyncio.CancelledError:
            if member.chosen.cancelled():
                self._leave(name, group, member)
            elif member.chosen.exception() is None:
                # It was placed in the same turn of the loop in which its caller was cancelled.
                self._picker.withdraw(member.chosen.result(), self._clock())
            raise

    def _leave(self, name: object, group: _Group, member: _Member) -> None:
        """Remove a member from its group, and the group if it is empty then."""
        if self._groups.get(name) is group:
            group.members.remove(member)
            if not group.members:
                group.closing.cancel()
                del self._groups[name]

    def _close(self, name: object) -> None:
        """Close a group to further members and place it."""
        self._place(self._groups.pop(name).members)

    def _place(self, members: list[_Member]) -> None:
        """Place the first `size` members on one rank, and the others in the loop's next turn."""
        # Members whose caller was cancelled are done already.
        wanted = [one for one in members if not one.chosen.done()]
        rank: RankName | None = None
        for member in wanted[: self._size]:
            try:
                chosen = self._picker.reserve(replace(member.ask, beside=rank), self._clock())
            except Exception as error:  # noqa: BLE001  the caller gets it
                member.chosen.set_exception(error)
            else:
                member.chosen.set_result(chosen)
                rank = rank or chosen.picked
        if len(wanted) > self._size:
            # Other calls get a turn, since a group may have hundreds of members.
            asyncio.get_running_loop().call_soon(self._place, wanted[self._size :])
