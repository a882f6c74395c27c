"""Beliefs about ranks' caches: blocks that no event has announced, but that are probably there.

*Arriving* are the blocks of a prompt whose rank was just picked: the engine has not announced them yet,
and the next prompt must not be answered as if no rank had them. *Assumed* are the blocks of prompts that
were sent to a rank whose events are missing. Both lie in an index of their own, since only one thread
may write an index, and the thread that answers picks is not the one that follows events.
"""

from collections.abc import Iterator
from math import inf
from typing import NamedTuple

from warmpath.indexer.believed.arriving import Arriving
from warmpath.indexer.believed.assumed import Assumed
from warmpath.indexer.believed.slots import Belief, BeliefSlots
from warmpath.indexer.index.contract import Index
from warmpath.indexer.keys.key import WORD_BYTES, Chain, words_of

BUDGET = 1024
"""Blocks of each kind that `expire` drops at once, in about half a millisecond."""


class BelievedStats(NamedTuple):
    """The number of believed blocks and of tickets."""

    blocks: int
    """A block counts once for each ticket with it, and once for each rank that is assumed to hold it."""
    tickets: int
    max_blocks: int


class Believed:
    """Beliefs about ranks, in an `index` that holds nothing else. Only one thread may use it.

    At most `max_blocks` blocks are believed, counted as `BelievedStats.blocks`. Past that bound, while
    tickets have more than half of the blocks, the tickets that end first go; then the least recently
    assumed blocks do. So neither kind crowds out the other. A block that is not assumed again within
    `assumed_seconds` is assumed no longer. An index with less room gives up
    blocks earlier; those are not believed any more either.

    Times are finite seconds of one clock; the caller passes the present time to `expire` and `assume`.
    Where the clock leaps ahead, beliefs past their time end. Where it goes back, earlier beliefs last as
    if it had stood still.
    """

    def __init__(self, index: Index, *, max_blocks: int, assumed_seconds: float) -> None:
        if max_blocks < 2:
            raise ValueError(f"max_blocks is {max_blocks}; it must be at least 2")
        self._slots = BeliefSlots(index)
        self._max_blocks = max_blocks
        self._assumed_seconds = assumed_seconds
        self._arriving = Arriving(self._slots)
        self._assumed = Assumed(self._slots)
        self._now = -inf
        self._offset = 0.0
        """Seconds to add to the caller's time, so that it never goes back."""

    def __len__(self) -> int:
        return self._arriving.blocks + self._assumed.blocks

    def stats(self) -> BelievedStats:
        return BelievedStats(len(self), len(self._arriving), self._max_blocks)

    def match(self, chain: Chain, *, leading: bool = True) -> list[tuple[Belief, int, int]]:
        """Return the beliefs that have blocks of a prompt, each with its first block and its end.

        The end is the position after the last block. `leading` is as in `Index.match`. Where nothing is
        believed, the prompt's keys are not computed.
        """
        if not len(self):
            return []
        return [
            (belief, start, stop)
            for slot, start, stop in self._slots.index.match(chain, leading=leading)
            if (belief := self._slots.belief(slot)) is not None
        ]

    def count(self, pod: str, rank: int) -> int:
        """Return how many blocks are assumed to be on a rank."""
        return self._assumed.count(pod, rank)

    def arrive(self, pod: str, rank: int, keys: bytes, *, expires: float) -> int:
        """Believe until `expires` that a prompt's blocks are on their way to a rank.

        `keys` are those of a chain from its first one on, packed (`indexer.keys.key`). Keys past half
        of `max_blocks` do not count. Returns a ticket.
        """
        most = self._max_blocks // 2
        ticket = self._arriving.add(pod, rank, keys[: most * WORD_BYTES], expires + self._offset)
        self._make_room()
        return ticket

    def arrivals(self) -> Iterator[tuple[str, int, bytes]]:
        """Yield the pod, rank and packed keys of each ticket, the latest ticket first."""
        return self._arriving.prompts()

    def arriving(self, ticket: int) -> bytes:
        """Return the packed keys of a ticket; none where it has ended."""
        return self._arriving.keys(ticket)

    def confirm(self, ticket: int, until: float) -> None:
        """End a ticket at `until`, when events must have announced its prompt's blocks.

        That may be before or after it expires; if it is confirmed more than once, the earliest end
        holds.
        """
        self._arriving.confirm(ticket, until + self._offset)

    def withdraw(self, ticket: int) -> None:
        """End a ticket at once; do nothing for one that is not known."""
        self._arriving.end(ticket)

    def assume(self, pod: str, rank: int, keys: bytes, *, now: float, capacity: int) -> None:
        """Believe that a rank with room for `capacity` blocks holds a prompt's blocks.

        `keys` are as in `arrive`. Past the capacity the least recently assumed blocks go; a prompt's
        last blocks go before its first ones.
        """
        time = self._time(now)
        if capacity < 1:
            self._assumed.forget(pod, rank)
            return
        words = words_of(keys[: min(capacity, self._max_blocks) * WORD_BYTES])
        self._assumed.add(pod, rank, words, time, capacity)
        self._make_room()

    def forget(self, pod: str, rank: int) -> None:
        """Believe nothing of a rank: it is gone, has restarted, or its cache was cleared."""
        self._arriving.forget(pod, rank)
        self._assumed.forget(pod, rank)

    def expire(self, now: float, *, budget: int = BUDGET) -> None:
        """End beliefs past their time: up to `budget` blocks of each kind, and at most a ticket more.

        Also remove the blocks of forgotten ranks from the index, looking at up to `budget` blocks.
        """
        time = self._time(now)
        left = budget
        while left > 0 and (ended := self._arriving.end_first(time)):
            left -= ended
        self._assumed.let_go(budget, time - self._assumed_seconds)
        self._slots.sweep(budget)

    def _make_room(self) -> None:
        half = self._max_blocks // 2
        while len(self) > self._max_blocks and self._arriving.blocks > half:
            if not self._arriving.end_first():
                break
        self._assumed.let_go(len(self) - self._max_blocks)

    def _time(self, now: float) -> float:
        if now + self._offset < self._now:
            self._offset = self._now - now
        self._now = max(self._now, now + self._offset)
        return self._now
