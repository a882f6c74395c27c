"""The time that a request spent with its engine, and when each block of its prompt was cached then.

Where clients ask at the same time, an engine looks a prompt up at any moment between the request's
arrival and its answer, while others' blocks come and go. No event says when. The number of blocks that
it found narrows that down: mostly, that many leading blocks of the prompt were cached for a while.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

Kind = Literal["stored", "removed", "cleared"]
EventKeys = tuple[Kind, frozenset[int]]
"""An event's kind, and the keys of the blocks that it names."""

LATE_SECONDS = 2.0
"""Time after an answer in which events of steps before it may still come."""
MOST_NAMED = 4
"""Most runs of blocks whose times are named."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The events of a batch, which came at `t`, in seconds since the recording's start."""

    t: float
    sequence: int
    said: Sequence[EventKeys]


@dataclass(frozen=True, slots=True)
class Stay:
    """A request from its arrival to its answer; both are times like those of batches."""

    arrived: float
    answered: float
    keys: Sequence[int]
    """The keys of the prompt's blocks that could be cached."""
    held: frozenset[int]
    """Those of `keys` that were cached on arrival."""
    batches: Sequence[Batch]
    """The live batches of the engine's life, in order; it may still grow."""
    first: int
    """The position in `batches` of the first that came after the arrival."""
    others: int
    """Number of other requests that were with the engine at any time of the stay."""

    def account(self, predicted: int, actual: int) -> str:
        """Return, in words, when the engine may have found `actual` blocks, not `predicted` ones."""
        beside = f"{self.others} other requests were under way"
        if self.others < 2:
            beside = f"{'one' if self.others else 'no'} other request was under way"
        moments = list(self._moments())
        for at, (begin, found) in enumerate(moments):
            if found == actual:
                end = next((one for one, other in moments[at:] if other != actual), None)
                return (
                    f"{beside}; the engine looked the prompt up while {actual} of its blocks were "
                    f"cached, {self._span(begin, end)}"
                )
        blocks = range(len(self.keys))[min(predicted, actual) : max(predicted, actual)]
        runs = [
            f"{_run([block for block, _ in run])} {times}"
            for times, run in groupby(
                ((block, self._times(block)) for block in blocks), key=lambda one: one[1]
            )
        ]
        more = [f"{len(runs) - MOST_NAMED} more runs of blocks"] if len(runs) > MOST_NAMED else []
        named = "; ".join(["", *runs[:MOST_NAMED], *more])
        return f"not explained: {beside}, and no event shows why{named}"

    def _events(self) -> Iterator[tuple[Batch, EventKeys]]:
        for at in range(self.first, len(self.batches)):
            batch = self.batches[at]
            if batch.t > self.answered + LATE_SECONDS:
                return
            for event in batch.said:
                yield batch, event

    def _moments(self) -> Iterator[tuple[Batch | None, int]]:
        """Yield (None, leading blocks cached on arrival), then (batch, their number) at each change."""
        held = set(self.held)
        found = leading(self.keys, held)
        yield None, found
        for batch, (kind, keys) in self._events():
            follow(held, kind, keys)
            if (now := leading(self.keys, held)) != found:
                found = now
                yield batch, found

    def _times(self, block: int) -> str:
        """Return when a block of the prompt was cached."""
        key = self.keys[block]
        held = self.held.intersection((key,))
        since: Batch | None = None
        times = []
        for batch, (kind, keys) in self._events():
            now = set(held)
            follow(now, kind, keys & {key})
            if held and not now:
                times.append(self._span(since, batch))
            elif now and not held:
                since = batch
            held = frozenset(now)
        if held:
            times.append(self._span(since, None))
        return f"cached {' and '.join(times)}" if times else "never cached"

    def _span(self, begin: Batch | None, end: Batch | None) -> str:
        """Return a time from a batch, or the arrival, to another one, or the answer."""
        if begin is not None and begin is end:
            return f"within {_named(begin)}"
        since = _named(begin) if begin else f"its arrival ({self.arrived:.3f} s)"
        if end is None and begin is not None and begin.t > self.answered:
            return f"from {since} on, whose events came after the answer"
        return f"from {since} to {_named(end) if end else f'its answer ({self.answered:.3f} s)'}"


def leading(keys: Sequence[int], held: set[int]) -> int:
    """Return how many leading blocks are cached."""
    return next((at for at, key in enumerate(keys) if key not in held), len(keys))


def follow(held: set[int], kind: Kind, keys: frozenset[int]) -> None:
    """Change the cached keys as an event says."""
    if kind == "stored":
        held |= keys
    elif kind == "removed":
        held -= keys
    else:
        held.clear()


def _named(batch: Batch) -> str:
    return f"batch {batch.sequence} ({batch.t:.3f} s)"


def _run(blocks: Sequence[int]) -> str:
    """Return the name of a run of blocks, counted from 1."""
    first, last = blocks[0] + 1, blocks[-1] + 1
    return f"block {first} was" if first == last else f"blocks {first} to {last} were"
