"""Turns changes of the index into script calls of bounded work."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from warmpath.indexer.keys.key import WORD_BYTES, pack_words
from warmpath.indexer.keys.segment_value import slots_of
from warmpath.indexer.shared.layout.names import KeyNames, checkpoint
from warmpath.indexer.shared.redis.command import Argument, Call, Reply, good, script

Changes = Mapping[tuple[int, int], tuple[Sequence[int], Sequence[int]]]
"""The keys added and the keys gone, by segment and slot; no key is in both."""

MOST_CHANGES = 256
"""The most changes in one call."""
MOST_KEYS = 2048
"""The most keys in one call: 1 to 2 ms of the server's time, and at most 32 KiB."""
MOST_PURGED = 64 << 10
"""The most bytes that one call looks through, unless one value has more: about 3 ms."""
MOST_PURGED_SLOTS = 1024
"""The most dead slots in one call."""
FENCE_MS = 30 * 86_400_000
"""How long a pod's fence outlives the last claim."""


class Status(IntEnum):
    """The result of a script's call for a bucket."""

    APPLIED = 1
    DUPLICATE = 0
    """An earlier call has made this change already."""
    FENCED = -1
    """A later claim has the bucket."""
    GAP = -2
    """The bucket is not as the writer left it."""


@dataclass(frozen=True, slots=True)
class ScriptOutcome:
    """A script's status, and the bucket's checkpoint after it: a claim's token and its calls."""

    status: Status
    token: int
    count: int


def outcome(reply: Reply) -> ScriptOutcome:
    """Return the outcome in a reply of `apply.lua` or `fence.lua`. Raises a reply that is an error."""
    status, token, count = good(reply)
    return ScriptOutcome(Status(status), token, count)


def apply_calls(  # noqa: PLR0917 - whose writer, how far it is, what it writes: none can be left out
    names: KeyNames, pod: str, token: int, counts: Mapping[int, int], changes: Changes, ttl_ms: int
) -> list[tuple[int, Call]]:
    """Return the calls that bring `changes` into the index, each with its bucket.

    `counts` says how many calls each bucket has seen under this token. A bucket's calls have to reach it
    in this order; repeating a call, with all after it, changes nothing more. In a cluster the next
    call may overtake one that is redirected, and then finds a gap: send a bucket's calls one at a time.
    """
    calls: list[tuple[int, Call]] = []
    by_bucket: dict[int, list[Part]] = {}
    for (segment, slot), (added, gone) in changes.items():
        if added or gone:
            part = segment, slot, added, gone
            by_bucket.setdefault(names.bucket_of(segment), []).append(part)
    for bucket, parts in by_bucket.items():
        for count, arguments in enumerate(_bounded(parts), counts.get(bucket, 0)):
            words: list[Argument] = [checkpoint(pod), token, count, count + 1, ttl_ms, *arguments]
            calls.append((bucket, Call(script("apply"), (names.bucket(bucket),), tuple(words))))
    return calls


Part = tuple[int, int, Sequence[int], Sequence[int]]


def _bounded(parts: Iterable[Part]) -> Iterator[list[bytes]]:
    """Yield the arguments of calls: changes one after the other, four arguments each."""
    arguments: list[bytes] = []
    keys = 0
    for segment, slot, added, gone in parts:
        head = [segment.to_bytes(WORD_BYTES, "little"), slot.to_bytes(WORD_BYTES, "little")]
        for start in range(0, max(len(added), len(gone)), MOST_KEYS // 2):
            more = added[start : start + MOST_KEYS // 2]
            less = gone[start : start + MOST_KEYS // 2]
            wanted = len(more) + len(less)
            if arguments and (keys + wanted > MOST_KEYS or len(arguments) >= 4 * MOST_CHANGES):
                yield arguments
                arguments, keys = [], 0
            arguments += [*head, pack_words(more), pack_words(less)]
            keys += wanted
    if arguments:
        yield arguments


def fence_call(names: KeyNames, bucket: int, pod: str, token: int, ttl_ms: int) -> Call:
    """Return the call that takes a bucket for a claim."""
    return Call(script("fence"), (names.bucket(bucket),), (checkpoint(pod), token, ttl_ms))


def purge_calls(
    names: KeyNames, bucket: int, page: Mapping[bytes, bytes], dead: Collection[int]
) -> list[Call]:
    """Return the calls that remove `dead` slots from the packed values in `page`, a part of a bucket."""
    calls: list[Call] = []
    fields: list[bytes] = []
    slots: dict[int, None] = {}
    size = 0

    def end() -> None:
        if fields:
            arguments: tuple[Any, ...] = (pack_words(slots), *fields)
            calls.append(Call(script("purge"), (names.bucket(bucket),), arguments))

    for field, value in page.items():
        found = [slot for slot in slots_of(value) if slot in dead]
        while found:
            if size + len(value) > MOST_PURGED or len(slots) >= MOST_PURGED_SLOTS:
                end()
                fields, slots, size = [], {}, 0
            room = MOST_PURGED_SLOTS - len(slots)
            slots.update(dict.fromkeys(found[:room]))
            found = found[room:]
            fields.append(field)
            size += len(value)
    end()
    return calls
