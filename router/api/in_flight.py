"""Which calls may have their message read: the bytes of all that are read and answered are bounded.

A call has a place from before its message is read until it is answered. As long as nobody knows how long
the message is, the place is as large as the largest; then it is as large as the message. A client, which
is a connection, that has a place gets another one only while as much is left free as all its places take
then: so there is room for one that has none, and one client alone uses half. Who has none comes before
all who have one. Calls that wait are let in client by client.

A connection whose last message did not come, or that has sent none yet, is a stranger. All strangers
share the places of one client, so that callers who open connections and send nothing keep nobody out
whose messages come; strangers whose message was late come last among them.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from enum import Enum

MOST_WAITING = 512
"""Calls that wait, each with up to 256 KiB that were sent along; past it the connection with the most of
them has its latest refused."""

MOST_KNOWN = 4096
"""Connections that are remembered for their last message, the latest."""
STRANGERS = ""


class State(Enum):
    """How far a call has come."""

    WAITING = 0
    READING = 1
    READ = 2
    LEFT = 3


class NoPlaceError(Exception):
    """Too many calls wait for room."""


class LateError(Exception):
    """A message did not come in time, and others wait."""


class Place:
    """A call's; `wake` is called with None when a call that waited may read, and with what ends it."""

    __slots__ = ("bytes", "client", "connection", "since", "state", "wake")

    def __init__(
        self, connection: str, client: str, size: int, wake: Callable[[Exception | None], None]
    ) -> None:
        self.connection = connection
        self.client = client
        """The connection, or `STRANGERS`: whose places it shares."""
        self.bytes = max(size, 1)
        self.wake = wake
        self.state = State.WAITING
        self.since = 0.0
        """When it could begin to read."""


class InFlight:
    """All places. `limit` and `largest` are bytes; one message alone may be larger than the limit.

    A message that has not come `seconds` after it could be read loses its place where others wait.
    Not for several threads.
    """

    def __init__(
        self,
        limit: int,
        largest: int,
        *,
        seconds: float,
        clock: Callable[[], float],
        most_waiting: int = MOST_WAITING,
    ) -> None:
        self.limit = limit
        self.bytes = 0
        """Of all places."""
        self.waiting = 0
        """Calls."""
        self.refused = 0
        self.late = 0
        self._largest = largest
        self._seconds = seconds
        self._clock = clock
        self._most_waiting = most_waiting
        self._taken: dict[str, int] = {}
        """Bytes of each client that has any place."""
        self._reading: dict[Place, None] = {}
        """The oldest first."""
        self._queues: OrderedDict[str, deque[Place]] = OrderedDict()
        """Of each connection that waits, in the order of their turns."""
        self._known: OrderedDict[str, bool] = OrderedDict()
        """Whether each connection's last message came in time; the latest are the last."""

    def enter(
        self, connection: str, wake: Callable[[Exception | None], None], size: int | None = None
    ) -> Place:
        """Return a call's place, which waits or may read; `size` is its message's, where it is known.

        Raises NoPlaceError.
        """
        client = connection if self._known.get(connection) else STRANGERS
        place = Place(connection, client, self._largest if size is None else size, wake)
        if not self.waiting and self._fits(place) and self._is_fair(place):
            self._let_in(place)
            return place
        self._queues.setdefault(connection, deque()).append(place)
        self.waiting += 1
        for other in self._turns():
            if other is not place:
                other.wake(None)
        if self.waiting > self._most_waiting:
            self._refuse_one(place)
        return place

    def has_read(self, place: Place, size: int) -> None:
        """Take note of the length of a message that was read."""
        self._reading.pop(place, None)
        place.state = State.READ
        self._remember(place.connection, came=True)
        self._resize(place, max(size, 1))
        self._go_on()

    def leave(self, place: Place) -> None:
        """Take note that a call has ended, however far it had come."""
        state, place.state = place.state, State.LEFT
        if state is State.LEFT:
            return
        if state is State.WAITING:
            self._forget(place)
        else:
            self._reading.pop(place, None)
            self._resize(place, 0)
        self._go_on()

    def end_late(self) -> None:
        """End calls whose message is late and keeps others out; each leaves when it has ended."""
        if not self.waiting:
            return
        before = self._clock() - self._seconds
        waiting = {queue[0].client for queue in self._queues.values()}
        kept_out = any(client not in self._taken for client in waiting)
        for place in list(self._reading):
            if place.since > before:
                break
            # Who waits beside places of its own waits for those, and not for somebody else's.
            if kept_out or place.client in waiting:
                del self._reading[place]
                self.late += 1
                self._remember(place.connection, came=False)
                place.wake(LateError())

    def _go_on(self) -> None:
        if self.waiting:
            for place in self._turns():
                place.wake(None)

    def _turns(self) -> list[Place]:
        """Let in who may; return them."""
        let_in = []
        while place := self._next():
            self._forget(place)
            if place.connection in self._queues:
                self._queues.move_to_end(place.connection)
            self._let_in(place)
            let_in.append(place)
        return let_in

    def _next(self) -> Place | None:
        """Return the call whose turn it is, and that may be read now."""
        fair = None
        for connection in sorted(self._queues, key=self._was_late):
            place = self._queues[connection][0]
            if place.client not in self._taken:
                # What is free is kept for it until it is enough.
                return place if self._fits(place) else None
            if fair is None and self._is_fair(place) and self._fits(place):
                fair = place
        return fair

    def _was_late(self, connection: str) -> bool:
        return self._known.get(connection) is False

    def _remember(self, connection: str, *, came: bool) -> None:
        self._known[connection] = came
        self._known.move_to_end(connection)
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)

    def _fits(self, place: Place) -> bool:
        return not self.bytes or self.bytes + place.bytes <= self.limit

    def _is_fair(self, place: Place) -> bool:
        taken = self._taken.get(place.client, 0)
        return not taken or taken + place.bytes <= self.limit - self.bytes

    def _let_in(self, place: Place) -> None:
        place.state = State.READING
        place.since = self._clock()
        self._reading[place] = None
        self.bytes += place.bytes
        self._taken[place.client] = self._taken.get(place.client, 0) + place.bytes

    def _resize(self, place: Place, size: int) -> None:
        more = size - place.bytes
        place.bytes = size
        self.bytes += more
        taken = self._taken[place.client] + more
        if taken:
            self._taken[place.client] = taken
        else:
            del self._taken[place.client]

    def _forget(self, place: Place) -> None:
        queue = self._queues[place.connection]
        queue.remove(place)
        self.waiting -= 1
        if not queue:
            del self._queues[place.connection]

    def _refuse_one(self, newest: Place) -> None:
        """Refuse the latest call of who waits most. Raises NoPlaceError where that is the newest."""
        self.refused += 1
        longest = max(self._queues.values(), key=len)
        if len(longest) == len(self._queues[newest.connection]):
            longest = self._queues[newest.connection]
        refused = longest[-1]
        self._forget(refused)
        refused.state = State.LEFT
        if refused is newest:
            raise NoPlaceError
        refused.wake(NoPlaceError())

    def check(self) -> None:
        """Raise AssertionError where the figures are not what the places come to."""
        assert self.waiting == sum(map(len, self._queues.values()))
        assert all(self._queues.values())
        assert self.waiting <= self._most_waiting
        assert self.bytes == sum(self._taken.values())
        assert all(taken > 0 for taken in self._taken.values())
        assert all(place.state is State.READING for place in self._reading)
        assert len(self._known) <= MOST_KNOWN
        assert self._next() is None, "somebody waits for nothing"
