"""The places of a listener's connections: where there are too many, the address with the most gives way.

So one address keeps no other out, whether its connections are idle, answer pings or never get through
their handshake. An idle client connects again with its next call, and notices nothing.
"""

from collections.abc import Callable, Iterable
from enum import IntEnum


class State(IntEnum):
    """What a connection does; in this order the connections of an address give way."""

    OPENING = 0
    """Its handshake has not ended."""
    IDLE = 1
    """None of its calls is at work."""
    STALLED = 2
    """It is at work, and lets a message wait that it does not read."""
    BUSY = 3


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

    def stalls(self, *, is_stalled: bool) -> None:
        """Note whether a message waits for a busy connection; it stays as old as it was."""
        if self.state is not None:
            self.state = State.STALLED if is_stalled else State.BUSY

    def leave(self) -> None:
        """Give the place back; nothing happens to one that was given back already."""
        if self.state is not None:
            self._places.move(self, None)


class Places:
    """At most `most` places."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.opening = 0
        """The number of connections whose handshake has not ended."""
        self._all = 0
        self._of: dict[str, dict[Place, None]] = {}
        """The places of each address: of those with one state, the one first that has had it longest."""

    def __len__(self) -> int:
        return self._all

    def enter(self, address: str, end: Callable[[], None]) -> Place | None:
        """Return a place for a new connection, which `end` closes; None if there is none for it."""
        if self._all >= self.most and not self._give_way(address):
            return None
        place = Place(self, address, end)
        self._of.setdefault(address, {})[place] = None
        self.opening += 1
        self._all += 1
        return place

    def move(self, place: Place, state: State | None) -> None:
        """Change the state of a place; None: it is free."""
        of = self._of[place.address]
        del of[place]
        self.opening += (state is State.OPENING) - (place.state is State.OPENING)
        place.state = state
        if state is not None:
            of[place] = None
            return
        self._all -= 1
        if not of:
            del self._of[place.address]

    def _give_way(self, address: str) -> bool:
        """End a connection of the address that has the most with a new one of `address`; return whether.

        A busy one, the latest unless one stalls, ends only where its address has more than the new
        one's afterwards, too.
        """
        if not self._of:
            return False
        own = self._of.get(address, {})
        count = len(own) + 1
        most = max(self._of.values(), key=len)
        if own and count > len(most):
            most = own
        place = _first(most, State.OPENING) or _first(most, State.IDLE)
        if place is None and len(most) > count:
            place = _first(most, State.STALLED) or _first(reversed(most), State.BUSY)
        if place is None:
            return False
        place.leave()
        place.end()
        return True


def _first(places: Iterable[Place], state: State) -> Place | None:
    return next((place for place in places if place.state is state), None)
