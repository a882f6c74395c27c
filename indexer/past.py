"""Remembers the last changes of ranks' caches, to tell what a rank held a while ago.

An access log tells of a request when its answer has ended. By then its pod holds all of its prompt.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from typing import NamedTuple

import numpy as np

from warmpath.indexer.index.slot import Place, RankName
from warmpath.indexer.keys.key import WORD_BYTES, unpack_words
from warmpath.indexer.rank import Rank
from warmpath.indexer.trust import Level

MOST_KEYS = 1 << 20
"""Keys in all remembered changes, of up to 200 bytes each; the oldest are forgotten."""


class _Change(NamedTuple):
    at: float
    place: Place
    is_added: bool


class Past:
    """The last changes of all ranks. Any thread may call it; `clock` is the ingest's, in seconds."""

    def __init__(self, clock: Callable[[], float], most_keys: int = MOST_KEYS) -> None:
        self._clock = clock
        self._most_keys = most_keys
        self._lock = Lock()
        self._changes: deque[tuple[_Change, Sequence[int]]] = deque()
        self._of_key: defaultdict[int, deque[_Change]] = defaultdict(deque)
        """The changes of each key, the oldest first."""
        self._keys = 0
        self._since = clock()
        """The time before which no change is known."""
        self._begun: dict[RankName, float] = {}
        """Since when each rank's changes are known."""

    def begin(self, rank: RankName) -> None:
        """Know nothing of a rank's cache before now: it is new, was emptied, or is read as a whole."""
        self._begun[rank] = self._clock()

    def changed(self, place: Place, keys: Sequence[int], *, is_added: bool) -> None:
        """Remember that a place holds these keys from now on, or holds them no longer."""
        change = _Change(self._clock(), place, is_added)
        with self._lock:
            self._changes.append((change, keys))
            self._keys += len(keys)
            for key in keys:
                self._of_key[key].append(change)
            while self._keys > self._most_keys:
                oldest, gone = self._changes.popleft()
                self._keys -= len(gone)
                self._since = oldest.at
                for key in gone:
                    self._of_key[key].popleft()
                    if not self._of_key[key]:
                        del self._of_key[key]

    def knows(self, rank: Rank, at: float) -> bool:
        """Return whether all changes of a rank since a time are known, as it has been exact since."""
        trust = rank.trust
        begun = self._begun.get(RankName(rank.pod, rank.number))
        return (
            trust.level is Level.EXACT
            and begun is not None
            and at >= max(trust.since, begun)
            and at > self._since
        )

    def rewound(
        self, found: Iterable[tuple[Place, int, int]], chain: bytes, at: float
    ) -> list[tuple[Place, int, int]]:
        """Return who held which blocks of a prompt at a time: each place, its first block and its end.

        `found` has the same for the present: all stretches of the prompt, whose packed keys are `chain`.
        """
        there: defaultdict[Place, dict[int, bool]] = defaultdict(dict)
        with self._lock:
            for position, key in enumerate(unpack_words(chain)):
                for change in reversed(self._of_key.get(key, ())):
                    if change.at <= at:
                        break
                    # The newest comes first: of several changes of a block the earliest decides.
                    there[change.place][position] = not change.is_added
        then = []
        now = {place: np.zeros(len(chain) // WORD_BYTES, np.bool_) for place in there}
        for place, start, stop in found:
            if place in now:
                now[place][start:stop] = True
            else:
                then.append((place, start, stop))
        for place, changes in there.items():
            held = now[place]
            held[list(changes)] = list(changes.values())
            edges = np.diff(held.astype(np.int8), prepend=0, append=0)
            ends = zip(np.flatnonzero(edges == 1), np.flatnonzero(edges == -1), strict=True)
            then += [(place, int(start), int(stop)) for start, stop in ends]
        return then
