"""Beliefs about ranks' caches: blocks that no event has announced, but that are probably there.

*Arriving* are the blocks of a prompt whose rank was just picked: the engine has not announced them yet,
and the next prompt must not be answered as if no rank had them. *Assumed* are the blocks of prompts that
were sent to a rank whose events are missing. *Text* are blocks of bytes of the prompts that were sent to
a rank: by them a prompt is found whose tokens are not known in time. All lie in one index of their own,
and so in one file: only one thread may write an index, and the thread that answers picks is not the one
that follows events.
"""

import heapq
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count, islice
from math import inf
from typing import Final, Literal, NamedTuple

import msgspec

from warmpath.indexer.index.contract import Index
from warmpath.indexer.keys.key import WORD_BYTES, Chain, common_words, words_of

BUDGET = 1024
"""Blocks of each kind that `expire` drops at once, in about half a millisecond."""


Lasting = Literal["assumed", "text"]
"""The kinds of beliefs about what a rank was sent, each with the room of the rank's cache."""
LASTING: Final[tuple[Lasting, ...]] = ("assumed", "text")


class Belief(NamedTuple):
    """A rank, and the kind of belief about its blocks."""

    pod: str
    rank: int
    kind: Literal["arriving"] | Lasting


_belief = partial(tuple.__new__, Belief)
"""Makes a `Belief` of a tuple in a third of the time that calling the class takes."""


class _Ticket(msgspec.Struct):
    """One prompt that was picked for a rank, until its blocks no longer count as arriving."""

    belief: Belief
    keys: bytes
    """The prompt's keys, packed (`indexer.keys.key`)."""
    ends: float
    start: int
    """How many of its first blocks it did not add to the index."""
    least: int
    """At most how many of its first blocks are not in the index: ended tickets may have added some."""
    confirmed: bool = False


@dataclass(slots=True)
class _Arriving:
    """One rank's tickets.

    In sorted order, prompts that begin alike are neighbours: no prompt shares a longer beginning with
    another one than with a neighbour. So blocks need no counts of their tickets.
    """

    slot: int
    prompts: list[tuple[bytes, int]] = field(default_factory=list)
    """Each prompt's packed keys and ticket, sorted."""

    def nearest(self, at: int, keys: bytes) -> tuple[int, int]:
        """Return how many leading `keys` another prompt has too, and its ticket.

        `at` is the place in the order of `keys`, which are not there.
        """
        neighbours = self.prompts[max(0, at - 1) : at + 1]
        return max(
            ((common_words(keys, other), ticket) for other, ticket in neighbours), default=(0, 0)
        )


@dataclass(slots=True)
class _Assumed:
    """The blocks that one rank is assumed to hold."""

    slot: int
    times: OrderedDict[int, float] = field(default_factory=OrderedDict)
    """When each key was last assumed: the earliest first, a prompt's tail before its head."""


