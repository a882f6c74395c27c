"""Working sets: the prompts that each rank was sent of late, which coming requests probably repeat.

A session's next prompt repeats its last one and goes on. Where such prompts fill a rank's cache, a
further one displaces blocks that are wanted again, and one session after the other computes its prompt
anew, though other ranks have room. Events do not show this: a full cache looks alike with and without
sessions that come back. (Denning, "The Working Set Model for Program Behavior", 1968.)
"""

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from warmpath.indexer.index.slot import RankName
from warmpath.indexer.keys.key import WORD_BYTES
from warmpath.indexer.rank import Rank
from warmpath.router.pick.eligible import Field
from warmpath.router.pods.table import Pod
from warmpath.scorer.columns import Column, Figures

LIFE_SECONDS = 60.0
"""Time constant with which a prompt fades: longer than most pauses of tools, shorter than a person's."""
ONCE = 0.3
"""Weight of a prompt that repeats no earlier one: most one-off prompts are never repeated."""
GONE = 10.0
"""Lives after which a prompt does not count."""
MOST_PROMPTS = 256
"""Prompts that are kept of a rank."""
ROOMS_SECONDS = 1.0
"""How long the sizes of caches are taken as known before they are read anew."""


class _Prompt(msgspec.Struct, gc=False):
    """A prompt that was sent to a rank, until one repeats it."""

    end: int
    """Bytes of its packed keys."""
    key: bytes
    """The last of them: as keys are chained, it stands for all."""
    weight: float
    """Its tokens, grown by e for each life since the landmark, as though the others shrank."""
    at: float


class _Set(msgspec.Struct):
    """What is kept of a rank."""

    prompts: list[_Prompt]
    weight: float
    """The sum of the prompts' weights."""


class WorkingSets:
    """The working set of each rank, in tokens. Times are seconds of a clock that never goes back."""

    def __init__(self) -> None:
        self._sets: dict[RankName, _Set] = {}
        self._landmark = -math.inf
        self._names: Sequence[RankName] = ()
        self._places: Mapping[RankName, int] = {}
        self._sums: Column = np.empty(0)
        """The weights of the sets, in the order of `_names`."""
        self._rooms: Column = np.empty(0)
        self._read_at = -math.inf

    def see(self, name: RankName, keys: bytes, tokens: int, now: float) -> None:
        """Note that a prompt goes to a rank; `keys` are all its packed keys."""
        if not keys:
            return
        grown = (now - self._landmark) / LIFE_SECONDS
        if grown >= 2 * GONE:
            self._rebase(now)
            grown = 0.0
        rest, weight = [], ONCE
        if (kept := self._sets.get(name)) is not None:
            for one in kept.prompts:
                if keys[one.end - WORD_BYTES : one.end] == one.key:
                    weight = 1.0
                elif now - one.at < GONE * LIFE_SECONDS:
                    rest.append(one)
        latest = _Prompt(len(keys), keys[-WORD_BYTES:], weight * tokens * math.exp(grown), now)
        prompts = [*rest[-MOST_PROMPTS + 1 :], latest]
        self._sets[name] = kept = _Set(prompts, sum([one.weight for one in prompts]))
        if (place := self._places.get(name)) is not None:
            self._sums[place] = kept.weight

    def free(self, field: Field, now: float) -> Figures:
        """Return two rows over the ranks, for `warmpath.scorer.weigh.displace`.

        The first has the tokens of each cache that are not of its working set; below 0 where that is
        larger, infinite where the cache's size is not known. The second has the share of the working
        set that the cache can hold.
        """
        names = field.names
        if names is not self._names:
            self._names, self._places, self._read_at = names, field.places, -math.inf
            sets = map(self._sets.get, names)
            weights = (0.0 if one is None else one.weight for one in sets)
            self._sums = np.fromiter(weights, np.float64, len(names))
        if now - self._read_at >= ROOMS_SECONDS:
            self._read_at = now
            rooms = map(_room, field.pods, field.ranks)
            self._rooms = np.fromiter(rooms, np.float64, len(names))
        wanted = self._sums * math.exp((self._landmark - now) / LIFE_SECONDS)
        kept = np.minimum(1.0, self._rooms / np.maximum(wanted, 1.0))
        return np.stack((self._rooms - wanted, kept))

    def forget(self, pod: str, rank: int) -> None:
        """Forget the prompts of a rank: it is gone, or its cache is."""
        name = RankName(pod, rank)
        self._sets.pop(name, None)
        if (place := self._places.get(name)) is not None:
            self._sums[place] = 0.0

    def _rebase(self, now: float) -> None:
        """Put the landmark to `now`, so that weights do not grow without bound."""
        factor = math.exp((self._landmark - now) / LIFE_SECONDS)
        for kept in self._sets.values():
            kept.weight *= factor
            for one in kept.prompts:
                one.weight *= factor
        self._sums *= factor
        self._landmark = now


def _room(pod: Pod, rank: Rank) -> float:
    return pod.capacity_of(rank) * rank.layout.form[0] or math.inf
