"""Pick calls that still wait (for tokens, or in the queue), by booking ids that their callers chose.

If a report ends such a pick, or a later one replaces it, its task is cancelled: it has no booking yet.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


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
        """End the waiting pick of this name, whose end was reported; return False if there is none."""
        return self._end(name, "the end of this pick was reported before it was made")

    def _end(self, name: str, reason: str) -> bool:
        turn = self._turns.pop(name, None)
        if turn is None:
            return False
        turn.ended_by = reason
        turn.task.cancel()
        return True
