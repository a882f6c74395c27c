"""Remembers the last changes of ranks' caches, to tell what a rank held a while ago.

An access log tells of a request when its answer has ended. By then its pod holds all of its prompt.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np

from warmpath.indexer.index.slot import Place, RankName
from warmpath.indexer.keys.key import unpack_words
from warmpath.indexer.rank import Rank
from warmpath.indexer.trust import Level

MOST_KEYS = 1 << 20
"""Keys in all remembered changes, of up to 200 bytes each; the oldest are forgotten."""


@dataclass(slots=True, eq=False)
class _Change:
    number: int
    """Changes are numbered in their order."""
    at: float
    place: Place
    is_added: bool
    keys: Sequence[int]
    before: "dict[int, _Change]"
    """The change before this one of those keys that had one."""


class Past:
    """The last changes of all ranks. Any thread may call it; `clock` is the ingest's, in seconds."""

    def __init__(self, clock: Callable[[], float], most_keys: int = MOST_KEYS) -> None:
        self._clock = clock
        self._most_keys = most_keys
        self._lock = Lock()
        self._changes: deque[_Change] = deque()
        self._last: dict[int, _Change] = {}
        """The last change of each key."""
        self._number = self._keys = 0
        self._since = clock()
        """The time before which no change is known."""
        self._begun: dict[tuple[str, int], float] = {}
        """Since when each rank's changes are known."""

    def begin(self, rank: RankName) -> None:
        """Know nothing of a rank's cache before now: it is new, was emptied, or is read as a whole."""
        self._begun[rank] = self._clock()

    def changed(self, place: Place, keys: Sequence[int], *, is_added: bool) -> None:
        """Remember that a place holds these keys from now on, or holds them no longer."""
        with self._lock:
            self._number += 1
            last = self._last
            before = {key: old for key in keys if (old := last.get(key)) is not None}
            change = _Change(self._number, self._clock(), place, is_added, keys, before)
            last.update(dict.fromkeys(keys, change))
            self._changes.append(change)
            self._keys += len(keys)
            while self._keys > self._most_keys:
                gone = self._changes.popleft()
                self._keys -= len(gone.keys)
                self._since = gone.at
                for key in gone.keys:
                    if last.get(key) is gone:
                        del last[key]
                # A later change of its keys may still lead here.
                gone.keys, gone.before = (), {}

    def knows(self, rank: Rank, at: float) -> bool:
        """Return whether all changes of a rank since a time are known, as it has been exact since."""
        trust = rank.trust
        begun = self._begun.get((rank.pod, rank.number))
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
        undone: defaultdict[_Change, list[int]] = defaultdict(list)
        keys = unpack_words(chain)
        with self._lock:
            for position, (key, last) in enumerate(
                zip(keys, map(self._last.get, keys), strict=True), 1
            ):
                change = last
                while change is not None and change.at > at:
                    undone[change].append(position)
                    change = change.before.get(key)
        # One place more at each end, which nobody holds.
        held = {change.place: np.zeros(len(keys) + 2, np.bool_) for change in undone}
        # To compare names is much faster than to hash places, and most are of other ranks.
        names = {place.name for place in held}
        then = []
        for place, start, stop in found:
            if place.name in names and place in held:
                held[place][start + 1 : stop + 1] = True
            else:
                then.append((place, start, stop))
        for change in sorted(undone, key=lambda one: -one.number):
            held[change.place][undone[change]] = not change.is_added
        for place, row in held.items():
            edges = np.flatnonzero(row[1:] != row[:-1]).tolist()
            then += [(place, *edge) for edge in zip(edges[::2], edges[1::2], strict=True)]
        return then
