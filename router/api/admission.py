"""Decides when the work on a call begins, and refuses calls that would wait too long for it.

One thread answers all calls. It begins one call in each turn of its event loop, so that it reads sockets
in between, and the calls that have arrived meanwhile wait here: urgent ones first, otherwise the clients
take turns, so a client with many calls delays mostly its own. A client is a connection.

The time from one beginning to the next, while calls wait, is the time that a call takes of the thread.
The number of calls that may wait follows from it and from the longest wait. Beyond that number the
latest call of the client with the most waiting calls is refused, before its message is read.

A burst may fill the queue. If the queue was not empty for `STANDING_SECONDS`, more calls come than are
answered; then only a tenth may wait, since a longer queue delays all calls and lets none in that a
shorter one would not.

Source: controlled delay as in Maurer, "Fail at Scale" (ACM Queue, 2015), after CoDel (Nichols, Jacobson,
"Controlling Queue Delay", 2012).
"""

from collections import OrderedDict, deque
from collections.abc import Callable

FIRST_SECONDS = 500e-6
"""The assumed time of a call, until some were measured."""
WEIGHT = 0.05
"""Weight of the newest measured time in the mean of all."""
LONGEST_SECONDS = 0.02
"""A longer time between two beginnings counts as this: it tells of the machine, not of calls."""
STANDING_SECONDS = 0.1
"""Time without an empty queue after which more calls come than are answered."""
STANDING_SHARE = 0.1
"""The part of the longest wait that calls may then wait."""
LEAST_WAITING = 4
"""Calls that may always wait."""
URGENT_TIMES = 8
"""Urgent calls that may wait, for each other one: they take much less time."""


class BusyError(Exception):
    """A call is refused: too many wait. `seconds` is a time after which fewer will."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class Turn:
    """A call's place in the queue. `wake(None)` begins its work; `wake(error)` refuses it."""

    __slots__ = ("begins", "client", "is_patient", "is_urgent", "wake")

    def __init__(
        self,
        client: str,
        wake: Callable[[Exception | None], None],
        *,
        is_urgent: bool,
        is_patient: bool,
    ) -> None:
        self.client = client
        self.wake = wake
        self.is_urgent = is_urgent
        self.is_patient = is_patient
        """Whether it waits for as long as it takes: the next message of a stream."""
        self.begins = False
        """Whether its work may begin."""


class _Queue:
    """Waiting calls; the clients take turns."""

    def __init__(self) -> None:
        self._of: OrderedDict[str, deque[Turn]] = OrderedDict()
        self.refusable = 0
        """The number of calls that are not patient."""

    def __bool__(self) -> bool:
        return bool(self._of)

    def put(self, turn: Turn) -> None:
        self._of.setdefault(turn.client, deque()).append(turn)
        self.refusable += not turn.is_patient

    def take(self) -> Turn:
        """Remove and return the next call; its client's others then wait for all other clients'."""
        client, turns = next(iter(self._of.items()))
        turn = turns.popleft()
        self.refusable -= not turn.is_patient
        if turns:
            self._of.move_to_end(client)
        else:
            del self._of[client]
        return turn

    def remove(self, turn: Turn) -> None:
        """Remove a call, if it is here."""
        turns = self._of.get(turn.client)
        if turns is None or turn not in turns:
            return
        turns.remove(turn)
        self.refusable -= not turn.is_patient
        if not turns:
            del self._of[turn.client]

    def latest_of_most(self) -> Turn:
        """Return the latest call that is not patient, of the client with the most waiting calls."""
        most = max(
            (turns for turns in self._of.values() if any(not turn.is_patient for turn in turns)),
            key=len,
        )
        return next(turn for turn in reversed(most) if not turn.is_patient)


class Admission:
    """The queue of all calls of a process. Not thread-safe.

    `soon` calls a function in the next turn of the event loop; `longest_wait` is in seconds.
    """

    def __init__(
        self,
        *,
        longest_wait: float,
        soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], float],
    ) -> None:
        self._longest_wait = longest_wait
        self._soon = soon
        self._clock = clock
        self._urgent, self._others = _Queue(), _Queue()
        self._is_taken = False
        """Whether a call has begun in this turn of the loop."""
        self._began = self._emptied = clock()
        self.call_seconds = FIRST_SECONDS
        """The time that a call takes of the thread: a mean."""
        self.refused = 0

    @property
    def waiting(self) -> int:
        """The number of calls that wait, without messages of streams."""
        return self._urgent.refusable + self._others.refusable

    @property
    def most_waiting(self) -> int:
        """The number of calls that may wait now."""
        return max(LEAST_WAITING, int(self._wait() / self.call_seconds))

    def _wait(self) -> float:
        is_standing = self._clock() - self._emptied > STANDING_SECONDS
        return self._longest_wait * (STANDING_SHARE if is_standing else 1.0)

    def enter(
        self,
        client: str,
        wake: Callable[[Exception | None], None],
        *,
        is_urgent: bool = False,
        is_patient: bool = False,
    ) -> Turn:
        """Return a call's turn, which may begin at once. `wake` may be called before this returns.

        Raises BusyError if it is this call that is refused.
        """
        turn = Turn(client, wake, is_urgent=is_urgent, is_patient=is_patient)
        if not self._is_taken:
            self._emptied = self._clock()
            self._begin(turn)
            return turn
        queue = self._urgent if is_urgent else self._others
        queue.put(turn)
        if queue.refusable > self.most_waiting * (URGENT_TIMES if is_urgent else 1):
            refused = queue.latest_of_most()
            queue.remove(refused)
            self.refused += 1
            error = BusyError(self._wait())
            if refused is turn:
                raise error
            refused.wake(error)
        return turn

    def leave(self, turn: Turn) -> None:
        """Forget a call that ended while it waited."""
        if not turn.begins:
            (self._urgent if turn.is_urgent else self._others).remove(turn)

    def _begin(self, turn: Turn) -> None:
        turn.begins = True
        self._is_taken = True
        self._began = self._clock()
        self._soon(self._next)

    def _next(self) -> None:
        self._is_taken = False
        queue = self._urgent or self._others
        if not queue:
            self._emptied = self._clock()
            return
        taken = min(self._clock() - self._began, LONGEST_SECONDS)
        self.call_seconds += WEIGHT * (taken - self.call_seconds)
        turn = queue.take()
        self._begin(turn)
        turn.wake(None)
