"""Remembers the last changes of ranks' caches, to tell what a rank held a while ago.

An access log tells of a request when its answer has ended. By then its pod holds all of its prompt.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from threading import Lock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from warmpath.indexer.index.slot import Place, RankName
from warmpath.indexer.keys.key import WORD_BYTES
from warmpath.indexer.rank import Rank
from warmpath.indexer.trust import Level

MOST_KEYS = 8 << 20
"""Keys in all remembered changes, of 8 bytes each; the oldest are forgotten."""


class _Change(NamedTuple):
    at: float
    place: Place
    is_added: bool
    keys: NDArray[np.uint64]


class Past:
    """The last changes of all ranks. Any thread may call it; `clock` is the ingest's, in seconds."""

    def __init__(self, clock: Callable[[], float], most_keys: int = MOST_KEYS) -> None:
        self._clock = clock
        self._most_keys = most_keys
        self._lock = Lock()
        self._changes: deque[_Change] = deque()
        self._keys = 0
        self._since = clock()
        """Nothing before it is known."""
        self._begun: dict[RankName, float] = {}
        """Since when each rank's changes are known."""

    def begin(self, rank: RankName) -> None:
        """Know nothing of a rank's cache before now: it is new, was emptied, or is read as a whole."""
        self._begun[rank] = self._clock()

    def changed(self, place: Place, keys: Sequence[int], *, is_added: bool) -> None:
        """Remember that a place holds these keys from now on, or holds them no longer."""
        change = _Change(self._clock(), place, is_added, np.array(keys, np.uint64))
        with self._lock:
            self._changes.append(change)
            self._keys += len(keys)
            while self._keys > self._most_keys:
                gone = self._changes.popleft()
                self._keys -= len(gone.keys)
                self._since = gone.at

    def knows(self, rank: Rank, at: float) -> bool:
        """Return whether all changes of a rank since a time are known; it must be exact now."""
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

        `found` says the same of now; it must have all stretches of the prompt's packed keys, `chain`.
        """
        with self._lock:
            recent = list(takewhile(lambda change: change.at > at, reversed(self._changes)))
        changes: defaultdict[Place, list[_Change]] = defaultdict(list)
        for change in recent:
            changes[change.place].append(change)
        blocks = len(chain) // WORD_BYTES
        if not blocks:
            return []
        held: dict[Place, NDArray[np.bool_]] = {}
        for place, start, stop in found:
            # Both the certain blocks of a place and those in doubt are held.
            held.setdefault(place, np.zeros(blocks, np.bool_))[start:stop] = True
        keys = np.frombuffer(chain, "<u8")
        order = np.argsort(keys)
        for place, ones in changes.items():
            words = np.concatenate([one.keys for one in ones])
            kinds = np.repeat([one.is_added for one in ones], [len(one.keys) for one in ones])
            near = order[np.searchsorted(keys, words, sorter=order).clip(max=blocks - 1)]
            hit = keys[near] == words
            if hit.any():
                # The newest comes first: of several changes of a block the earliest decides.
                there = held.setdefault(place, np.zeros(blocks, np.bool_))
                there[near[hit]] = ~kinds[hit]
        return [
            (place, int(start), int(stop))
            for place, there in held.items()
            for start, stop in _stretches(there)
        ]


def _stretches(there: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the runs of True, each its start and its end, as rows."""
    edges = np.diff(there.astype(np.int8), prepend=0, append=0)
    return np.stack([np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)], axis=1)
