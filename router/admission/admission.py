"""Decides when the work on a call begins, and refuses calls that would wait too long for it.

One thread answers all calls. It answers some in each turn of its event loop, and reads sockets in
between. Calls that have arrived meanwhile wait here: urgent ones first, otherwise the addresses that
they come from take turns, and the connections from one address do, too. So a client with many calls
delays mostly its own, however many connections it opens. If reading takes long, as it does where most
calls are refused, more calls begin in a turn.

The time of a turn without its reading, while calls wait, shows the time that a call takes. The number
of calls that may wait follows from it and from the longest wait. Beyond that number the latest call of
the address with the most waiting calls is refused, before its message is read: of its connections, that
with the most.

Source of the idea to bound waits, not lengths: CoDel (Nichols, Jacobson, "Controlling Queue Delay",
2012).
"""

import math
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from warmpath.h2grpc.metadata import address_of

FIRST_SECONDS = 250e-6
"""The assumed time of a call, until some were measured."""
WEIGHT = 0.05
"""Weight of the newest measured time in the mean of all."""
LONGEST_SECONDS = 0.02
"""A longer time between two beginnings counts as this one: then the machine was slow, not the calls."""
ANSWERING_TIMES = 3.0
"""The thread answers for at least this many times as long as it reads sockets, while calls wait."""
TURN_SECONDS = 0.005
"""Least time for which the thread answers in each turn; then new urgent calls go first."""
AT_ONCE_TURNS = 4
"""Multiple of that time for which calls are answered as they are received: each that waits for its turn
costs a tenth more, and mostly nobody else would begin before it."""
MOST_AT_ONCE = 32
"""Most waiting calls that begin in one turn."""
LEAST_WAITING = 4
"""So many calls may always wait, however long one takes."""
MOST_CHANGES = 4
"""Most calls in a turn that each replace a call of their address, as refusing the latter takes long."""
URGENT_TIMES = 8
"""Urgent calls that may wait, for each other one: they take much less time."""


LIMIT = "limits.wait-seconds"
"""The configuration's key of the longest wait."""


class BusyError(Exception):
    """A call is refused, since it would wait for longer than `longest` seconds.

    After `seconds` fewer calls will wait.
    """

    limit = LIMIT

    def __init__(self, longest: float, seconds: float) -> None:
        super().__init__(
            f"more calls come than are answered: this one would wait for more than "
            f"{longest:g} s ({LIMIT}); try again in {max(1, round(1000 * seconds))} ms"
        )
        self.longest = longest
        self.seconds = seconds


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


class _Turns:
    """Waiting calls, in a tree: the values of the first of `keys` take turns, and so on below each.

    The keys are names of a turn's attributes.
    """

    def __init__(self, *keys: str) -> None:
        self._key, *self._deeper = keys or ("address", "connection")
        self._of: OrderedDict[str, _Turns | _Line] = OrderedDict()
        self.size = 0
        """The number of calls."""
        self.refusable = 0
        """The number of calls that are not patient."""
        self._counts: dict[str, int] = {}
        """That number for each value of the first key, if it is not 0."""

    def __len__(self) -> int:
        return self.size

    def put(self, turn: Turn) -> None:
        """Add a call; it is the last one of its connection."""
        name = getattr(turn, self._key)
        if name not in self._of:
            self._of[name] = _Turns(*self._deeper) if self._deeper else _Line()
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
        self.size += change
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
        return isinstance(calls, _Turns) and calls.has_most(*deeper)


