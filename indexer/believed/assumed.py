"""Blocks that ranks without events are assumed to hold, since prompts with them were sent there."""

import heapq
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf

from warmpath.indexer.believed.slots import Belief, BeliefSlots


@dataclass(slots=True)
class _Rank:
    slot: int
    times: OrderedDict[int, float] = field(default_factory=OrderedDict)
    """When each key was last assumed: the earliest first, a prompt's tail before its head."""

    @property
    def earliest(self) -> float:
        return next(iter(self.times.values()))


class Assumed:
    """All ranks' assumed blocks. Times never go back (`indexer.believed.beliefs`)."""

    def __init__(self, slots: BeliefSlots) -> None:
        self.blocks = 0
        self._slots = slots
        self._ranks: dict[Belief, _Rank] = {}
        self._earliest: list[tuple[float, int]] = []
        """A heap with one entry a rank: a time no later than its earliest key's, and its slot."""

    def add(self, pod: str, rank: int, keys: Sequence[int], time: float, capacity: int) -> None:
        """Assume a prompt's blocks on a rank, at most `capacity` in all: the least recent ones go."""
        belief = Belief(pod, rank, "assumed")
        assumed = self._ranks.get(belief)
        if assumed is None:
            if not keys:
                return
            assumed = self._ranks[belief] = _Rank(self._slots.claim(belief))
            heapq.heappush(self._earliest, (time, assumed.slot))
        times = assumed.times
        before = len(times)
        move_to_end = times.move_to_end
        for key in reversed(keys):
            times[key] = time
            move_to_end(key)
        if (over := len(times) - capacity) > 0:
            self._slots.index.remove(
                assumed.slot, [times.popitem(last=False)[0] for _ in range(over)]
            )
        self._slots.index.add(assumed.slot, keys)
        self.blocks += len(times) - before

    def count(self, pod: str, rank: int) -> int:
        assumed = self._ranks.get(Belief(pod, rank, "assumed"))
        return len(assumed.times) if assumed else 0

    def let_go(self, most: int, until: float = inf) -> None:
        """Drop up to `most` blocks last assumed at `until` or before, the least recent first."""
        earliest = self._earliest
        while most > 0 and earliest and earliest[0][0] <= until:
            slot = heapq.heappop(earliest)[1]
            belief = self._slots.belief(slot)
            assert belief is not None
            assumed = self._ranks[belief]
            # Blocks assumed later than this come after another rank's earliest one.
            turn = min(until, earliest[0][0]) if earliest else until
            gone = []
            for key, time in islice(assumed.times.items(), most):
                if time > turn:
                    break
                gone.append(key)
            for key in gone:
                del assumed.times[key]
            self._slots.index.remove(slot, gone)
            self.blocks -= len(gone)
            most -= len(gone)
            if assumed.times:
                heapq.heappush(earliest, (assumed.earliest, slot))
            else:
                del self._ranks[belief]
                self._slots.release(slot)

    def forget(self, pod: str, rank: int) -> None:
        assumed = self._ranks.pop(Belief(pod, rank, "assumed"), None)
        if assumed is None:
            return
        self.blocks -= len(assumed.times)
        self._earliest = [entry for entry in self._earliest if entry[1] != assumed.slot]
        heapq.heapify(self._earliest)
        self._slots.drop(assumed.slot)
