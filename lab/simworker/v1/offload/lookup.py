"""The number of a request's tokens that can be loaded from host memory.

Every group must have the chunks that a hit of that length needs: a group with full attention all chunks,
one with a sliding window those of the window at the hit's end. So the groups shorten the hit in turn
until none does: full attention first, then windows, the largest first.

Source: `OffloadingConnectorScheduler._lookup_complete_chunks` and the functions that it calls, in
`vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py` of 0.32.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from warmpath.lab.simworker.v1.offload.group import OffloadGroup
from warmpath.lab.simworker.v1.offload.pool import LookupResult, OffloadKey

Lookup = Callable[[OffloadKey], LookupResult]


@dataclass(frozen=True, slots=True)
class Held:
    """A group, and the keys of a request's full chunks in it."""

    group: OffloadGroup
    keys: Sequence[OffloadKey]

    def loaded_keys(self, computed: int, found: int) -> Sequence[OffloadKey]:
        """Return the keys of the chunks to load for `found` tokens after `computed` ones."""
        size = self.group.chunk_size
        keys = self.keys[computed // size : -(-(computed + found) // size)]
        window = self.group.load_window_chunks(computed + found)
        return keys if window is None else keys[-window:]


def loadable_tokens(
    held: Sequence[Held], num_tokens: int, computed: int, lookup: Lookup
) -> int | None:
    """Return how many tokens after the first `computed` can be loaded, of `num_tokens` in all.

    Returns None if that depends on chunks that are being written.
    """
    windows = [part for part in held if part.group.window_chunks is not None]
    windows.sort(key=lambda part: part.group.window_chunks or 0, reverse=True)
    order = [part for part in held if part.group.window_chunks is None] + windows
    # The last token is computed again, which needs the window before it.
    end = num_tokens - 1 if windows else num_tokens
    found = 0
    undecided = False
    ask = order
    while ask:
        again: list[Held] = []
        asked_window = False
        for part in ask:
            size = part.group.chunk_size
            end = min(end, len(part.keys) * size)
            if end - computed < size:
                return 0
            start = computed // size
            chunks = _chunks_hit(part, start, end, lookup)
            if chunks is None:
                undecided = True
            else:
                end = min(end, (start + chunks) * size)
            if not chunks and chunks is not None:
                return 0
            if end - computed < size:
                return 0
            if end - computed < found:
                if undecided:
                    # The chunk that is being written may lie beyond the new end.
                    undecided = False
                    again = order
                elif asked_window and not again:
                    again = windows
            asked_window |= part.group.window_chunks is not None
            found = end - computed
        ask = again
    return None if undecided else found


def _chunks_hit(part: Held, start: int, end: int, lookup: Lookup) -> int | None:
    """Return how many chunks from `start` on the hit spans; None if that is not known yet."""
    number = min(-(-end // part.group.chunk_size), len(part.keys))
    keys = part.keys[start:number]
    if part.group.window_chunks is None:
        return _leading(keys, lookup)
    first = part.group.load_window_chunks(min(end, number * part.group.chunk_size))
    return _last_window(keys, part.group.window_chunks, first or 0, lookup)


def _leading(keys: Sequence[OffloadKey], lookup: Lookup) -> int | None:
    pending = False
    hits = 0
    for key in keys:
        result = lookup(key)
        if result is LookupResult.MISS:
            break
        pending |= result is LookupResult.HIT_PENDING
        hits += 1
    return None if pending else hits


def _last_window(
    keys: Sequence[OffloadKey], window: int, first_window: int, lookup: Lookup
) -> int | None:
    """Return the number of keys up to the end of the last run of `window` chunks that hit.

    Without such a run, a shorter run at the start counts. None if one of its chunks is being written.

    The run that ends at the last key must have `first_window` chunks.
    """
    pending = False
    run = 0
    needed = first_window
    for number in range(len(keys) - 1, -1, -1):
        result = lookup(keys[number])
        if result is LookupResult.MISS:
            run, pending, needed = 0, False, window
            continue
        pending |= result is LookupResult.HIT_PENDING
        run += 1
        if run == needed:
            return None if pending else number + run
    return None if pending else run
