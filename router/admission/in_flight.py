"""Decides which calls may read their message, so that all messages in memory stay within a limit.

A call has a place from before its message is read until it is answered. A place counts as many bytes as
its message or, before the message is read, as the largest allowed message. A client is an address, with
all connections from it. A client with places gets another one only if its places, the new one included,
have at most the bytes that were free before. So one client alone uses at most half and half of its
newest message, and a client without places finds room. Clients come first that have the fewest bytes;
among equals, waiting connections take turns.

A connection is a stranger if its last message did not arrive in time, or if it has sent none yet. The
strangers of an address are one client, and all whose last message was late are another one. Together
they have no more than one client may have, so connections that send nothing cannot keep out those that
do. Where others wait, a stranger's message may take `STRANGER_SECONDS`. Those that were late come last.
"""

from collections import OrderedDict
from collections.abc import Callable

from warmpath.h2grpc.metadata import address_of
from warmpath.router.admission.waiting_calls import CallState, Reservation, WaitingCalls

MOST_WAITING = 512
"""The most waiting calls; of each the transport has buffered up to 64 KiB (nghttp2) or 256 KiB (grpcio).
Beyond it the latest call of the client with the most waiting calls is refused."""

MOST_KNOWN = 4096
"""Most connections, the latest ones, for which it is known whether the last message came in time."""
STRANGER = "stranger "
"""The beginning of the name of the client that the strangers of an address are."""
LATE = f"{STRANGER}that was late"
"""The name of the client that all strangers are whose last message was late."""
STRANGER_SECONDS = 0.25
"""How long a stranger's message of unknown length may take while others wait for its place."""


class NoPlaceError(Exception):
    """A call is refused because too many calls wait for a place."""


