"""Every rank's ingestion into one index: ranks by (pod, number), and the slots they hold."""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

from warmpath.indexer.embedded import new_state
from warmpath.indexer.follow.instance import RankSource
from warmpath.indexer.follow.stream_source import ORPHAN_BYTES, Clock, RankIngest, SavedRank
from warmpath.indexer.index.contract import Index
from warmpath.indexer.index.slot import Place, RankName, SlotTable
from warmpath.indexer.keys.key import Chain
from warmpath.indexer.past import Past
from warmpath.indexer.rank import Rank
from warmpath.indexer.resolve.rank_slots import RankSlots
from warmpath.indexer.shared.query.index import RemoteIndex
from warmpath.indexer.shared.records.record_source import RemoteRank
from warmpath.indexer.shared.replica.run import Replica
from warmpath.indexer.trust import PROMISED_SECONDS
from warmpath.indexer.watch.watched_source import Pulse, WatchedRank

if TYPE_CHECKING:  # it needs Numba, of which an error of `embedded` tells before
    from warmpath.indexer.processes.publish import Publisher

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Rank)

TICK_SECONDS = 0.1
"""Pause between two calls of `Ingest.tick`."""

LEAST_STILL, MOST_STILL = 1.0, PROMISED_SECONDS - 1.0
"""Seconds without a turn of the loop that follows the ranks after which a rank is degraded: the most if
none of its events was late lately. What comes through a publisher may be a second old already."""

STOOD_STILL = "this router stood still, and may not have read yet what came meanwhile"

SWEEP_BUDGET = 20_000
"""Keys that each call of `Ingest.tick` searches for dropped slots: about 2 ms."""


