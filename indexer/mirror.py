"""The ranks that another process of this router follows, as this process reads them in their memory."""

import math
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from warmpath.indexer.compiled import memory as words
from warmpath.indexer.compiled.elsewhere import IndexElsewhere
from warmpath.indexer.compiled.memory import File, Memory
from warmpath.indexer.compiled.steps import is_at, version_of
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.index.contract import Index
from warmpath.indexer.index.slot import Place, RankName
from warmpath.indexer.keys.key import Chain
from warmpath.indexer.processes import rows
from warmpath.indexer.processes.rows import GENERATIONS, Facts, layout_of, place_of, row_of
from warmpath.indexer.rank import Rank
from warmpath.indexer.ranks import Ingest
from warmpath.indexer.shared.query.index import RemoteIndex
from warmpath.indexer.trust import Trust
from warmpath.indexer.watch.watched_source import Pulse

UNFOLLOWED = "the process of this router that follows it has not begun to"
"""The reason of a rank that has no row."""


MOST_PLACES = 1 << 16
"""Remembered places, those of lives that are over included."""


class Waiting(msgspec.Struct):
    """A rank's stores that wait for their parent, as `indexer.index.orphans.Orphans` tells of them."""

    bytes: int
    dropped: int


class MirroredRank(Rank):
    """A rank as the process that follows it shows it."""

    has_events = True

    def __init__(self, pod: str, number: int, clock: Callable[[], float]) -> None:
        super().__init__(pod, number, UNFOLLOWED, clock)
        self._unfollowed = self.trust
        self._facts: Facts | None = None

    def take(self, facts: Facts | None) -> None:
        """Show what the other process tells; None: it does not follow the rank."""
        before, self._facts = self._facts, facts
        if facts is None:
            self.is_connected, self.sequence = False, None
            self.believe(self._unfollowed)
        else:
            if before is None or (before.groups, before.lookahead) != (
                facts.groups,
                facts.lookahead,
            ):
                self.layout = layout_of(facts)
            self._capacity, self._blocks_in_use = facts.capacity, facts.in_use
            self.is_connected, self.lost_at = facts.is_connected, facts.lost_at
            self.sequence = facts.sequence
            self.believe(Trust(facts.level, facts.reason, facts.since))
            self.inexact_since = facts.inexact_since
        # The process that follows it writes the log.
        self._logged = self.trust

    def learn_capacity(self, blocks: int) -> None:
        """Leave it, like `emptied`, to the process that follows the rank."""

    def emptied(self, reason: str) -> None:
        pass

    @property
    def life(self) -> int:
        return self._facts.life if self._facts else 0

    @property
    def lag_seconds(self) -> float:
        return self._facts.lag_seconds if self._facts else 0.0

    @property
    def lag_batches(self) -> int:
        return self._facts.lag_batches if self._facts else 0

    @property
    def adapters(self) -> int:
        return self._facts.adapters if self._facts else 0

    @property
    def orphans(self) -> Any:
        return Waiting(*self._facts.orphans) if self._facts and self._facts.orphans else None

    def blocks(self) -> Mapping[Tier, int]:
        return self._facts.blocks if self._facts else {}

    def counts(self) -> Mapping[str, int]:
        return self._facts.counts if self._facts else {}


class PulseElsewhere(Pulse):
    """Up to when the process that follows the ranks has taken all events."""

    def __init__(self, index: IndexElsewhere) -> None:
        super().__init__()
        self._index = index

    @property
    def is_known(self) -> bool:
        return self.known_until > -math.inf

    @property
    def known_until(self) -> float:
        memory = self._index.memory
        return (float(memory.times[words.KNOWN]) or -math.inf) if memory else -math.inf


