"""The order of waiting requests in a release.

    class (`priority`)   the highest first
    share of a tenant    the least virtual time first: the uncached tokens that it was given so far, by
                         its weight (start-time fair queueing)
    key                  `Precedence.place` of the cheapest prefill, the least first

Requests that want the same pods share a lane, so that requests whose pods are full do not delay requests
for other pods. Tenants share the pods of a model, whatever the lanes of their requests.

Source: Goyal, Vin, Cheng, "Start-time Fair Queueing", 1996.
"""

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush, merge
from itertools import islice

from warmpath.process.ranking import Ranking
from warmpath.router.pick.eligible import Wanted
from warmpath.router.queue.request import Waiting

MOST_IDLE = 4096
"""Most tenants of a kind without waiting requests that are kept, as they had more than their share."""
MOST_LANES = 64
"""Most lanes that one release considers. If there are more, half of those are the lanes with the first
requests, which may have no room; the others take turns, from the highest class on."""
TURNS = MOST_LANES // 2
"""The number of considered lanes that take turns."""

Kind = tuple[int, str]
"""A class, and the model whose pods its tenants share."""


@dataclass(slots=True, eq=False)
class _Share:
    """A tenant's share of the pods of a model, in one class."""

    kind: Kind
    tenant: str
    weight: float
    virtual: float
    """Its virtual time: uncached tokens by weight. It never falls."""
    lines: dict[Wanted, Ranking[Waiting]] = field(default_factory=dict)
    """Its requests in each lane, by key and number."""
    heads: Ranking[Wanted] = field(default_factory=Ranking)
    """Its lanes by the key and the number of their first request."""

    def cost(self, waiting: Waiting) -> float:
        """Return by how much its virtual time grows if a request is served."""
        return max(1, waiting.uncached) / self.weight


@dataclass(slots=True, eq=False)
class _Contest:
    """The tenants of one kind."""

    clock: float = 0.0
    """The virtual time of the share whose request was served last."""
    places: Ranking[_Share] = field(default_factory=Ranking)
    """The shares by virtual time, and by the key and the number of their first request."""
    idle: OrderedDict[str, float] = field(default_factory=OrderedDict)
    """Virtual times of the tenants without waiting requests that are ahead of `clock`."""