class Admission:
    """The queue of all calls of a process. Not thread-safe.

    `soon` calls a function in the next turn of the event loop. Calls that would wait longer
    than `wait_seconds` (`limits.wait-seconds`) are refused. In a turn the thread answers one call, and
    more of them for about `turn_seconds`.
    """

    def __init__(
        self,
        *,
        wait_seconds: float,
        soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], float],
        turn_seconds: float = TURN_SECONDS,
    ) -> None:
        self.wait_seconds = wait_seconds
        self._turn_seconds = turn_seconds
        self._soon = soon
        self._clock = clock
        self._urgent, self._others = _Turns(), _Turns()
        self._began = 0
        """The number of calls that have begun in this turn of the loop."""
        self._changed_places = 0
        """Calls of this turn that were let in although there is no room, for one of the same address."""
        self._turned = self._resumed = clock()
        """Times: the beginning of this turn, and the end of its reading (or of an earlier turn's, if a
        call entered in its middle)."""
        self._at_once = 0.0
        """The time of this turn for which calls were answered in the step that received them."""
        self._read_seconds = 0.0
        """The mean time for which the thread reads in a turn."""
        self.call_seconds = FIRST_SECONDS
        """The mean time for which the thread works on a call."""
        self.refused = 0

    @property
    def waiting(self) -> int:
        """The number of calls that wait, without messages of streams."""
        return self._urgent.refusable + self._others.refusable

    @property
    def most_waiting(self) -> int:
        # Reading may take a part of each turn, too.
        share = ANSWERING_TIMES / (ANSWERING_TIMES + 1)
        return max(LEAST_WAITING, round(share * self.wait_seconds / self.call_seconds))

    def enter(
        self,
        connection: str,
        wake: Callable[[Exception | None], None],
        *,
        is_urgent: bool = False,
        is_patient: bool = False,
        is_read: bool = False,
    ) -> Turn:
        """Return a call's turn. Its work begins at once if `begins` is set, otherwise with `wake`.

        A call that `is_read` has its whole message here, so to refuse it would save little: it gives way
        to no other.

        Raises BusyError if this call is refused.
        """
        is_patient |= is_read
        turn = Turn(connection, wake, is_urgent, is_patient)
        if not self._began:
            self._turned = self._clock()
            self._begin(turn)
            self._soon(self._next)
            return turn
        queue = self._urgent if is_urgent else self._others
        if is_read and len(queue) >= self.most_waiting:
            self.refused += 1
            raise BusyError(self.wait_seconds, self.wait_seconds)
        queue.put(turn)
        if queue.refusable > self._most(is_urgent=is_urgent):
            refused = queue.latest_of_most()
            queue.drop(refused)
            self.refused += 1
            error = BusyError(self.wait_seconds, self.wait_seconds)
            if refused is turn:
                raise error
            refused.wake(error)
        return turn

    @property
    def is_free(self) -> bool:
        """Whether a call may be answered as it is received: none waits, and the turn has time left."""
        is_anyone_waiting = self._urgent.size or self._others.size
        return not is_anyone_waiting and self._at_once < AT_ONCE_TURNS * self._turn_seconds

    def answered_at_once(self, seconds: float) -> None:
        """Count a call that was answered in the step that received it, and took `seconds`."""
        self._worked(min(seconds, LONGEST_SECONDS))
        if not self._at_once:
            self._soon(self._end_at_once)
        self._at_once += seconds

    def _end_at_once(self) -> None:
        self._at_once = 0.0

    def room(self, connection: str, *, is_urgent: bool = False) -> int:
        """Return how many more calls of this connection can enter before one of its calls is refused."""
        queue = self._urgent if is_urgent else self._others
        room = self._most(is_urgent=is_urgent) - queue.refusable
        if room > 0 or not queue.refusable:
            return max(0, room)
        # A call of another address, or of another connection, is refused in its place.
        if not queue.has_most(address_of(connection)):
            return 1
        if self._changed_places == MOST_CHANGES or queue.has_most(
            address_of(connection), connection
        ):
            return 0
        self._changed_places += 1
        return 1

    def _most(self, *, is_urgent: bool) -> int:
        return self.most_waiting * (URGENT_TIMES if is_urgent else 1)

    def leave(self, turn: Turn) -> None:
        """Forget a call that ended while it waited."""
        if not turn.begins:
            (self._urgent if turn.is_urgent else self._others).drop(turn)

    def _begin(self, turn: Turn) -> None:
        turn.begins = True
        self._began += 1

    def _resume(self) -> None:
        self._resumed = self._clock()
        # Sockets were read meanwhile, except for this time.
        self._turned += self._at_once

    def _measure(self, now: float, began: int) -> None:
        reading = min(self._resumed - self._turned, LONGEST_SECONDS)
        self._read_seconds += WEIGHT * (reading - self._read_seconds)
        self._worked(min(now - self._resumed, LONGEST_SECONDS) / began)

    def _worked(self, seconds: float) -> None:
        self.call_seconds += WEIGHT * (seconds - self.call_seconds)

    def _next(self) -> None:
        now = self._clock()
        began, self._began = self._began, 0
        self._changed_places = 0
        if not self._urgent and not self._others:
            return
        if self._resumed > self._turned:
            self._measure(now, began)
        self._turned = now
        # `_resume` runs after the sockets were read, and before the calls that are woken below.
        self._soon(self._resume)
        answering = max(ANSWERING_TIMES * self._read_seconds, self._turn_seconds)
        wanted = math.ceil(answering / max(self.call_seconds, 1e-6))
        for _ in range(min(max(1, wanted), MOST_AT_ONCE)):
            queue = self._urgent or self._others
            if not queue:
                break
            turn = queue.take()
            self._begin(turn)
            turn.wake(None)
        self._soon(self._next)
