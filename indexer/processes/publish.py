"""Writes the ranks into the memory that several processes have, in the one that follows them."""

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from threading import Lock, get_ident
from typing import Any

import msgspec
from msgspec.structs import replace

from warmpath.indexer.compiled import memory as words
from warmpath.indexer.compiled.memory import ROWS, SLOTS, Memory
from warmpath.indexer.compiled.steps import begin, end
from warmpath.indexer.follow.stream_source import Keeper, RankIngest
from warmpath.indexer.index.contract import IndexStats
from warmpath.indexer.index.slot import Place, RankName, Watcher
from warmpath.indexer.processes import rows
from warmpath.indexer.processes.rows import Facts, groups_of, word_of
from warmpath.indexer.rank import Rank
from warmpath.indexer.stream.machine import StreamState
from warmpath.indexer.trust import Level
from warmpath.process.logs import shortened

log = logging.getLogger(__name__)

MOST_REASON = 2000
"""The most characters of a trust's reason in a row."""
MOST_ODD = 64
"""Odd names of a rank (`compiled.names`) up to which they are saved whenever they change."""


STATS_EACH = 10
"""Ticks between two looks at the figures of the index."""


TAKE_OVER_SECONDS = 5.0
"""Longest time that others read the old half after its writer has ended."""
CLEAR_SECONDS = 1.0
"""Seconds after which nobody looks into the old half any more."""


