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

A refusal costs a third of an answer, so the longest wait is long: at less than a second, an overloaded
router would answer fewer calls than one that lets them wait. What bounds the wait before that is
HTTP/2's own limit on each connection's calls.

Source of the idea: CoDel (Nichols, Jacobson, "Controlling Queue Delay", 2012) bounds waits, not
lengths.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Callable

from router.transport.peer import address_of

FIRST_SECONDS = 250e-6
"""The assumed time of a call, until some were measured."""
WEIGHT = 0.05
"""Weight of the newest measured time in the mean of all."""
LONGEST_SECONDS = 0.02
"""A longer time between two beginnings counts as this one: then the machine was slow, not the calls."""
ANSWERING_TIMES = 3.0
"""The thread answers for at least this many times as long as it reads sockets, while calls wait."""
TURN_SECONDS = 0.005
"""The thread also answers for about this time in each turn; then new urgent calls go first."""
MOST_AT_ONCE = 32
"""Most calls that wait and begin in one turn."""
LEAST_WAITING = 4
"""Calls that may always wait."""
URGENT_TIMES = 8
"""Urgent calls that may wait, for each other one: they take much less time."""


class BusyError(Exception):
    """A call is refused, since too many calls wait. After `seconds` fewer will wait."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


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


class _Queue:
    """Waiting calls; the addresses take turns."""

    def __init__(self) -> None:
        self._of: OrderedDict[str, _Calls] = OrderedDict()
        self.refusable = 0
        """The number of calls that are not patient."""

    def __bool__(self) -> bool:
        return bool(self._of)

    def put(self, turn: Turn) -> None:
        calls = self._of.get(turn.address)
        if calls is None:
            calls = self._of[turn.address] = _Calls()
        calls.put(turn)
        self.refusable += not turn.is_patient

    def take(self) -> Turn:
        """Remove and return the next call; all other addresses have their turn before its own."""
        address, calls = next(iter(self._of.items()))
        turn = calls.take()
        self.refusable -= not turn.is_patient
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
        self.refusable -= not turn.is_patient
        if not calls:
            del self._of[turn.address]

    def latest_of_most(self) -> Turn:
        """Return the latest call that is not patient, of the address with the most of them."""
        return max(self._of.values(), key=_refusable).latest_of_most()

    def has_most(self, connection: str) -> bool:
        """Return whether a connection's next call could be the one that `latest_of_most` returns."""
        calls = self._of.get(address_of(connection))
        most = max(map(_refusable, self._of.values()), default=0)
        if calls is None:
            return most <= 1
        return calls.refusable + 1 >= most and calls.has_most(connection)


def _refusable(calls: _Calls) -> int:
    return calls.refusable


class Admission:
    """The queue of all calls of a process. Not thread-safe.

    `soon` calls a function in the next turn of the event loop. Calls that would wait longer than
    `wait_seconds` (`limits.wait-seconds`) are refused. In a turn the thread answers one call, and more
    of them for about `turn_seconds`.
    """

    def __init__(
        self,
        *,
        wait_seconds: float,
        soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], float],
        turn_seconds: float = TURN_SECONDS,
    ) -> None:
        self._wait_seconds = wait_seconds
        self._turn_seconds = turn_seconds
        self._soon = soon
        self._clock = clock
        self._urgent, self._others = _Queue(), _Queue()
        self._began = 0
        """The number of calls that have begun in this turn of the loop."""
        self._coming = 0
        """Calls that `refuses` let pass in this turn, and that have not entered yet."""
        self._turned = self._resumed = clock()
        """Times: the beginning of this turn, and the end of its reading (or of an earlier turn's, if a
        call entered in its middle)."""
        self._at_once = 0.0
        """The time of this turn for which calls were answered in the step that received them."""
        self._read_seconds = 0.0
        """The time for which the thread reads in a turn: a mean."""
        self.call_seconds = FIRST_SECONDS
        """The time for which it works on a call: a mean."""
        self.refused = 0

    @property
    def waiting(self) -> int:
        """The number of calls that wait, without messages of streams."""
        return self._urgent.refusable + self._others.refusable

    @property
    def most_waiting(self) -> int:
        """The number of calls that may wait now."""
        # Reading may take a part of each turn, too.
        share = ANSWERING_TIMES / (ANSWERING_TIMES + 1)
        return max(LEAST_WAITING, round(share * self._wait_seconds / self.call_seconds))

    def enter(
        self,
        connection: str,
        wake: Callable[[Exception | None], None],
        *,
        is_urgent: bool = False,
        is_patient: bool = False,
    ) -> Turn:
        """Return a call's turn. Its work begins at once if `begins` is set, otherwise with `wake`.

        Raises BusyError if this call is refused.
        """
        self._coming = max(0, self._coming - 1)
        turn = Turn(connection, wake, is_urgent=is_urgent, is_patient=is_patient)
        if not self._began:
            self._turned = self._clock()
            self._begin(turn)
            self._soon(self._next)
            return turn
        queue = self._urgent if is_urgent else self._others
        queue.put(turn)
        if queue.refusable > self._most(is_urgent=is_urgent):
            refused = queue.latest_of_most()
            queue.remove(refused)
            self.refused += 1
            error = BusyError(self._wait_seconds)
            if refused is turn:
                raise error
            refused.wake(error)
        return turn

    @property
    def is_free(self) -> bool:
        """Whether a call may be answered in the step that received it."""
        return not self._urgent and not self._others and self._at_once < self._turn_seconds

    def answered_at_once(self, seconds: float) -> None:
        """Count a call that was answered in the step that received it, and took `seconds`."""
        self._coming = max(0, self._coming - 1)
        self._worked(min(seconds, LONGEST_SECONDS))
        if not self._at_once:
            self._soon(self._end_at_once)
        self._at_once += seconds

    def _end_at_once(self) -> None:
        self._at_once = 0.0

    def refuses(self, connection: str, *, is_urgent: bool = False) -> BusyError | None:
        """Return the error with which `enter` would refuse a connection's next call; count it."""
        queue = self._urgent if is_urgent else self._others
        waiting = queue.refusable + self._coming
        if (
            waiting < LEAST_WAITING
            or waiting < self._most(is_urgent=is_urgent)
            or not queue.has_most(connection)
        ):
            self._coming += 1
            return None
        self.refused += 1
        return BusyError(self._wait_seconds)

    def _most(self, *, is_urgent: bool) -> int:
        return self.most_waiting * (URGENT_TIMES if is_urgent else 1)

    def leave(self, turn: Turn) -> None:
        """Forget a call that ended while it waited."""
        if not turn.begins:
            (self._urgent if turn.is_urgent else self._others).remove(turn)

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
        # A call that `refuses` let pass has entered or gone before the sockets are read again.
        self._coming = 0
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
