"""The places of a listener's connections: where there are too many, the address with the most gives way.

So one address keeps no other out, whether its connections are idle, answer pings or never get through
their handshake. An idle client connects again with its next call, and notices nothing.
"""

from collections.abc import Callable
from enum import IntEnum


class State(IntEnum):
    """What a connection does; in this order the connections of an address give way."""

    OPENING = 0
    """Its handshake has not ended."""
    IDLE = 1
    """None of its calls is at work."""
    BUSY = 2


class _Address:
    """The places of one address: by state, the one first that has been in it for longest."""

    __slots__ = ("count", "of")

    def __init__(self) -> None:
        self.count = 0
        self.of: dict[State, dict[Place, None]] = {state: {} for state in State}


class Place:
    """The place of one connection; `end` closes it."""

    __slots__ = ("_places", "address", "end", "state")

    def __init__(self, places: "Places", address: str, end: Callable[[], None]) -> None:
        self._places = places
        self.address = address
        self.end = end
        self.state: State | None = State.OPENING
        """None: the place is left, or has been given to another connection."""

    def becomes(self, state: State) -> None:
        """Note what the connection does now; it is the newest of those that do that."""
        if self.state is not None:
            self._places.move(self, state)

    def works(self, *, is_busy: bool) -> None:
        """Note whether calls are at work, or that one was answered."""
        self.becomes(State.BUSY if is_busy else State.IDLE)

    def leave(self) -> None:
        """Give the place back."""
        if self.state is not None:
            self._places.move(self, None)


class Places:
    """At most `most` places."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.opening = 0
        """The number of connections whose handshake has not ended."""
        self._all = 0
        self._of: dict[str, _Address] = {}

    def __len__(self) -> int:
        return self._all

    def enter(self, address: str, end: Callable[[], None]) -> Place | None:
        """Return a place for a new connection, which `end` closes; None if there is none for it."""
        if self._all >= self.most and not self._give_way(address):
            return None
        place = Place(self, address, end)
        of = self._of.get(address)
        if of is None:
            of = self._of[address] = _Address()
        of.of[State.OPENING][place] = None
        of.count += 1
        self.opening += 1
        self._all += 1
        return place

    def move(self, place: Place, state: State | None) -> None:
        """Change the state of a place; None: it is free."""
        of, before = self._of[place.address], place.state
        assert before is not None
        del of.of[before][place]
        place.state = state
        self.opening += (state is State.OPENING) - (before is State.OPENING)
        if state is not None:
            of.of[state][place] = None
            return
        of.count -= 1
        self._all -= 1
        if not of.count:
            del self._of[place.address]

    def _give_way(self, address: str) -> bool:
        """End a connection of the address that has the most with a new one of `address`; return whether.

        A busy one, the latest, ends only where its address has more than the new one's afterwards, too.
        """
        if not self._of:
            return False
        own = self._of.get(address)
        count = own.count + 1 if own is not None else 1
        most = max(self._of.values(), key=_count)
        if own is not None and count > most.count:
            most = own
        opening, idle, busy = most.of.values()
        place = next(iter(opening), None) or next(iter(idle), None)
        if place is None and most.count > count:
            place = next(reversed(busy), None)
        if place is None:
            return False
        place.leave()
        place.end()
        return True


def _count(of: _Address) -> int:
    return of.count