class Publisher(Watcher, Keeper):
    """Publishes ranks. One thread follows them; `show` may be called from any."""

    def __init__(self, memory: Memory, clock: Callable[[], float]) -> None:
        self.memory = memory
        self._clock = clock
        self._row_of: dict[RankName, int] = {}
        self._free = list(range(ROWS - 1, -1, -1))
        self._numbers = memory.rows.view("<i8")
        self._lock = Lock()
        self._shown: dict[int, tuple[Any, ...]] = {}
        """What makes new facts of a rank, as they were when its facts were written, by its row."""
        self._saved: dict[int, tuple[Any, ...]] = {}
        self._life_of: dict[RankName, int] = {}
        self._ticks = 0
        self._thread = get_ident()
        """The thread that follows the ranks."""
        self._old: Memory | None = None
        self._heirs: set[RankName] = set()
        self._begun = self._over = clock()
        memory.head[words.WRITER] = os.getpid()

    def add(self, pod: str, rank: int) -> None:
        """Give a rank a row. Raises ValueError where there are too many ranks."""
        self._thread = get_ident()
        if not self._free:
            raise ValueError(f"several processes follow at most {ROWS} ranks")
        row = self._row_of[RankName(pod, rank)] = self._free.pop()
        numbers = self._numbers[row]
        numbers[rows.GENERATION] += 1
        numbers[rows.FACTS : rows.OWN + 1] = 0

    def remove(self, pod: str, rank: int) -> None:
        row = self._row_of.pop(RankName(pod, rank))
        self._shown.pop(row, None)
        self._saved.pop(row, None)
        self._life_of.pop(RankName(pod, rank), None)
        begin(self.memory.versions, row)
        self._numbers[row, rows.FACTS : rows.OWN + 1] = 0
        end(self.memory.versions, row)
        self._told()
        self._free.insert(0, row)

    # Slots

    def placed(self, slot: int, place: Place | None) -> None:
        if slot >= SLOTS:
            raise ValueError(f"several processes have at most {SLOTS} slots")
        word = 0
        if place is not None:
            row = self._row_of[place.name]
            word = word_of(place, row, int(self._numbers[row, rows.GENERATION]))
        self.memory.places[slot] = word

    def named(self, name: RankName, names: Any, numbers: Any) -> None:
        row = self._row_of.get(name)
        if row is not None:
            where = (0, 0, 0)
            if names is not None:
                offset_of = self.memory.offset_of
                where = offset_of(names), offset_of(numbers), len(names)
            self._numbers[row, rows.NAMES : rows.OWN + 1] = where

    # Ranks

    def lived(self, name: RankName, life: int) -> None:
        self._life_of[name] = life

    def show(self, rank: Rank) -> None:
        """Write a rank's facts, where any of them have changed."""
        row = self._row_of.get(RankName(rank.pod, rank.number))
        if row is None:
            return
        with self._lock:
            layout = rank.layout
            life = self._life_of.get(RankName(rank.pod, rank.number), 0)
            key = (
                life, rank.trust, rank.is_connected, rank.sequence, layout, rank.capacity,
                rank.lag_batches, rank.lag_seconds, rank.blocks(),
            )  # fmt: skip
            before = self._shown.get(row)
            if before == key:
                return
            self._shown[row] = key
            self._write(row, self._facts(rank, life))
            if before is None or before[0] != life:
                # Only now: a reader who sees this finds the new life.
                self.memory.head[words.LIVES] += 1

    def _facts(self, rank: Rank, life: int) -> Facts:
        trust, layout, orphans = rank.trust, rank.layout, rank.orphans
        return Facts(
            rank.pod,
            rank.number,
            trust.level,
            shortened(trust.reason, MOST_REASON),
            trust.since,
            rank.is_connected,
            rank.lost_at,
            rank.inexact_since,
            groups_of(layout),
            layout.lookahead,
            rank.sequence,
            rank.capacity,
            rank.blocks_in_use(),
            life,
            rank.lag_seconds,
            rank.lag_batches,
            rank.adapters,
            dict(rank.blocks()),
            dict(rank.counts()),
            None if orphans is None else (orphans.bytes, orphans.dropped),
        )

    def _write(self, row: int, facts: Facts) -> None:
        packed = msgspec.msgpack.encode(facts)
        if len(packed) > rows.FACTS_BYTES:
            packed = msgspec.msgpack.encode(replace(facts, groups={}, reason=""))
        begin(self.memory.versions, row)
        self._put(row, rows.FACTS_AT, packed)
        self._numbers[row, rows.FACTS] = len(packed)
        end(self.memory.versions, row)
        self._told()

    def _put(self, row: int, at: int, packed: bytes) -> None:
        self.memory.rows[row, at : at + len(packed)] = memoryview(packed)

    def _told(self) -> None:
        self.memory.head[words.FACTS] += 1

    def tick(self, stats: Callable[[], IndexStats], ranks: Iterable[Rank]) -> None:
        """Write the figures of all ranks, and now and then those of the index, which take longer."""
        ranks = list(ranks)
        self._take_over(ranks)
        if self._ticks % STATS_EACH == 0:
            head, now = self.memory.head, stats()
            head[words.EVICTED], head[words.USED] = now.evicted, now.bytes
            head[words.MOST] = now.max_bytes
        self._ticks += 1
        for rank in ranks:
            self.show(rank)

    def beat(self, known_until: float) -> None:
        """Write up to when all events were taken."""
        self.memory.times[words.KNOWN] = known_until

    def ready(self) -> None:
        """Say that all pods of the shared index were copied, or a reading has failed."""
        self.memory.head[words.READY] = 1

    # After another process

    def begin(self, old: Memory | None, heirs: Iterable[RankName]) -> None:
        """Let others read from now on; where they read an `old` half, once the `heirs` are followed."""
        self._old, self._heirs = old, set(heirs)
        if old is None:
            self.memory.file.read(self.memory.half)

    def _take_over(self, ranks: Sequence[Rank]) -> None:
        """Let others read this half once it shows what the old one did; then clear that one.

        What does not come within TAKE_OVER_SECONDS, of pods that are away, is not waited for.
        """
        if self._old is None:
            return
        now = self._clock()
        if self.memory.file.current == self.memory.half:
            if now - self._over > CLEAR_SECONDS:
                self._old.clear()
                self._old = None
            return
        there = {RankName(rank.pod, rank.number) for rank in ranks if _is_followed(rank)}
        if self._heirs <= there or now - self._begun > TAKE_OVER_SECONDS:
            for rank in ranks:
                self.show(rank)
            self._over = now
            self.memory.file.read(self.memory.half)
            log.info(
                "the other processes read the index of this one now, after %.1f s",
                now - self._begun,
            )

    # For a successor

    def begins(self, rank: RankIngest) -> None:
        """Mark a rank whose batch is about to be applied, or whose state is to change otherwise."""
        self._thread = get_ident()
        row = self._row_of.get(RankName(rank.pod, rank.number))
        if row is not None:
            self._numbers[row, rows.IS_AT_WORK] = 1

    def ends(self, rank: RankIngest) -> None:
        """Keep a rank's position, its batches being applied, and its state if that has changed."""
        row = self._row_of.get(RankName(rank.pod, rank.number))
        if row is None or get_ident() != self._thread:
            # A thread that answers has limited the trust, perhaps while a batch is being applied.
            return
        key = rank.kept
        if self._saved.get(row) != key:
            self._saved[row] = key
            self._save(row, rank)
        numbers = self._numbers[row]
        following, digest = rank.stream.position
        row_words = numbers.view("<u8")
        row_words[rows.NEXT : rows.CHECK + 1] = following, digest, following ^ digest
        numbers[rows.IS_AT_WORK] = 0

    def _save(self, row: int, rank: RankIngest) -> None:
        saved = rank.save(plain=False)
        lacks = rank.state.odd > MOST_ODD
        if not lacks:
            packed = msgspec.msgpack.encode(saved)
            lacks = len(packed) > rows.SAVED_BYTES
        if lacks:
            bare = replace(saved.resolver, keys={}, earlier={}, above={}, holdings=[])
            packed = msgspec.msgpack.encode(replace(saved, resolver=bare))[: rows.SAVED_BYTES]
        numbers = self._numbers[row]
        place = 1 - int(numbers[rows.PLACE])
        self._put(row, rows.SAVED_AT[place], len(packed).to_bytes(8, "little") + packed)
        numbers[rows.LACKS] |= lacks
        numbers[rows.PLACE] = place
        numbers[rows.LACKS] = lacks


def _is_followed(rank: Rank) -> bool:
    """Return whether a rank's stream has gone on where another process left it, replays included."""
    if isinstance(rank, RankIngest):
        return rank.is_connected and rank.stream.state is StreamState.FOLLOWING
    return rank.trust.level is not Level.COLD
