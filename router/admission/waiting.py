"""Calls that wait: the addresses that they come from take turns, and so do an address's connections."""

from collections import OrderedDict, deque
from collections.abc import Callable

from warmpath.h2grpc.metadata import address_of


class Turn:
    """A call's place in the queue. `wake(None)` begins its work; `wake(error)` refuses it."""

    __slots__ = ("address", "begins", "connection", "is_patient", "is_urgent", "wake")

    def __init__(
        self,
        connection: str,
        wake: Callable[[Exception | None], None],
        *,
        is_urgent: bool,
        is_patient: bool,
    ) -> None:
        self.connection = connection
        self.address = address_of(connection)
        self.wake = wake
        self.is_urgent = is_urgent
        self.is_patient = is_patient
        """Whether it may wait without limit, as the next message of a stream does."""
        self.begins = False
        """Whether its work may begin."""


class _Calls:
    """Waiting calls from one address; its connections take turns."""

    def __init__(self) -> None:
        self._of: OrderedDict[str, deque[Turn]] = OrderedDict()
        self._counts: dict[str, int] = {}
        """The number of calls that are not patient, of each connection with any."""
        self.refusable = 0
        """The sum of these numbers."""

    def __bool__(self) -> bool:
        return bool(self._of)

    def put(self, turn: Turn) -> None:
        self._of.setdefault(turn.connection, deque()).append(turn)
        self._count(turn, 1)

    def take(self) -> Turn:
        """Remove and return the next call; all other connections have their turn before its own."""
        connection, turns = next(iter(self._of.items()))
        turn = turns.popleft()
        self._count(turn, -1)
        if turns:
            self._of.move_to_end(connection)
        else:
            del self._of[connection]
        return turn

    def remove(self, turn: Turn) -> bool:
        """Remove a call, if it is here; return whether it was."""
        turns = self._of.get(turn.connection)
        if turns is None or turn not in turns:
            return False
        turns.remove(turn)
        self._count(turn, -1)
        if not turns:
            del self._of[turn.connection]
        return True

    def latest_of_most(self) -> Turn:
        """Return the latest call that is not patient, of the connection with the most of them."""
        connection = max(self._counts, key=self._counts.__getitem__)
        return next(turn for turn in reversed(self._of[connection]) if not turn.is_patient)

    def has_most(self, connection: str) -> bool:
        """Return whether a connection's next call would be the one of that with the most."""
        return self._counts.get(connection, 0) + 1 >= max(self._counts.values(), default=0)

    def _count(self, turn: Turn, change: int) -> None:
        if turn.is_patient:
            return
        self.refusable += change
        count = self._counts.get(turn.connection, 0) + change
        if count:
            self._counts[turn.connection] = count
        else:
            del self._counts[turn.connection]


class WaitingCalls:
    """Waiting calls; the addresses take turns."""

    def __init__(self) -> None:
        self._of: OrderedDict[str, _Calls] = OrderedDict()
        self._all = 0
        self.refusable = 0
        """The number of calls that are not patient."""

    def __len__(self) -> int:
        return self._all

    def put(self, turn: Turn) -> None:
        """Add a call; it is the last one of its connection."""
        calls = self._of.get(turn.address)
        if calls is None:
            calls = self._of[turn.address] = _Calls()
        calls.put(turn)
        self._count(turn, 1)

    def take(self) -> Turn:
        """Remove and return the next call; all other addresses have their turn before its own."""
        address, calls = next(iter(self._of.items()))
        turn = calls.take()
        self._count(turn, -1)
        if calls:
            self._of.move_to_end(address)
        else:
            del self._of[address]
        return turn

    def remove(self, turn: Turn) -> None:
        """Remove a call, if it is here."""
        calls = self._of.get(turn.address)
        if calls is None or not calls.remove(turn):
            return
        self._count(turn, -1)
        if not calls:
            del self._of[turn.address]

    def _count(self, turn: Turn, change: int) -> None:
        self._all += change
        self.refusable += change * (not turn.is_patient)

    def latest_of_most(self) -> Turn:
        """Return the latest call that is not patient, of the address with the most of them."""
        return max(self._of.values(), key=_refusable).latest_of_most()

    def address_has_most(self, connection: str) -> bool:
        """Return whether the next call of a connection would be one of the address with the most."""
        calls = self._of.get(address_of(connection))
        most = max(map(_refusable, self._of.values()), default=0)
        return (calls.refusable if calls is not None else 0) + 1 >= most

    def has_most(self, connection: str) -> bool:
        """Return whether the next call of a connection would be one of its address's with the most."""
        calls = self._of.get(address_of(connection))
        return calls is not None and calls.has_most(connection)


def _refusable(calls: _Calls) -> int:
    return calls.refusable