class Believed:
    """Beliefs about ranks, in an `index` that holds nothing else. Only one thread may use it.

    At most `max_blocks` blocks are believed: one counts once for each ticket with it, and once for each
    rank that is assumed to hold it. `len` is their number. Past that bound, while tickets have more than
    half of the blocks, the tickets that end first go; then the least recently assumed blocks do. So
    neither kind crowds out the other. A block that is not assumed again within `assumed_seconds` is
    assumed no longer. An index with less room gives up blocks earlier; those are not believed any more
    either.

    Times are finite seconds of one clock; the caller passes the present time to `expire` and `assume`.
    Where the clock leaps ahead, beliefs past their time end. Where it goes back, earlier beliefs last as
    if it had stood still.
    """

    def __init__(self, index: Index, *, max_blocks: int, assumed_seconds: float) -> None:
        if max_blocks < 2:
            raise ValueError(f"max_blocks is {max_blocks}; it must be at least 2")
        self._index = index
        self.max_blocks = max_blocks
        self._assumed_seconds = assumed_seconds
        self._now = -inf
        self._offset = 0.0
        """Seconds to add to the caller's time, so that it never goes back."""
        self._beliefs: list[Belief | None] = []
        """By slot. A belief without blocks has no slot: a rank without beliefs leaves nothing behind."""
        self._free: list[int] = []
        """A heap of slots without blocks in the index."""
        self._numbers = count(1)
        self._tickets: dict[int, _Ticket] = {}
        self._ends: list[tuple[float, int]] = []
        """A heap of the times at which tickets end; outdated entries are skipped."""
        self._arriving: dict[Belief, _Arriving] = {}
        self._arriving_blocks = 0
        """The sum of all tickets' blocks."""
        self._assumed: dict[Belief, _Assumed] = {}
        self._assumed_blocks = 0
        self._earliest: list[tuple[float, int]] = []
        """A heap with an entry a rank: a time no later than its earliest assumed key's, and its slot."""

    def __len__(self) -> int:
        return self._arriving_blocks + self._assumed_blocks

    def match(self, chain: Chain, *, leading: bool = True) -> list[tuple[Belief, int, int]]:
        """Return the stretches of a prompt that are believed: belief, first block and end of each.

        The end is the position after the last block. `leading` is as in `Index.match`. Where nothing is
        believed, the prompt's keys are not computed.
        """
        if not self._tickets and not self._assumed:
            return []
        return [
            (belief, start, stop)
            for slot, start, stop in self._index.match(chain, leading=leading)
            if (belief := self._beliefs[slot]) is not None
        ]

    def count(self, pod: str, rank: int) -> int:
        """Return how many blocks are assumed to be on a rank, by tokens or, if more, by bytes."""
        kinds = (self._assumed.get(Belief(pod, rank, kind)) for kind in LASTING)
        return max(len(assumed.times) if assumed else 0 for assumed in kinds)

    # Arriving

    def arrive(self, pod: str, rank: int, keys: bytes, *, expires: float, held: int = 0) -> int:
        """Believe until `expires` that a prompt's blocks are on their way to a rank.

        `keys` are those of a chain from its first one on, packed (`indexer.keys.key`). Keys past half
        of `max_blocks` do not count. Returns a ticket.

        The rank holds the first `held` blocks by its events: `match` may leave them out, so that a
        prompt costs no more than its new blocks. Nothing arrives if it holds all.
        """
        ticket = next(self._numbers)
        keys = keys[: self.max_blocks // 2 * WORD_BYTES]
        words = words_of(keys)
        if held >= len(words):
            return ticket
        belief = _belief((pod, rank, "arriving"))
        arriving = self._arriving.get(belief)
        if arriving is None:
            arriving = self._arriving[belief] = _Arriving(self._claim(belief))
        entry = (keys, ticket)
        at = bisect_left(arriving.prompts, entry)
        shared, near = arriving.nearest(at, keys)
        start = held
        if shared > held and self._tickets[near].start <= held:
            # The index gets the key before the new ones too: it gives them their depth.
            start = shared - 1
        arriving.prompts.insert(at, entry)
        self._index.add(arriving.slot, words[start:])
        self._arriving_blocks += len(words)
        ends = expires + self._offset
        self._tickets[ticket] = _Ticket(belief, keys, ends, held, held)
        heapq.heappush(self._ends, (ends, ticket))
        self._make_room()
        return ticket

    def arrivals(self) -> Iterator[tuple[str, int, bytes]]:
        """Yield the pod, rank and packed keys of each ticket, the latest ticket first."""
        for ticket in reversed(self._tickets.values()):
            yield ticket.belief.pod, ticket.belief.rank, ticket.keys

    def arriving(self, ticket: int) -> bytes:
        """Return the packed keys of a ticket; none where it has ended."""
        known = self._tickets.get(ticket)
        return known.keys if known else b""

    def confirm(self, ticket: int, until: float) -> None:
        """End a ticket at `until`, when events must have announced its prompt's blocks.

        That may be before or after it expires; if it is confirmed more than once, the earliest end
        holds.
        """
        known = self._tickets.get(ticket)
        ends = until + self._offset
        if known is None or (known.confirmed and ends >= known.ends):
            return
        known.confirmed = True
        known.ends = ends
        heapq.heappush(self._ends, (ends, ticket))
        self._tidy()

    def withdraw(self, ticket: int) -> int:
        """End a ticket at once; return how many blocks it had, 0 for one that is not known."""
        known = self._tickets.pop(ticket, None)
        if known is None:
            return 0
        arriving = self._arriving[known.belief]
        at = bisect_left(arriving.prompts, (known.keys, ticket))
        del arriving.prompts[at]
        words = words_of(known.keys)
        shared, near = arriving.nearest(at, known.keys)
        self._index.remove(arriving.slot, words[max(shared, known.least) :])
        if shared > known.least:
            heir = self._tickets[near]
            heir.least = min(heir.least, known.least)
        self._arriving_blocks -= len(words)
        if not arriving.prompts:
            del self._arriving[known.belief]
            self._release(arriving.slot)
        self._tidy()
        return len(words)

    def _end_first(self, until: float = inf) -> int:
        """End the first ticket to expire, if by `until`; return its number of blocks, 0 for none."""
        while self._ends and self._ends[0][0] <= until:
            ends, ticket = heapq.heappop(self._ends)
            known = self._tickets.get(ticket)
            if known is not None and known.ends == ends:
                return self.withdraw(ticket)
        return 0

    def _tidy(self) -> None:
        if len(self._ends) > 2 * len(self._tickets) + 64:
            self._ends = [(known.ends, number) for number, known in self._tickets.items()]
            heapq.heapify(self._ends)

    # Assumed

    def assume(
        self,
        pod: str,
        rank: int,
        keys: bytes,
        *,
        now: float,
        capacity: int,
        kind: Lasting = "assumed",
    ) -> None:
        """Believe that a rank with room for `capacity` blocks holds a prompt's blocks.

        `keys` are as in `arrive`; `kind` says whether they are of tokens or of a text's bytes. Past the
        capacity the least recently assumed blocks of that kind go; a prompt's last blocks go before its
        first ones.
        """
        time = self._time(now)
        belief = Belief(pod, rank, kind)
        if capacity < 1:
            self._forget_assumed(belief)
            return
        words = words_of(keys[: min(capacity, self.max_blocks) * WORD_BYTES])
        assumed = self._assumed.get(belief)
        if assumed is None:
            if not words:
                return
            assumed = self._assumed[belief] = _Assumed(self._claim(belief))
            heapq.heappush(self._earliest, (time, assumed.slot))
        times = assumed.times
        before = len(times)
        move_to_end = times.move_to_end
        for key in reversed(words):
            times[key] = time
            move_to_end(key)
        if (over := len(times) - capacity) > 0:
            gone = [times.popitem(last=False)[0] for _ in range(over)]
            self._index.remove(assumed.slot, gone)
        self._index.add(assumed.slot, words)
        self._assumed_blocks += len(times) - before
        self._make_room()

    def _let_go(self, most: int, until: float = inf) -> None:
        """Drop up to `most` blocks last assumed at `until` or before, the least recent first."""
        earliest = self._earliest
        while most > 0 and earliest and earliest[0][0] <= until:
            slot = heapq.heappop(earliest)[1]
            belief = self._beliefs[slot]
            assert belief is not None
            times = self._assumed[belief].times
            # Blocks assumed later than this come after another rank's earliest one.
            turn = min(until, earliest[0][0]) if earliest else until
            gone = []
            for key, time in islice(times.items(), most):
                if time > turn:
                    break
                gone.append(key)
            for key in gone:
                del times[key]
            self._index.remove(slot, gone)
            self._assumed_blocks -= len(gone)
            most -= len(gone)
            if times:
                heapq.heappush(earliest, (next(iter(times.values())), slot))
            else:
                del self._assumed[belief]
                self._release(slot)

    # Both

    def forget(self, pod: str, rank: int) -> None:
        """Believe nothing of a rank: it is gone, has restarted, or its cache was cleared."""
        arriving = self._arriving.pop(Belief(pod, rank, "arriving"), None)
        if arriving is not None:
            for keys, ticket in arriving.prompts:
                del self._tickets[ticket]
                self._arriving_blocks -= len(keys) // WORD_BYTES
            self._drop(arriving.slot)
            self._tidy()
        for kind in LASTING:
            self._forget_assumed(Belief(pod, rank, kind))

    def _forget_assumed(self, belief: Belief) -> None:
        assumed = self._assumed.pop(belief, None)
        if assumed is not None:
            self._assumed_blocks -= len(assumed.times)
            self._earliest = [entry for entry in self._earliest if entry[1] != assumed.slot]
            heapq.heapify(self._earliest)
            self._drop(assumed.slot)

    def expire(self, now: float, *, budget: int = BUDGET) -> None:
        """End beliefs past their time: up to `budget` blocks of each kind, and at most a ticket more.

        Also remove the blocks of forgotten ranks from the index, looking at up to `budget` blocks.
        """
        time = self._time(now)
        if self._ends and self._ends[0][0] <= time:
            left = budget
            while left > 0 and (ended := self._end_first(time)):
                left -= ended
        if self._earliest and self._earliest[0][0] <= time - self._assumed_seconds:
            self._let_go(budget, time - self._assumed_seconds)
        for slot in self._index.sweep(budget):
            heapq.heappush(self._free, slot)

    def _make_room(self) -> None:
        if self._arriving_blocks + self._assumed_blocks <= self.max_blocks:
            return
        half = self.max_blocks // 2
        while len(self) > self.max_blocks and self._arriving_blocks > half:
            if not self._end_first():
                break
        self._let_go(len(self) - self.max_blocks)

    def _time(self, now: float) -> float:
        if now + self._offset < self._now:
            self._offset = self._now - now
        self._now = max(self._now, now + self._offset)
        return self._now

    # Slots

    def _claim(self, belief: Belief) -> int:
        """Return the smallest free slot, which stands for a belief from here on."""
        if not self._free:
            self._beliefs.append(belief)
            return len(self._beliefs) - 1
        slot = heapq.heappop(self._free)
        self._beliefs[slot] = belief
        return slot

    def _release(self, slot: int) -> None:
        """Free a slot that holds no blocks in the index, for the next belief."""
        self._beliefs[slot] = None
        heapq.heappush(self._free, slot)

    def _drop(self, slot: int) -> None:
        """Empty a slot and forget its belief; the slot is free when it is swept."""
        self._beliefs[slot] = None
        self._index.drop(slot)
