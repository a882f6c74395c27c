"""Digests of the batches that were applied last, which distinguish a duplicate from a restart."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping

import xxhash

KEPT = 1024
"""How many applied batches' digests are kept."""


class Digests:
    """The digests of the last batches, by their sequences."""

    def __init__(self) -> None:
        self._digests: OrderedDict[int, int] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._digests)

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._digests

    def add(self, first: int, payloads: Iterable[bytes]) -> None:
        """Keep the digests of consecutive batches; `first` is the sequence of the first one."""
        digest = xxhash.xxh3_64_intdigest
        for sequence, payload in enumerate(payloads, first):
            self._digests[sequence] = digest(payload)
        while len(self._digests) > KEPT:
            self._digests.popitem(last=False)

    def has(self, sequence: int, payload: bytes) -> bool:
        """Whether this batch is known to be the one that was applied with its sequence."""
        return self._digests.get(sequence) == xxhash.xxh3_64_intdigest(payload)

    def clear(self) -> None:
        self._digests.clear()

    def save(self) -> dict[int, int]:
        return dict(self._digests)

    def restore(self, saved: Mapping[int, int]) -> None:
        self._digests = OrderedDict(sorted(saved.items()))