class LateError(Exception):
    """A call is ended because its message did not arrive in `seconds` and other calls wait."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds


class InFlight:
    """All places. `limit` is in bytes of all messages, `largest` of one; one alone may exceed `limit`.

    A call loses its place if its message has not arrived after `seconds` and others wait. Not
    thread-safe.
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
        """Bytes of all places."""
        self.refused = 0
        """Calls refused because too many waited."""
        self.late = 0
        """Calls ended because their message was late."""
        self._largest = largest
        self._seconds = seconds
        self._clock = clock
        self._most_waiting = most_waiting
        self._taken: dict[str, int] = {}
        """Bytes of each client with places."""
        self._strangers = 0
        """Bytes of all strangers."""
        self._waiting = WaitingCalls(_kind, self._rank)
        self._reading: dict[Reservation, None] = {}
        """Places whose message has not arrived yet, the oldest first."""
        self._known: OrderedDict[str, bool] = OrderedDict()
        """Whether each connection's last message came in time, the latest connection last."""

    @property
    def waiting(self) -> int:
        return self._waiting.number

    def enter(
        self, connection: str, wake: Callable[[Exception | None], None], size: int | None = None
    ) -> Reservation:
        """Return a call's place, in state WAITING or READING. `size`: bytes of its message, if known.

        Raises NoPlaceError.
        """
        client = self._client(connection)
        is_stranger = size is None and client.startswith(STRANGER)
        seconds = min(STRANGER_SECONDS, self._seconds) if is_stranger else self._seconds
        largest = self._largest if size is None else max(size, 1)
        place = Reservation(connection, client, largest, seconds, wake)
        if not self.waiting and self._fits(place) and self._is_fair(place):
            self._let_in(place)
            return place
        self._waiting.add(place)
        self._go_on(place)
        if self.waiting > self._most_waiting:
            self._refuse_one(place)
            # The refused call may have kept others waiting.
            self._go_on(place)
        return place

    def reads(self, place: Reservation) -> None:
        """Note that a call that has waited for its place reads its message from now on."""
        place.since = self._clock()
        if place in self._reading:
            self._reading[place] = self._reading.pop(place)

    def has_read(self, place: Reservation, size: int) -> None:
        """Give a place the size in bytes of its message, which has been read."""
        self._reading.pop(place, None)
        place.state = CallState.READ
        self.remember(place.connection, came=True)
        if size != place.bytes:
            self._resize(place, max(size, 1))
        self._go_on()

    def leave(self, place: Reservation) -> None:
        """Free the place of a call that has ended, in any state."""
        state, place.state = place.state, CallState.LEFT
        if state is CallState.LEFT:
            return
        if state is CallState.WAITING:
            self._waiting.drop(place)
        else:
            self._reading.pop(place, None)
            self._resize(place, 0)
        self._go_on()

    def limit_to(self, limit: int) -> None:
        self.limit = limit
        self._go_on()

    def end_late(self) -> None:
        """End calls whose late message keeps others waiting; each still has to `leave`."""
        if not self.waiting:
            return
        now = self._clock()
        waiting = self._waiting.clients
        kept_out = any(client not in self._taken for client in waiting)
        for place in list(self._reading):
            if now - place.since < place.seconds:
                continue
            # A client with places waits for its own places only, not for those of other clients.
            if kept_out or place.client in waiting:
                del self._reading[place]
                self.late += 1
                self.remember(place.connection, came=False)
                place.wake(LateError(place.seconds))

    def _go_on(self, newest: Reservation | None = None) -> None:
        """Give places to those whose turn it is; wake all but the newest, which sees its own state."""
        let_in = []
        while self.waiting and (place := self._next()):
            self._waiting.drop(place, has_turn=True)
            self._let_in(place)
            let_in.append(place)
        for place in let_in:
            if place is not newest:
                place.wake(None)

    def _next(self) -> Reservation | None:
        fair = None
        for place in self._waiting.firsts():
            if place.client not in self._taken and self._is_fair(place):
                # A client without places comes first: others wait until its message fits.
                return place if self._fits(place) else None
            if fair is None and self._is_fair(place) and self._fits(place):
                fair = place
        return fair

    def _rank(self, client: str) -> tuple[bool, int, int]:
        # The one with few calls among many strangers is hardly the one that says nothing.
        waiting = self._waiting.of_client(client) if client.startswith(STRANGER) else 0
        return client == LATE, self._taken.get(client, 0), waiting

    def _client(self, connection: str) -> str:
        came = self._known.get(connection)
        if came is False:
            return LATE
        address = address_of(connection)
        return address if came else STRANGER + address

    def remember(self, connection: str, *, came: bool) -> None:
        """Note whether a connection's last message came in time."""
        if self._known.get(connection) is came:
            self._known.move_to_end(connection)
            return
        before = self._client(connection)
        self._known[connection] = came
        self._known.move_to_end(connection)
        self._rename(connection, before)
        if len(self._known) > MOST_KNOWN:
            oldest = next(iter(self._known))
            before = self._client(oldest)
            del self._known[oldest]
            self._rename(oldest, before)

    def _rename(self, connection: str, before: str) -> None:
        """Let a connection's waiting calls be those of the client that it belongs to now."""
        client = self._client(connection)
        if client == before:
            return
        for place in self._waiting.of_connection(before, connection):
            self._waiting.drop(place)
            place.client = client
            self._waiting.add(place)

    def _fits(self, place: Reservation) -> bool:
        return not self.bytes or self.bytes + place.bytes <= self.limit

    def _is_fair(self, place: Reservation) -> bool:
        free = self.limit - self.bytes
        taken = self._taken.get(place.client, 0)
        if place.client.startswith(STRANGER):
            if self._strangers and self._strangers + place.bytes > free:
                return False
            # They share what all of them may still have as clients share the limit.
            free = (free - self._strangers) // 2 + place.bytes
        return not taken or taken + place.bytes <= free

    def _let_in(self, place: Reservation) -> None:
        place.state = CallState.READING
        place.since = self._clock()
        self._reading[place] = None
        self._take(place, place.bytes)

    def _resize(self, place: Reservation, size: int) -> None:
        self._take(place, size - place.bytes)
        place.bytes = size

    def _take(self, place: Reservation, more: int) -> None:
        self.bytes += more
        if place.client.startswith(STRANGER):
            self._strangers += more
        taken = self._taken.get(place.client, 0) + more
        if taken:
            self._taken[place.client] = taken
        else:
            del self._taken[place.client]
        self._waiting.rank(place.client)

    def _refuse_one(self, newest: Reservation) -> None:
        """Refuse a call of the client with the most. Raises NoPlaceError if that is `newest`."""
        self.refused += 1
        refused = self._waiting.to_refuse(newest)
        self._waiting.drop(refused)
        refused.state = CallState.LEFT
        if refused is newest:
            raise NoPlaceError
        refused.wake(NoPlaceError())


def _kind(client: str) -> int:
    # One rule says for all clients of a kind whether they may have a place.
    return client.startswith(STRANGER) + (client == LATE)