class Order:
    """All waiting requests in order. `shares` are the tenants' weights; a missing tenant has 1."""

    def __init__(self, shares: Mapping[str, float]) -> None:
        self._weights = shares
        self._shares: dict[tuple[Kind, str], _Share] = {}
        """Shares with waiting requests."""
        self._contests: dict[Kind, _Contest] = {}
        """The kinds with waiting requests."""
        self.lanes: dict[Wanted, Counter[int]] = {}
        """By lane, the number of waiting requests in each class; callers only read this."""
        self._round: list[Wanted] = []
        """The lanes that have had no turn yet, the next one last."""

    def considered(self) -> Collection[Wanted]:
        """Return the lanes to look at now: all, or if there are too many, some in turns."""
        lanes = self.lanes
        if len(lanes) <= MOST_LANES:
            return [*lanes]
        while self._round and self._round[-1] not in lanes:
            self._round.pop()
        if not self._round:
            self._round = sorted(lanes, key=lambda wanted: max(lanes[wanted]))
        turns = [wanted for wanted in self._round[-TURNS:] if wanted in lanes]
        return dict.fromkeys(self._leading(MOST_LANES - TURNS) + turns)

    def end_turns(self) -> None:
        """Let the lanes that had their turn in `considered` wait for the next round."""
        del self._round[-TURNS:]

    def _leading(self, most: int) -> list[Wanted]:
        """Return at most `most` lanes, those with the first requests: tenants take turns.

        Of each class only the first `most` tenants count.
        """
        found: dict[Wanted, None] = {}
        for places in self._by_class():
            shares = [share for _, share in islice(places, most)]
            for at in range(most):
                shares = [share for share in shares if at < len(share.heads)]
                for share in shares:
                    found[share.heads[at][1]] = None
                    if len(found) == most:
                        return [*found]
        return [*found]

    def _by_class(self) -> Iterator[Iterator[tuple[tuple[float, float, int], _Share]]]:
        """Yield the shares of each class with their places, in order, the highest class first."""
        for priority in sorted({priority for priority, _ in self._contests}, reverse=True):
            contests = [one for kind, one in self._contests.items() if kind[0] == priority]
            # Places have unique numbers, so that shares are not compared.
            yield merge(*(one.places for one in contests))

    def add(self, waiting: Waiting) -> None:
        share = self._share(waiting)
        share.lines.setdefault(waiting.wanted, Ranking()).put(
            waiting, (waiting.key, waiting.number)
        )
        self.lanes.setdefault(waiting.wanted, Counter())[waiting.priority] += 1
        self._renew(share, waiting.wanted)

    def remove(self, waiting: Waiting, *, is_served: bool) -> None:
        """Remove a request; with `is_served`, its share pays for its uncached tokens."""
        share, wanted = self._share(waiting), waiting.wanted
        share.lines[wanted].drop(waiting)
        classes = self.lanes[wanted]
        classes[waiting.priority] -= 1
        if not classes[waiting.priority]:
            del classes[waiting.priority]
        if not classes:
            del self.lanes[wanted]
        if is_served:
            contest = self._contests[share.kind]
            contest.clock = max(contest.clock, share.virtual)
            share.virtual += share.cost(waiting)
        self._renew(share, wanted)

    def move(self, waiting: Waiting, key: float) -> None:
        if key != waiting.key:
            share = self._share(waiting)
            waiting.key = key
            share.lines[waiting.wanted].put(waiting, (key, waiting.number))
            self._renew(share, waiting.wanted)

    def of_lane(self, wanted: Wanted) -> list[Waiting]:
        lines = (share.lines.get(wanted, ()) for share in self._shares.values())
        return [waiting for line in lines for _, waiting in line]

    def in_order(self, lanes: Collection[Wanted]) -> Iterator[Waiting]:
        """Yield the requests of `lanes` in order. No request may be added, moved or removed meanwhile.

        The caller may remove lanes from `lanes` meanwhile; their requests are skipped from then on.
        Tenants take turns as if each yielded request were served.
        """
        for places in self._by_class():
            yield from self._of_class(places, lanes)

    def _of_class(
        self, places: Iterator[tuple[tuple[float, float, int], _Share]], lanes: Collection[Wanted]
    ) -> Iterator[Waiting]:
        given: dict[_Share, float] = {}
        # The requests' numbers are unique, so that no shares are compared.
        heap: list[tuple[float, float, int, _Share, Wanted, int]] = []
        following = next(places, None)
        while heap or following is not None:
            # A share's requests in `lanes` come no earlier than its place: others are not touched yet.
            while following is not None and (not heap or following[0] < heap[0][:3]):
                share = following[1]
                lines = share.lines if len(share.lines) < len(lanes) else [*lanes]
                for wanted in lines:
                    if wanted in share.lines and wanted in lanes:
                        (key, number), _ = share.lines[wanted].first
                        heappush(heap, (share.virtual, key, number, share, wanted, 0))
                following = next(places, None)
            if not heap:
                return
            virtual, key, number, share, wanted, place = heappop(heap)
            if wanted not in lanes:
                continue
            reached = share.virtual + given.get(share, 0.0)
            if reached > virtual:
                heappush(heap, (reached, key, number, share, wanted, place))
                continue
            line = share.lines[wanted]
            waiting = line[place][1]
            reached += share.cost(waiting)
            given[share] = reached - share.virtual
            if place + 1 < len(line):
                (key, number), _ = line[place + 1]
                heappush(heap, (reached, key, number, share, wanted, place + 1))
            yield waiting

    def _share(self, waiting: Waiting) -> _Share:
        kind, tenant = (waiting.priority, waiting.wanted.model), waiting.tenant
        share = self._shares.get((kind, tenant))
        if share is None:
            contest = self._contests.setdefault(kind, _Contest())
            # An idle tenant gets no credit for it; one that had more than its share still owes it.
            virtual = max(contest.idle.pop(tenant, 0.0), contest.clock)
            weight = self._weights.get(tenant, 1.0)
            share = self._shares[kind, tenant] = _Share(kind, tenant, weight, virtual)
        return share

    def _renew(self, share: _Share, wanted: Wanted) -> None:
        """Sort a share that has changed in a lane; remove what has no waiting requests any more."""
        contest, line = self._contests[share.kind], share.lines[wanted]
        if line:
            share.heads.put(wanted, line.first[0])
        else:
            share.heads.drop(wanted)
            del share.lines[wanted]
        if share.heads:
            contest.places.put(share, (share.virtual, *share.heads.first[0]))
            return
        contest.places.drop(share)
        del self._shares[share.kind, share.tenant]
        if not contest.places:
            # No tenant competes: all begin anew.
            del self._contests[share.kind]
        elif share.virtual > contest.clock:
            contest.idle[share.tenant] = share.virtual
            if len(contest.idle) > MOST_IDLE:
                contest.idle.popitem(last=False)