class Mirror(Ingest):
    """The ranks of a pod that another process follows (`mirror`), and its index.

    Ranks without events, and those of the shared index that are asked for with each prompt, are this
    process's own.
    """

    def __init__(
        self,
        file: File,
        *,
        hash_seed: str,
        clock: Callable[[], float],
        remote: RemoteIndex | None = None,
    ) -> None:
        self._elsewhere = IndexElsewhere(file, clock)
        super().__init__(
            # It reads, and what Ingest writes to an index is all overridden here.
            cast("Index", self._elsewhere),
            hash_seed=hash_seed,
            pending_bytes=0,
            stale_after=math.inf,
            clock=clock,
            remote=remote,
        )
        self.pulse = PulseElsewhere(self._elsewhere)
        self._lock = Lock()
        self._memory: Memory | None = None
        self._told = -1
        """How often rows had been written when they were read last."""
        self._versions: NDArray[np.int64] = np.zeros(words.ROWS, np.int64)
        self._rank_of: dict[int, tuple[int, RankName]] = {}
        """The generation and the rank of each row."""
        self._facts: dict[RankName, Facts] = {}
        self._places: dict[int, Place] = {}
        """Places by their words."""

    def mirror(self, pod: str, number: int) -> Rank:
        """Begin to show a rank. Raises ValueError where there is one of that name."""
        self._check_is_new(pod, number)
        rank = MirroredRank(pod, number, self._clock)
        with self._lock:
            rank.take(self._facts.get(RankName(pod, number)))
            return self._put(rank)

    def match(self, chain: Chain, *, leading: bool = False) -> list[tuple[Place, int, int]]:
        while True:
            self.refresh()
            memory, changes = self._memory, self._told
            stretches = self._elsewhere.match(chain, leading=leading)
            found = []
            for word, start, stop in stretches:
                place = self._places.get(word) or self._place(word)
                if place is not None:
                    found.append((place, start, stop))
            if self._elsewhere.memory is memory and (
                len(found) == len(stretches) or self._told == changes
            ):
                return found

    def _place(self, word: int) -> Place | None:
        row, generation = row_of(word)
        known = self._rank_of.get(row)
        if known is None or known[0] != generation:
            self.refresh()
            return None
        if len(self._places) >= MOST_PLACES:
            self._places.clear()
        place = self._places[word] = place_of(word, *known[1])
        return place

    def life(self, pod: str, rank: int) -> int:
        known = self._ranks.get(RankName(pod, rank))
        return known.life if isinstance(known, MirroredRank) else super().life(pod, rank)

    @property
    def life_changes(self) -> int:
        memory = self._elsewhere.memory
        elsewhere = (memory.half + 1, int(memory.head[words.LIVES])) if memory else (0, 0)
        return super().life_changes + (elsewhere[0] << 32) + elsewhere[1]

    def expire(self) -> None:
        self.refresh()
        super().expire()

    def tick(self, sweep_budget: int) -> None:
        del sweep_budget
        self.refresh()

    def beat(self) -> None:
        self._judge(self._clock())

    def refresh(self) -> None:
        """Read the rows that were written since they were read last."""
        memory = self._elsewhere.memory
        if memory is None or (memory is self._memory and self._told == memory.head[words.FACTS]):
            return
        with self._lock:
            before: Mapping[RankName, Facts] = {}
            if memory is not self._memory:
                self._memory = memory
                self._versions[:] = 0
                self._rank_of.clear()
                self._places.clear()
                before, self._facts = self._facts, {}
            told = int(memory.head[words.FACTS])
            is_whole = True
            for row in np.flatnonzero(memory.versions != self._versions).tolist():
                is_whole = self._read(memory, row) and is_whole
            self._told = told if is_whole else -1
            for name in before.keys() - self._facts.keys():
                self._take(name, None)

    def _read(self, memory: Memory, row: int) -> bool:
        """Read a row; return False where it is just being written."""
        version = version_of(memory.versions, row)
        numbers = memory.rows[row].view("<i8")
        size, generation = int(numbers[rows.FACTS]), int(numbers[rows.GENERATION])
        packed = memory.rows[row, rows.FACTS_AT : rows.FACTS_AT + size].tobytes()
        if version & 1 or not is_at(memory.versions, row, version):
            return False
        self._versions[row] = version
        facts = msgspec.msgpack.decode(packed, type=Facts) if size else None
        name = RankName(facts.pod, facts.number) if facts else None
        known = self._rank_of.get(row)
        if known is not None and known[1] != name:
            del self._rank_of[row]
            if self._facts.pop(known[1], None) is not None:
                self._take(known[1], None)
        if facts is not None and name is not None:
            self._rank_of[row] = generation % GENERATIONS, name
            self._facts[name] = facts
            self._take(name, facts)
        return True

    def _take(self, name: RankName, facts: Facts | None) -> None:
        rank = self._ranks.get(name)
        if isinstance(rank, MirroredRank):
            rank.take(facts)

    def is_settled(self) -> bool:
        """Return whether the process that follows the ranks has copied those of the shared index."""
        memory = self._elsewhere.memory
        return memory is not None and bool(memory.head[words.READY])
