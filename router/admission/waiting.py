"""Calls that wait: the addresses that they come from take turns, and so do an address's connections."""

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from warmpath.h2grpc.metadata import address_of


@dataclass(slots=True, eq=False)
class Turn:
    """A call's place in the queue. `wake(None)` begins its work; `wake(error)` refuses it."""

    connection: str
    wake: Callable[[Exception | None], None]
    is_urgent: bool
    is_patient: bool
    """Whether it may wait without limit, as the next message of a stream does."""
    begins: bool = False
    """Whether its work may begin."""
    address: str = field(init=False)

    def __post_init__(self) -> None:
        self.address = address_of(self.connection)


class _Line(deque[Turn]):
    """The waiting calls of one connection."""

    put, take = deque[Turn].append, deque[Turn].popleft

    def drop(self, turn: Turn) -> bool:
        is_here = turn in self
        if is_here:
            self.remove(turn)
        return is_here

    def latest_of_most(self) -> Turn:
        return next(turn for turn in reversed(self) if not turn.is_patient)


class WaitingCalls:
    """Waiting calls, in a tree: the values of the first of `keys` take turns, and so on below each.

    The keys are names of a turn's attributes.
    """

    def __init__(self, *keys: str) -> None:
        self._key, *self._deeper = keys or ("address", "connection")
        self._of: OrderedDict[str, WaitingCalls | _Line] = OrderedDict()
        self._all = 0
        self.refusable = 0
        """The number of calls that are not patient."""
        self._counts: dict[str, int] = {}
        """The same for each value of the key that has any."""

    def __len__(self) -> int:
        return self._all

    def put(self, turn: Turn) -> None:
        """Add a call; it is the last one of its connection."""
        name = getattr(turn, self._key)
        if name not in self._of:
            self._of[name] = WaitingCalls(*self._deeper) if self._deeper else _Line()
        self._of[name].put(turn)
        self._count(name, turn, 1)

    def take(self) -> Turn:
        """Remove and return the next call; all others have their turn before the next with its value."""
        name, calls = next(iter(self._of.items()))
        turn = calls.take()
        self._of.move_to_end(name)
        self._count(name, turn, -1)
        return turn

    def drop(self, turn: Turn) -> bool:
        """Remove a call, if it is here; return whether it was."""
        name = getattr(turn, self._key)
        is_here = name in self._of and self._of[name].drop(turn)
        if is_here:
            self._count(name, turn, -1)
        return is_here

    def _count(self, name: str, turn: Turn, change: int) -> None:
        self._all += change
        if not self._of[name]:
            del self._of[name]
        if not turn.is_patient:
            self.refusable += change
            self._counts[name] = self._counts.get(name, 0) + change
            if not self._counts[name]:
                del self._counts[name]

    def latest_of_most(self) -> Turn:
        """Return the latest call that is not patient, of the address and connection with the most."""
        most = max(self._of, key=lambda name: self._counts.get(name, 0))
        return self._of[most].latest_of_most()

    def has_most(self, name: str, *deeper: str) -> bool:
        """Return whether with one more call these values of the keys would be those with the most.

        Only those are compared that have the same values but for the last key.
        """
        if not deeper:
            return self._counts.get(name, 0) + 1 >= max(self._counts.values(), default=0)
        calls = self._of.get(name)
        return isinstance(calls, WaitingCalls) and calls.has_most(*deeper)
