"""Who waits, and who gives way where the queue is full.

    class      the lowest first
    caller     the one with the largest part of the queue: a client of the configuration, or an address
    tenant     of that caller, the one with the largest part by its weight
    request    the latest of that tenant

A tenant is only a name that comes with a request, and a caller may make up any number of them; so
callers are compared first. A request's part of the queue is its share of the number that may wait plus
that of their bytes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from warmpath.process.ranking import Ranking
from warmpath.router.config.schema import QueueTable
from warmpath.router.queue.request import Waiting

NO_WEIGHTS: Mapping[str, float] = {}


class Sums:
    """Sums by name, in order of their size by weight. A missing weight is 1."""

    def __init__(self, weights: Mapping[str, float] = NO_WEIGHTS) -> None:
        self._weights = weights
        self._of: dict[str, int] = {}
        self._order: Ranking[str] = Ranking()

    def add(self, name: str, part: int) -> None:
        """Add to a sum; one that is 0 then is forgotten."""
        if after := self._of.pop(name, 0) + part:
            self._of[name] = after
            self._order.put(name, (after / self._weights.get(name, 1.0), name))
        else:
            self._order.drop(name)

    def largest(self, newest: str | None) -> str:
        """Return the name with the largest sum; of equal ones `newest`, if it is among them."""
        name, rank_of = self._order.last, self._order.rank_of
        if newest in self._of and rank_of(newest)[0] == rank_of(name)[0]:
            return newest
        return name


@dataclass(slots=True)
class _Caller:
    """The waiting requests of one caller in one class."""

    sums: Sums
    tenants: dict[str, dict[int, Waiting]] = field(default_factory=dict)
    """By tenant and number, in the order of arrival."""


@dataclass(slots=True)
class _Class:
    """The waiting requests of one class."""

    count: int = 0
    sums: Sums = field(default_factory=Sums)
    callers: dict[str, _Caller] = field(default_factory=dict)


class Crowd:
    """All waiting requests."""

    def __init__(self, settings: QueueTable) -> None:
        self._settings = settings
        self._classes: dict[int, _Class] = {}
        self.bytes = 0
        """Bytes of all requests."""

    def __len__(self) -> int:
        return sum(one.count for one in self._classes.values())

    def __iter__(self) -> Iterator[Waiting]:
        """Yield all requests, in no order."""
        for one in self._classes.values():
            for caller in one.callers.values():
                for requests in caller.tenants.values():
                    yield from requests.values()

    def counts(self) -> Mapping[int, int]:
        """Return the number of requests by class."""
        return {priority: one.count for priority, one in self._classes.items()}

    def add(self, waiting: Waiting) -> None:
        """Add a request."""
        of = self._classes.setdefault(waiting.priority, _Class())
        caller = of.callers.get(waiting.caller)
        if caller is None:
            caller = of.callers[waiting.caller] = _Caller(Sums(self._settings.shares))
        caller.tenants.setdefault(waiting.tenant, {})[waiting.number] = waiting
        self._change(of, caller, waiting, 1)

    def remove(self, waiting: Waiting) -> None:
        """Remove a request."""
        of = self._classes[waiting.priority]
        caller = of.callers[waiting.caller]
        del caller.tenants[waiting.tenant][waiting.number]
        self._change(of, caller, waiting, -1)
        if not caller.tenants[waiting.tenant]:
            del caller.tenants[waiting.tenant]
        if not caller.tenants:
            del of.callers[waiting.caller]
        if not of.count:
            del self._classes[waiting.priority]

    def _change(self, of: _Class, caller: _Caller, waiting: Waiting, sign: int) -> None:
        # In whole numbers, so that sums do not drift: the part times both limits.
        limits = self._settings
        part = sign * (limits.max_bytes + waiting.size * limits.max_requests)
        of.count += sign
        of.sums.add(waiting.caller, part)
        caller.sums.add(waiting.tenant, part)
        self.bytes += sign * waiting.size

    def squeeze_in(self, newcomer: Waiting) -> list[Waiting]:
        """Add a request, and remove those that give way to it; return these.

        Where it would have to give way itself nothing changes, and it is returned alone. One request
        alone may have any size. Where more wait than may, since the limits were lowered, as many may
        stay.
        """
        most = max(self._settings.max_requests, len(self))
        max_bytes = max(self._settings.max_bytes, self.bytes)
        self.add(newcomer)
        gone: list[Waiting] = []
        while len(self) > 1 and (len(self) > most or self.bytes > max_bytes):
            gone.append(one := self._gives_way(newcomer))
            self.remove(one)
            if one is newcomer:
                for other in reversed(gone[:-1]):
                    self.add(other)
                return [newcomer]
        return gone

    def _gives_way(self, newcomer: Waiting) -> Waiting:
        lowest = min(self._classes)
        is_own = newcomer.priority == lowest
        of = self._classes[lowest]
        name = of.sums.largest(newcomer.caller if is_own else None)
        caller = of.callers[name]
        is_own = is_own and name == newcomer.caller
        tenant = caller.sums.largest(newcomer.tenant if is_own else None)
        return next(reversed(caller.tenants[tenant].values()))
