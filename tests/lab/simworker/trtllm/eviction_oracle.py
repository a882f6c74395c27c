"""The eviction policy, written slowly but simply: one list of all free blocks."""

from dataclasses import dataclass, field

DEFAULT = 35


@dataclass
class Free:
    block_id: int
    level: int
    priority: int
    place: int
    expires: float | None = None


@dataclass
class EvictionOracle:
    """Blocks are numbers here; `place` orders those of one level and priority."""

    free: list[Free] = field(default_factory=list)
    priorities: dict[int, int] = field(default_factory=dict)
    durations: dict[int, int | None] = field(default_factory=dict)
    places: int = 0

    def release(self, block_id: int, level: int, now: float, *, to_front: bool) -> None:
        self.places += 1
        priority = self.priorities.get(block_id, DEFAULT)
        duration = self.durations.get(block_id)
        ends = now + duration / 1000 if duration is not None and priority != DEFAULT else None
        place = -self.places if to_front else self.places
        self.free.append(Free(block_id, level, priority, place, ends))

    def claim(self, block_id: int, priority: int | None, duration: int | None) -> None:
        self.free = [one for one in self.free if one.block_id != block_id]
        if priority is not None:
            self.priorities[block_id] = priority
        self.durations[block_id] = duration

    def refresh(self, now: float) -> None:
        ended = [one for one in self.free if one.expires is not None and one.expires <= now]
        for one in sorted(ended, key=lambda one: (one.expires, one.block_id)):
            self.places += 1
            one.priority, one.place, one.expires = DEFAULT, self.places, None
            self.priorities[one.block_id] = DEFAULT

    def next(self, level: int) -> int | None:
        waiting = [one for one in self.free if one.level == level]
        return min(waiting, key=lambda one: (one.priority, one.place)).block_id if waiting else None

    def count(self, level: int) -> int:
        return sum(one.level == level for one in self.free)
