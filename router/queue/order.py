"""The order of waiting requests in a release.

    class (`priority`)   the highest first
    share of a tenant    the least virtual time first: the uncached tokens that it was given so far, by
                         its weight (start-time fair queueing)
    key                  `Precedence.place` of the cheapest prefill, the least first

Requests that want the same pods share a lane, so that requests whose pods are full do not delay requests
for other pods. Tenants share the pods of a model, whatever the lanes of their requests.

Source: Goyal, Vin, Cheng, "Start-time Fair Queueing", 1996.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import islice

from warmpath.process.ranking import Ranking
from warmpath.router.pick.eligible import Wanted
from warmpath.router.queue.request import Waiting

MOST_IDLE = 4096
"""Most tenants of a kind that have no waiting requests and are kept, since they are ahead of others."""

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
    lines: "dict[Wanted, _Line]" = field(default_factory=dict)
    heads: "Ranking[_Line]" = field(default_factory=Ranking)
    """Its lines by the key and the number of their first request."""


@dataclass(slots=True, eq=False)
class _Contest:
    """The tenants of one kind."""

    number: int = 0
    """The number of tenants with waiting requests."""
    clock: float = 0.0
    """The virtual time of the share whose request was served last."""
    idle: OrderedDict[str, float] = field(default_factory=OrderedDict)
    """Virtual times of the tenants without waiting requests that are ahead of `clock`."""


@dataclass(slots=True, eq=False)
class _Line:
    """The waiting requests of one share in one lane, by key."""

    share: _Share
    wanted: Wanted
    requests: Ranking[Waiting] = field(default_factory=Ranking)
    """By key and number."""


class Order:
    """All waiting requests in order. `shares` are the tenants' weights; a missing tenant has 1."""

    def __init__(self, shares: Mapping[str, float]) -> None:
        self._weights = shares
        self._lanes: dict[Wanted, dict[int, Ranking[_Line]]] = {}
        """By lane and class: its lines by the virtual time that their share had when they changed last,
        and by the key and the number of their first request."""
        self._shares: dict[tuple[Kind, str], _Share] = {}
        """Shares with waiting requests."""
        self._contests: dict[Kind, _Contest] = {}
        """The kinds with waiting requests."""
        self._places: dict[int, Ranking[_Share]] = {}
        """By class: its shares by virtual time, and by the key and the number of their first request."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def lanes(self) -> Collection[Wanted]:
        """The lanes with waiting requests."""
        return self._lanes.keys()

    def leading(self, most: int) -> list[Wanted]:
        """Return at most `most` lanes, those with the first requests: tenants take turns.

        Of each class only the first `most` tenants count.
        """
        found: dict[Wanted, None] = {}
        for priority in sorted(self._places, reverse=True):
            shares = [share for _, share in islice(self._places[priority], most)]
            for at in range(most):
                shares = [share for share in shares if at < len(share.heads)]
                for share in shares:
                    found[share.heads[at][1].wanted] = None
                    if len(found) == most:
                        return [*found]
        return [*found]

    def by_class(self) -> list[Wanted]:
        """Return the sets of pods that requests wait for, those with the highest class first."""
        return sorted(self._lanes, key=lambda wanted: max(self._lanes[wanted]), reverse=True)

    def add(self, waiting: Waiting) -> None:
        """Add a request."""
        share = self._share(waiting)
        line = share.lines.get(waiting.wanted)
        if line is None:
            line = share.lines[waiting.wanted] = _Line(share, waiting.wanted)
        line.requests.put(waiting, (waiting.key, waiting.number))
        self._renew(line)
        self._count += 1

    def remove(self, waiting: Waiting, *, is_served: bool) -> None:
        """Remove a request; with `is_served`, its share pays for its uncached tokens."""
        kind = (waiting.priority, waiting.wanted.model)
        share = self._shares[kind, waiting.tenant]
        line = share.lines[waiting.wanted]
        line.requests.drop(waiting)
        if is_served:
            contest = self._contests[kind]
            contest.clock = max(contest.clock, share.virtual)
            share.virtual += _cost(waiting, share)
        self._renew(line)
        if not share.lines:
            self._rest(share)
        self._count -= 1

    def move(self, waiting: Waiting, key: float) -> None:
        """Give a request another key."""
        if key == waiting.key:
            return
        share = self._shares[(waiting.priority, waiting.wanted.model), waiting.tenant]
        line = share.lines[waiting.wanted]
        waiting.key = key
        line.requests.put(waiting, (key, waiting.number))
        self._renew(line)

    def of_lane(self, wanted: Wanted) -> list[Waiting]:
        """Return the requests of a lane."""
        lines = (line for lines in self._lanes[wanted].values() for _, line in lines)
        return [waiting for line in lines for _, waiting in line.requests]

    def passing(self, lanes: Collection[Wanted]) -> Iterator[Waiting]:
        """Yield the requests of `lanes` in order. No request may be added, moved or removed meanwhile.

        The caller may remove lanes from `lanes` meanwhile; their requests are skipped from then on.
        Tenants take turns as if each yielded request were served.
        """
        given: dict[_Share, float] = {}
        # The requests' numbers are unique, so that neither lines nor iterators are compared.
        heap: list[tuple[_Next, Iterator[_Next] | None]] = []
        for heads in [self._heads(wanted) for wanted in lanes if wanted in self._lanes]:
            heappush(heap, (next(heads), heads))
        while heap:
            (priority, virtual, key, number, line, place), others = heappop(heap)
            following = next(others, None) if others is not None else None
            if following is not None:
                heappush(heap, (following, others))
            if line.wanted not in lanes:
                continue
            share = line.share
            reached = share.virtual + given.get(share, 0.0)
            if reached > virtual:
                heappush(heap, ((priority, reached, key, number, line, place), None))
                continue
            waiting = line.requests[place][1]
            reached += _cost(waiting, share)
            given[share] = reached - share.virtual
            if place + 1 < len(line.requests):
                (key, number), _ = line.requests[place + 1]
                heappush(heap, ((priority, reached, key, number, line, place + 1), None))
            yield waiting

    def _heads(self, wanted: Wanted) -> "Iterator[_Next]":
        """Yield the heads of a lane's lines in order."""
        classes = self._lanes[wanted]
        for priority in sorted(classes, reverse=True):
            for (virtual, key, number), line in classes[priority]:
                yield -priority, virtual, key, number, line, 0

    def _share(self, waiting: Waiting) -> _Share:
        kind, tenant = (waiting.priority, waiting.wanted.model), waiting.tenant
        share = self._shares.get((kind, tenant))
        if share is None:
            contest = self._contests.setdefault(kind, _Contest())
            contest.number += 1
            # An idle tenant gets no credit for it; one that had more than its share still owes it.
            virtual = max(contest.idle.pop(tenant, 0.0), contest.clock)
            weight = self._weights.get(tenant, 1.0)
            share = self._shares[kind, tenant] = _Share(kind, tenant, weight, virtual)
        return share

    def _rest(self, share: _Share) -> None:
        """Remove a share without waiting requests; keep its virtual time if it is ahead."""
        del self._shares[share.kind, share.tenant]
        contest = self._contests[share.kind]
        contest.number -= 1
        if not contest.number:
            # No tenant competes: all begin anew.
            del self._contests[share.kind]
        elif share.virtual > contest.clock:
            contest.idle[share.tenant] = share.virtual
            if len(contest.idle) > MOST_IDLE:
                contest.idle.popitem(last=False)

    def _renew(self, line: _Line) -> None:
        """Sort a line that has changed among those of its lane and of its share, and sort the share.

        The share's other lines keep an earlier virtual time; `passing` sees to that.
        """
        share = line.share
        priority = share.kind[0]
        classes = self._lanes.setdefault(line.wanted, {})
        lines = classes.setdefault(priority, Ranking())
        places = self._places.setdefault(priority, Ranking())
        if line.requests:
            rank, _ = line.requests.first
            lines.put(line, (share.virtual, *rank))
            share.heads.put(line, rank)
        else:
            lines.drop(line)
            share.heads.drop(line)
            del share.lines[line.wanted]
            if not lines:
                del classes[priority]
            if not classes:
                del self._lanes[line.wanted]
        if share.heads:
            places.put(share, (share.virtual, *share.heads.first[0]))
        else:
            places.drop(share)
            if not places:
                del self._places[priority]


_Next = tuple[int, float, float, int, _Line, int]
"""A request's class, negated; its share's virtual time; its key, number, line and place in the line."""


def _cost(waiting: Waiting, share: _Share) -> float:
    return max(1, waiting.uncached) / share.weight
