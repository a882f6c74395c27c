"""Picks that are not made yet, by the names that their callers gave them.

Such a pick has no booking that a report could end or another pick replace, so it is ended itself:
what it waits for is cancelled.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from indexer.invariant import BrokenInvariantError


class PickEndedError(RuntimeError):
    """A pick was ended before it was made; the message says by what."""


@dataclass(slots=True, eq=False)
class _Turn:
    task: "asyncio.Task[object]"
    ended_by: str = ""


class Underway:
    """The picks that are on their way to be made; all belong to one event loop."""

    def __init__(self) -> None:
        self._turns: dict[str, _Turn] = {}

    def __len__(self) -> int:
        return len(self._turns)

    @contextmanager
    def pick(self, name: str) -> Iterator[None]:
        """Have a pick underway in the context, in the current task, and end an earlier one of the name.

        Raises PickEndedError where it is ended meanwhile. One without a name nobody can end.
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
            # Its caller may have gone, too; then nobody wants to know why it ended.
            if turn.ended_by and task.uncancel() <= others:
                raise PickEndedError(f"booking_id: {turn.ended_by}") from None
            raise
        finally:
            if self._turns.get(name) is turn:
                del self._turns[name]

    def end(self, name: str) -> bool:
        """End a pick, as a report of its end says; False where none of the name is underway."""
        return self._end(name, "the end of this pick was reported before it was made")

    def _end(self, name: str, reason: str) -> bool:
        turn = self._turns.pop(name, None)
        if turn is None:
            return False
        turn.ended_by = reason
        turn.task.cancel()
        return True

    def check(self) -> None:
        """Raise BrokenInvariantError where a pick is kept that is over."""
        for name, turn in self._turns.items():
            if turn.task.done() or turn.ended_by:
                raise BrokenInvariantError(f"{name} is no pick that is underway")
