"""What we only believe of ranks' caches: what is on its way there, and what was once sent there.

`arriving` are the blocks of a prompt whose rank was just picked: its engine has not said yet that it
holds them, and the next prompt must not be answered as if they were nowhere. `assumed` is what was
sent to a rank whose events are missing. Both lie in an index of their own: only one thread may write
an index, and beliefs are written by the one that answers picks, not by the one that follows events.
"""

from math import inf
from typing import NamedTuple

from indexer.believed.arriving import Arriving
from indexer.believed.assumed import Assumed
from indexer.believed.slots import Belief, BeliefSlots
from indexer.index.contract import Index
from indexer.invariant import BrokenInvariantError
from indexer.keys.key import Chain
from indexer.keys.word import WORD_BYTES, words_of

BUDGET = 1024
"""Blocks of each kind that `expire` lets go of at once, and a ticket more: half a millisecond or so."""


class BelievedStats(NamedTuple):
    """How much is believed."""

    blocks: int
    """A block counts once for each ticket that has it, and once for each rank where it is assumed."""
    tickets: int
    max_blocks: int


class Believed:
    """Beliefs about ranks, in an `index` that holds nothing else. One thread calls.

    At most `max_blocks` blocks are believed, counted as `BelievedStats.blocks`. Past that the tickets
    that end first go, while tickets have more than half of it, and then what was least recently
    assumed: neither kind crowds out the other. What was not assumed again for `assumed_seconds` is
    assumed no longer. An index that has less room gives blocks up by itself; those are believed no
    longer either.

    Times are seconds of one clock, finite; `expire` and `assume` tell the present one. Where the clock
    leaps ahead, what is past its time ends. Where it goes back, what was begun before lasts as if it
    had stood still.
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
        """What is added to the caller's time, so that it never goes back."""

    def __len__(self) -> int:
        """Return how many blocks are believed, counted as `BelievedStats.blocks`."""
        return self._arriving.blocks + self._assumed.blocks

    def stats(self) -> BelievedStats:
        """Return how much is believed."""
        return BelievedStats(len(self), len(self._arriving), self._max_blocks)

    def match(self, chain: Chain, *, leading: bool = True) -> list[tuple[Belief, int, int]]:
        """Return of whom which blocks of a prompt are believed: first blocks, past the last ones.

        `leading` is as in `Index.match`. Nothing is hashed where nothing is believed.
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

        `keys` are packed (`indexer.keys.word`), a chain's from its first on; of more than half of
        `max_blocks` the first ones count. Returns a ticket.
        """
        most = self._max_blocks // 2
        ticket = self._arriving.add(pod, rank, keys[: most * WORD_BYTES], expires + self._offset)
        self._make_room()
        return ticket

    def arriving(self, ticket: int) -> bytes:
        """Return the packed keys of a ticket; none where it has ended."""
        return self._arriving.keys(ticket)

    def confirm(self, ticket: int, until: float) -> None:
        """End a ticket at `until`, by when events can have told what became of its prompt.

        That may be before or after it expires; of several confirmations the earliest end holds.
        """
        self._arriving.confirm(ticket, until + self._offset)

    def withdraw(self, ticket: int) -> None:
        """End a ticket at once; one that is not known is passed over."""
        self._arriving.end(ticket)

    def assume(self, pod: str, rank: int, keys: bytes, *, now: float, capacity: int) -> None:
        """Believe that a rank with room for `capacity` blocks holds a prompt's.

        `keys` are as in `arrive`. Past the capacity the least recently assumed go, and of one prompt
        the tail before the head.
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
        """Let go of what is past its time: of each kind up to `budget` blocks, and a ticket more.

        As many blocks are looked at to sweep what forgotten ranks have left in the index.
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
        """Return the caller's time on a scale that never goes back."""
        if now + self._offset < self._now:
            self._offset = self._now - now
        self._now = max(self._now, now + self._offset)
        return self._now

    def check(self) -> None:
        """Raise BrokenInvariantError where the index holds other than what is believed."""
        self._slots.check({**self._arriving.check(), **self._assumed.check()})
        if len(self) > self._max_blocks:
            raise BrokenInvariantError("more is believed than may be")