class Ingest:
    """Every rank's ingestion into one index.

    `remote` looks up the ranks that only the shared index has (`add_shared`), if there are any.
    """

    def __init__(
        self,
        index: Index,
        *,
        hash_seed: str,
        pending_bytes: int,
        stale_after: float,
        clock: Clock,
        remote: RemoteIndex | None = None,
        past: Past | None = None,
        publisher: "Publisher | None" = None,
    ) -> None:
        self.index = index
        self.remote = remote
        self.past = past
        """What ranks held a while ago; None: not kept. With it ranks have states in pure Python."""
        self.publisher = publisher
        """Writes the ranks where other processes of this router read them; None: there are none."""
        self.slots = SlotTable(publisher)
        self.pulse = Pulse()
        """Beats with the loop that follows the ranks; without beats nobody follows them in real time."""
        self.replica: Replica | None = None
        """Copies ranks from the shared index, if any are copied."""
        self._stood_still = False
        """Whether some ranks may be limited since the loop stood still."""
        self._judged = self._due = -math.inf
        """Up to when all was read at the last judgement, and when the next one is due without a beat."""
        self._judging = Lock()
        self._hash_seed = hash_seed
        self._pending_bytes = pending_bytes
        self._stale_after = stale_after
        self._clock = clock
        self._ranks: dict[RankName, Rank] = {}
        self._slots_of: dict[RankName, RankSlots] = {}
        self._comings = 0
        """How often a rank with slots was added or removed."""

    def __iter__(self) -> Iterator[Rank]:
        # Copied at once, for readers in other threads.
        return iter(list(self._ranks.values()))

    def batch(self, pod: str, rank: int) -> int | None:
        """Return the number of a rank's last batch; None before the first, and for unknown ranks."""
        known = self.rank(pod, rank)
        return known.sequence if known else None

    def rank(self, pod: str, rank: int) -> Rank | None:
        # Each pick asks several times; a plain tuple finds the same as a name, and is made faster.
        return self._ranks.get((pod, rank))  # type: ignore[call-overload, no-any-return]

    @property
    def ranks(self) -> Mapping[RankName, Rank]:
        return self._ranks

    def life(self, pod: str, rank: int) -> int:
        """Return a number that changes when a rank's cache is emptied: at a restart, or a clear.

        May be called from any thread.
        """
        slots = self._slots_of.get(RankName(pod, rank))
        if slots:
            return slots.epoch
        return self.remote.places.life(pod, rank) if self.remote else 0

    @property
    def life_changes(self) -> int:
        """A number that grows whenever the life of any rank changes.

        May be read from any thread; the lives that are read after it are at least as new.
        """
        remote = self.remote.places.life_changes if self.remote else 0
        return self._comings + self.slots.life_changes + remote

    def lives(self, ranks: Sequence[RankName]) -> list[int]:
        """Return the life of each of these ranks, by pod and number."""
        of, life = self._slots_of.get, self.life
        return [slots.epoch if (slots := of(name)) else life(*name) for name in ranks]

    def match(self, chain: Chain, *, leading: bool = False) -> list[tuple[Place, int, int]]:
        """Return who holds which blocks of a prompt: each place, its first block and its end.

        The end is the position after the last block. `leading` is as in `Index.match`. May be called
        from any thread. Ranks of `remote` are not included: the caller asks `remote` itself.
        """
        places = self.slots.places
        while True:
            reused = self.slots.reused
            found = [
                (place, start, stop)
                for slot, start, stop in self.index.match(chain, leading=leading)
                if (place := places[slot]) is not None
            ]
            if self.slots.reused == reused:
                break
            # Since the look-up a slot's number may have been given to another place: look up again.
        return found

    def add(self, source: RankSource) -> RankIngest:
        """Begin to follow a rank. Raises ValueError where it is followed already."""
        slots = self._new_slots(source.pod, source.rank)
        state = new_state(
            source, self.index, slots, hash_seed=self._hash_seed, orphan_bytes=ORPHAN_BYTES,
            is_pure=self.past is not None,
        )  # fmt: skip
        rank = RankIngest(
            source,
            state,
            pending_bytes=self._pending_bytes,
            stale_after=self._stale_after,
            clock=self._clock,
        )
        return self._put(rank)

    def watch(self, pod: str, rank: int, *, stale_after: float | None = None) -> WatchedRank:
        """Begin to follow a rank that a publisher follows. Raises ValueError like `add`.

        `stale_after`, in seconds, replaces the ingest's own; None keeps that.
        """
        slots = self._new_slots(pod, rank)
        after = self._stale_after if stale_after is None else stale_after
        return self._put(WatchedRank(pod, rank, slots, stale_after=after, clock=self._clock))

    def add_blind(self, pod: str, rank: int) -> Rank:
        """Add a rank whose engine sends no events. Raises ValueError like `add`."""
        self._check_is_new(pod, rank)
        return self._put(Rank(pod, rank, "it has no events", self._clock))

    def add_shared(self, pod: str, rank: int, *, keyspace: str, ranks: int) -> RemoteRank:
        """Begin to look a rank up in the shared index. Raises ValueError like `add`.

        `keyspace` and `ranks` are as in `indexer.shared.records.record_source.RemoteRank`.
        """
        assert self.remote is not None
        self._check_is_new(pod, rank)
        return self._put(self.remote.add(pod, rank, keyspace=keyspace, ranks=ranks))

    def _new_slots(self, pod: str, rank: int) -> RankSlots:
        self._check_is_new(pod, rank)
        if self.publisher is not None:
            self.publisher.add(pod, rank)
        slots = self._slots_of[RankName(pod, rank)] = RankSlots(
            pod, rank, self.index, self.slots, self.past
        )
        self._comings += 1
        return slots

    def _check_is_new(self, pod: str, rank: int) -> None:
        if (pod, rank) in self._ranks:
            raise ValueError(f"pod {pod} rank {rank} is followed already")

    def _put(self, rank: R) -> R:
        self._ranks[RankName(rank.pod, rank.number)] = rank
        if self.publisher is not None and not rank.is_remote:
            rank.show = self.publisher.show
            if isinstance(rank, RankIngest):
                rank.keeper = self.publisher
            self.publisher.show(rank)
        return rank

    def save(self) -> list[SavedRank]:
        """Return the state of every rank that is followed from its engine's own events.

        A rank whose state cannot be saved is left out, and logged.
        """
        saved = []
        for rank in self._ranks.values():
            if not isinstance(rank, RankIngest):
                continue
            try:
                saved.append(rank.save())
            except Exception:
                log.exception("pod %s rank %d is not saved: a bug of ours", rank.pod, rank.number)
        return saved

    def remove(self, pod: str, rank: int) -> None:
        """Stop following a rank; it holds nothing from here on."""
        self._ranks.pop(RankName(pod, rank)).close()
        if self._slots_of.pop(RankName(pod, rank), None) is not None:
            self._comings += 1
            if self.publisher is not None:
                self.publisher.remove(pod, rank)

    def tick(self, sweep_budget: int) -> None:
        """Let time pass, sweep dropped slots, and degrade the ranks that lost keys in a full index.

        The sweep looks at no more than `sweep_budget` keys.
        """
        for rank in self._ranks.values():
            rank.tick()
        for slot in self.index.sweep(sweep_budget):
            self.slots.free(slot)
        places = filter(None, map(self.slots.place, self.index.take_losers()))
        for pod, number in {(place.pod, place.rank) for place in places}:
            self._ranks[RankName(pod, number)].lost_room()
        if self.publisher is not None:
            self.publisher.tick(self.index.stats, self)

    def beat(self) -> None:
        """Record that the loop that follows the ranks runs, and that it reads what comes."""
        now = self._clock()
        self.pulse.beat(now)
        self._judge(now)
        if self.publisher is not None:
            self.publisher.beat(self.pulse.known_until)

    def _judge(self, now: float) -> None:
        """Limit the ranks that the loop may be behind, since it stood still, or lift that limit."""
        known = self.pulse.known_until
        if not self.pulse.is_known or (known == self._judged and now <= self._due):
            return
        if not self._stood_still and now <= known + LEAST_STILL:
            return
        with self._judging:
            # Of a thread that answers and the loop, which may just have gone on, the loop is right.
            known = self.pulse.known_until
            self._judged, self._due = known, math.inf
            self._stood_still = now > known + LEAST_STILL
            for rank in list(self._ranks.values()):
                # An event that was late already may be so much older.
                due = known + max(LEAST_STILL, MOST_STILL - rank.lag_seconds)
                rank.limit(STOOD_STILL if now > due else "", STOOD_STILL)
                if now <= due:
                    self._due = min(self._due, due)

    def expire(self) -> None:
        """Degrade the ranks whose view may be older than `PROMISED_SECONDS`; call it before each answer.

        Any thread may call it. Mostly nothing is due, and it only looks at the clock.
        """
        now = self._clock()
        self._judge(now)
        if self.replica is not None and now > self.replica.due:
            self.replica.expire(now)
        if self.remote is not None and now > self.remote.due:
            self.remote.expire(now)
