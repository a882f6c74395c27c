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
from typing import Any, Generic, Protocol, TypeVar

from warmpath.process.ranking import Ranking
from warmpath.router.config.schema import QueueTable


class Member(Protocol):
    """A waiting request; its fields are as those of `router.queue.request.Waiting`."""

    number: int
    priority: int
    tenant: str
    size: int
    caller: str


M = TypeVar("M", bound=Member)


@dataclass(slots=True)
class _Group:
    """All waiting requests, or those of a class, of a caller in it, or of a tenant of that caller."""

    count: int = 0
    part: int = 0
    """The sum of their parts of the queue."""
    groups: "dict[Any, _Group]" = field(default_factory=dict)
    """The classes, the callers of a class, or the tenants of a caller."""
    order: Ranking[Any] = field(default_factory=Ranking)
    """The groups by their part of the queue, divided by a tenant's weight. A full queue looks for the
    largest at each request, and callers may make up any number of tenants."""
    requests: dict[int, Any] = field(default_factory=dict)
    """The requests of a tenant by number, in the order of arrival."""


class Crowd(Generic[M]):
    """All waiting requests."""

    def __init__(self, settings: QueueTable) -> None:
        self._settings = settings
        self._all = _Group()
        self.bytes = 0
        """Bytes of all requests."""

    def __len__(self) -> int:
        return sum(one.count for one in self._all.groups.values())

    def __iter__(self) -> Iterator[M]:
        for one in self._all.groups.values():
            for caller in one.groups.values():
                for tenant in caller.groups.values():
                    yield from tenant.requests.values()

    def counts(self) -> Mapping[int, int]:
        return {priority: one.count for priority, one in self._all.groups.items()}

    def add(self, waiting: M) -> None:
        self._change(waiting, 1).requests[waiting.number] = waiting

    def remove(self, waiting: M) -> None:
        del self._change(waiting, -1).requests[waiting.number]

    def _change(self, waiting: M, sign: int) -> _Group:
        # In whole numbers, so that sums do not drift: the part times both limits.
        limits, of = self._settings, self._all
        weight = limits.shares.get(waiting.tenant, 1.0)
        names = (waiting.priority, 1.0), (waiting.caller, 1.0), (waiting.tenant, weight)
        for name, by in names:
            group = of.groups.setdefault(name, _Group())
            group.count += sign
            group.part += sign * (limits.max_bytes + waiting.size * limits.max_requests)
            if group.count:
                of.order.put(name, (group.part / by, name))
            else:
                del of.groups[name]
                of.order.drop(name)
            of = group
        self.bytes += sign * waiting.size
        return of

    def squeeze_in(self, newcomer: M) -> list[M]:
        """Add a request, and remove those that give way to it; return these.

        Where it would have to give way itself nothing changes, and it is returned alone. One request
        alone may have any size. Where more wait than may, since the limits were lowered, as many may
        stay.
        """
        most = max(self._settings.max_requests, len(self))
        max_bytes = max(self._settings.max_bytes, self.bytes)
        self.add(newcomer)
        gone: list[M] = []
        while len(self) > 1 and (len(self) > most or self.bytes > max_bytes):
            gone.append(one := self._gives_way(newcomer))
            self.remove(one)
            if one is newcomer:
                for other in reversed(gone[:-1]):
                    self.add(other)
                return [newcomer]
        return gone

    def _gives_way(self, newcomer: M) -> M:
        """Return the request that gives way; among equal callers and tenants the newcomer's."""
        lowest = min(self._all.groups)
        group, is_own = self._all.groups[lowest], newcomer.priority == lowest
        for own in (newcomer.caller, newcomer.tenant):
            name, rank_of = group.order.last, group.order.rank_of
            if is_own and rank_of(own)[0] == rank_of(name)[0]:
                name = own
            is_own = is_own and name == own
            group = group.groups[name]
        latest: M = next(reversed(group.requests.values()))
        return latest
