"""Blocks of prompts that were just picked for a rank, with a ticket for each prompt."""

import heapq
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from math import inf

from warmpath.indexer.believed.slots import Belief, BeliefSlots
from warmpath.indexer.keys.key import WORD_BYTES, words_of


@dataclass(slots=True)
class Ticket:
    """One prompt that was picked for a rank, until its blocks no longer count as arriving."""

    belief: Belief
    keys: bytes
    """The prompt's keys, packed (`indexer.keys.key`)."""
    ends: float
    confirmed: bool = False


@dataclass(slots=True)
class _Rank:
    """One rank's tickets.

    In sorted order, prompts that begin alike are neighbours: no prompt shares a longer beginning with
    another one than with a neighbour. So blocks need no counts of their tickets.
    """

    slot: int
    prompts: list[tuple[bytes, int]] = field(default_factory=list)
    """Each prompt's packed keys and ticket, sorted."""

    def shared(self, at: int, keys: bytes) -> int:
        """Return how many leading `keys` another prompt has too; `at` is their place in the order."""
        beside = self.prompts[max(0, at - 1) : at + 1]
        return max((_common(keys, other) for other, _ in beside), default=0)


def _common(one: bytes, other: bytes) -> int:
    alike, unlike = 0, min(len(one), len(other)) // WORD_BYTES + 1
    while unlike - alike > 1:
        middle = (alike + unlike) // 2
        part = slice(alike * WORD_BYTES, middle * WORD_BYTES)
        if one[part] == other[part]:
            alike = middle
        else:
            unlike = middle
    return alike


class Arriving:
    """All tickets, by the time at which they end."""

    def __init__(self, slots: BeliefSlots) -> None:
        self.blocks = 0
        """The sum of all tickets' blocks."""
        self._slots = slots
        self._numbers = count(1)
        self._tickets: dict[int, Ticket] = {}
        self._ranks: dict[Belief, _Rank] = {}
        self._ends: list[tuple[float, int]] = []
        """A heap of the times at which tickets end; outdated entries are skipped."""

    def __len__(self) -> int:
        return len(self._tickets)

    def add(self, pod: str, rank: int, keys: bytes, ends: float) -> int:
        """Believe that a prompt's blocks are arriving at a rank; return the ticket."""
        ticket = next(self._numbers)
        words = words_of(keys)
        if not words:
            return ticket
        belief = Belief(pod, rank, "arriving")
        arriving = self._ranks.get(belief)
        if arriving is None:
            arriving = self._ranks[belief] = _Rank(self._slots.claim(belief))
        entry = (keys, ticket)
        at = bisect_left(arriving.prompts, entry)
        # The index gets the key before the new ones too: it gives them their depth.
        start = max(0, arriving.shared(at, keys) - 1)
        arriving.prompts.insert(at, entry)
        self._slots.index.add(arriving.slot, words[start:])
        self.blocks += len(words)
        self._tickets[ticket] = Ticket(belief, keys, ends)
        heapq.heappush(self._ends, (ends, ticket))
        return ticket

    def prompts(self) -> Iterator[tuple[str, int, bytes]]:
        for ticket in reversed(self._tickets.values()):
            yield ticket.belief.pod, ticket.belief.rank, ticket.keys

    def keys(self, ticket: int) -> bytes:
        known = self._tickets.get(ticket)
        return known.keys if known else b""

    def confirm(self, ticket: int, ends: float) -> None:
        known = self._tickets.get(ticket)
        if known is None or (known.confirmed and ends >= known.ends):
            return
        known.confirmed = True
        known.ends = ends
        heapq.heappush(self._ends, (ends, ticket))
        self._tidy()

    def _tidy(self) -> None:
        if len(self._ends) > 2 * len(self._tickets) + 64:
            self._ends = [(known.ends, number) for number, known in self._tickets.items()]
            heapq.heapify(self._ends)

    def end(self, ticket: int) -> int:
        """End a ticket; return how many blocks it had, 0 for one that is not known."""
        known = self._tickets.pop(ticket, None)
        if known is None:
            return 0
        arriving = self._ranks[known.belief]
        at = bisect_left(arriving.prompts, (known.keys, ticket))
        del arriving.prompts[at]
        words = words_of(known.keys)
        self._slots.index.remove(arriving.slot, words[arriving.shared(at, known.keys) :])
        self.blocks -= len(words)
        if not arriving.prompts:
            del self._ranks[known.belief]
            self._slots.release(arriving.slot)
        self._tidy()
        return len(words)

    def end_first(self, until: float = inf) -> int:
        """End the ticket that expires first, if by `until`; return its number of blocks, or 0."""
        while self._ends and self._ends[0][0] <= until:
            ends, ticket = heapq.heappop(self._ends)
            known = self._tickets.get(ticket)
            if known is not None and known.ends == ends:
                return self.end(ticket)
        return 0

    def forget(self, pod: str, rank: int) -> None:
        arriving = self._ranks.pop(Belief(pod, rank, "arriving"), None)
        if arriving is None:
            return
        for keys, ticket in arriving.prompts:
            del self._tickets[ticket]
            self.blocks -= len(keys) // WORD_BYTES
        self._slots.drop(arriving.slot)
        self._tidy()
