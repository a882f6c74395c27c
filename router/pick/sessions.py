"""Remembers for each session the pod and rank of its last request.

Pick calls that still wait (for tokens or for their group), by booking ids that their callers chose.

If a report ends such a pick, or a later one replaces it, its task is cancelled: it has no booking yet.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from warmpath.indexer.index.slot import RankName


class Sessions:
    """The last pick of each of at most `most` sessions, each kept for `seconds` after its last request.

    Beyond `most`, the session with the oldest pick is dropped. Times are seconds of one clock; if it is
    set back, picks later than now are forgotten.
    """

    def __init__(self, *, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._picks: OrderedDict[str, tuple[str, int, float]] = OrderedDict()
        """Pod, rank and time by session, the oldest first."""
        self._of_pod: dict[str, set[str]] = {}

    def __len__(self) -> int:
        return len(self._picks)

    def get(self, session: str, now: float) -> RankName | None:
        """Return the pod and rank of a session's last pick, None if there is none or it is too old."""
        pick = self._picks.get(session)
        if pick is None:
            return None
        pod, rank, at = pick
        if not 0 <= now - at < self._seconds:
            self._drop(session)
            return None
        return RankName(pod, rank)

    def put(self, session: str, pod: str, rank: int, now: float) -> None:
        """Record a session's pick; do nothing for an empty name."""
        if not session:
            return
        if session in self._picks:
            self._drop(session)
        self._picks[session] = pod, rank, now
        self._of_pod.setdefault(pod, set()).add(session)
        while self._picks:
            oldest, (_, _, at) = next(iter(self._picks.items()))
            if len(self._picks) <= self._most and 0 <= now - at < self._seconds:
                return
            self._drop(oldest)

    def forget(self, pod: str) -> None:
        """Forget the sessions on a removed pod."""
        for session in self._of_pod.pop(pod, ()):
            del self._picks[session]

    def _drop(self, session: str) -> None:
        pod = self._picks.pop(session)[0]
        sessions = self._of_pod[pod]
        sessions.remove(session)
        if not sessions:
            del self._of_pod[pod]


class PickEndedError(RuntimeError):
    """A pick was ended before it was made; the message has the reason."""


@dataclass(slots=True, eq=False)
class _Turn:
    task: "asyncio.Task[object]"
    ended_by: str = ""


class Underway:
    """The waiting pick calls of one event loop."""

    def __init__(self) -> None:
        self._turns: dict[str, _Turn] = {}

    def __len__(self) -> int:
        return len(self._turns)

    @contextmanager
    def pick(self, name: str) -> Iterator[None]:
        """Register the current task as a pick of this name, its booking id, while the context is open.

        An earlier pick of the name is ended. Raises PickEndedError if this one is ended meanwhile; a
        pick without a name cannot be ended.
        """
        task = asyncio.current_task()
        if not name or task is None:
            yield
            return
        self._end(name, "a later pick has this name")
        turn = self._turns[name] = _Turn(task)
        others = task.cancelling()
        try:
            yield
        except asyncio.CancelledError:
            # If the caller has cancelled the call too, the cancellation goes on.
            if turn.ended_by and task.uncancel() <= others:
                raise PickEndedError(f"booking_id: {turn.ended_by}") from None
            raise
        finally:
            if self._turns.get(name) is turn:
                del self._turns[name]

    def end(self, name: str) -> bool:
        """Cancel a waiting pick, since a report has ended it. Return False if none has this name."""
        return self._end(name, "the end of this pick was reported before it was made")

    def _end(self, name: str, reason: str) -> bool:
        turn = self._turns.pop(name, None)
        if turn is None:
            return False
        turn.ended_by = reason
        turn.task.cancel()
        return True
