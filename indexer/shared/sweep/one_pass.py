"""One pass over the index that removes the slots that no claim names any more. Sans-I/O.

Readers do not see dead slots anyway. A pass only frees their memory, and so may stop at any point. It
must never remove a living slot. In each bucket, in bounded steps:

1. The pass reads fields, and notes those with slots that are dead by the records read at its beginning.
2. It reads the bucket's checkpoints. A writer has its checkpoint in a bucket before it writes there, so
   the writers of all noted fields are among the pods of these checkpoints and those of `names.pods`.
3. It reads the records of all these pods anew. A claim's base is in the pod's record before anything is
   written under the claim, so each living slot that was noted in 1 has its base in a record read in 3.
4. `retire.lua` compares the checkpoints once more, on the bucket's own node. A token higher than that of
   the record means that the record read in 3 is not the latest (a master that was replaced may still
   answer), and the bucket is left alone. The checkpoint of a pod that seems to have no record is
   deleted: should the pod have one after all, its writer's next audit finds the bucket not as it left
   it, and the writer writes everything anew. So even a wrong answer in 3 is found and healed.
5. `purge.lua` takes the slots that were dead in 3 out of the fields noted in 1.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

from indexer.keys.segment_value import BadSegmentError, slots_of, spilled_blocks
from indexer.shared.layout.living import Living, Owner, ask_owner, read_owner
from indexer.shared.layout.names import KeyNames, checkpoint
from indexer.shared.layout.pages import ask_checkpoints, ask_page, read_checkpoint, read_page
from indexer.shared.redis.command import Argument, Call, Command, Reply, good, script
from indexer.shared.writer.script_calls import purge_calls

PAGE = 64
"""About how many fields a page has: some tens of microseconds of Redis' time, mostly up to 100 KB."""
NOTED_BYTES = 4 << 20
"""How many bytes of values with dead slots are noted before they are purged."""
PODS_AT_ONCE = 256
REMEMBERED_MS = 86_400_000
"""For how long a pod without a record stays in the hash of pods."""

Asked = list[Command | Call]
Steps = Generator[Asked, list[Reply], Any]
Item = TypeVar("Item")


@dataclass(slots=True)
class Swept:
    """Counts of what passes have done so far."""

    fields: int = 0
    """Fields read."""
    noted: int = 0
    """Fields that seemed to hold dead slots."""
    purged: int = 0
    """Fields that dead slots were taken out of."""
    retired: int = 0
    """Checkpoints deleted."""
    forgotten: int = 0
    """Pods removed from the hash of pods."""
    doubted: int = 0
    """How often a bucket was skipped, since a record that was read was not the latest."""
    odd: int = 0
    """Malformed values; they are left as they are."""


def sweep(names: KeyNames, swept: Swept, *, remembered_ms: int = REMEMBERED_MS) -> Steps:
    """Make one pass: yield commands, and take the replies that are sent back.

    Raises CommandRefusedError or UnreachableError where a reply is one, ValueError where a checkpoint is
    malformed, and BadRecordError where a record cannot be read: without it no slot is known to be
    dead.
    """
    living = yield from _living(names, ())
    forgotten = yield from _roll(names, living.owners, remembered_ms)
    met: dict[str, Owner | None] = {}
    for bucket in range(names.buckets):
        yield from _sweep_bucket(names, bucket, living, swept, met, retires=bool(forgotten))
    # Redis may have lost the hash of pods but not the pods: put those back that the buckets named.
    yield from _roll(names, {pod: met[pod] for pod in met.keys() - living.owners}, remembered_ms)
    living = yield from _living(names, forgotten)
    gone = [(pod, value) for pod, value in forgotten.items() if living.token(pod) is None]
    if gone:
        words: tuple[Argument, ...] = tuple(chain.from_iterable(gone))
        (left,) = yield [Call(script("leave"), (names.pods,), words)]
        swept.forgotten += good(left)


def _living(names: KeyNames, others: Iterable[str]) -> Generator[Asked, list[Reply], Living]:
    """Read the records of all pods in the hash of pods, and of `others`."""
    (reply,) = yield [Command(("HKEYS", names.pods))]
    pods = dict.fromkeys([*(name.decode() for name in good(reply)), *others])
    living = Living()
    for some in _batches(list(pods), PODS_AT_ONCE):
        replies = yield [ask_owner(names, pod) for pod in some]
        for pod, owner in zip(some, replies, strict=True):
            living.add(pod, read_owner(pod, good(owner)))
    return living


def _roll(
    names: KeyNames, owners: Mapping[str, Owner | None], remembered_ms: int
) -> Generator[Asked, list[Reply], dict[str, bytes]]:
    """Note which pods have a record; return the pods to be forgotten, with their values in the hash."""
    there = [pod for pod, owner in owners.items() if owner is not None]
    others = [pod for pod, owner in owners.items() if owner is None]
    forgotten: dict[str, bytes] = {}
    calls = [(some, len(some)) for some in _batches(there, PODS_AT_ONCE)]
    calls += [(some, 0) for some in _batches(others, PODS_AT_ONCE)]
    for some, count in calls:
        (reply,) = yield [Call(script("roll"), (names.pods,), (remembered_ms, count, *some))]
        old = good(reply)
        forgotten |= {pod.decode(): value for pod, value in zip(old[::2], old[1::2], strict=True)}
    return forgotten


def _sweep_bucket(
    names: KeyNames,
    bucket: int,
    living: Living,
    swept: Swept,
    met: dict[str, Owner | None],
    *,
    retires: bool,
) -> Steps:
    cursor = b"0"
    noted: dict[bytes, bytes] = {}
    size = 0
    while True:
        (reply,) = yield [ask_page(names, bucket, cursor, PAGE)]
        page = read_page(good(reply))
        swept.fields += len(page)
        for field, value in page.values.items():
            try:
                seems_dead = spilled_blocks(value) is None and living.dead(slots_of(value))
            except BadSegmentError:
                swept.odd += 1
                continue
            if seems_dead:
                noted[field] = value
                size += len(value)
        if size >= NOTED_BYTES or (page.is_last and (noted or retires)):
            yield from _purge(names, bucket, noted, swept, met)
            noted.clear()
            size = 0
        if page.is_last:
            return
        cursor = page.cursor


def _purge(
    names: KeyNames,
    bucket: int,
    noted: Mapping[bytes, bytes],
    swept: Swept,
    met: dict[str, Owner | None],
) -> Steps:
    swept.noted += len(noted)
    checkpoints = yield from _checkpoints(names, bucket, swept)
    living = yield from _living(names, checkpoints)
    met |= living.owners
    triples: list[Argument] = []
    for pod, token in checkpoints.items():
        known = living.token(pod)
        triples += [checkpoint(pod), token if known is None else known, int(known is None)]
    if triples:
        (reply,) = yield [Call(script("retire"), (names.bucket(bucket),), tuple(triples))]
        retired = good(reply)
        if retired < 0:
            swept.doubted += 1
            return
        swept.retired += retired
    dead = living.dead({slot for value in noted.values() for slot in slots_of(value)})
    for call in purge_calls(names, bucket, noted, dead):
        (reply,) = yield [call]
        swept.purged += good(reply)


def _checkpoints(
    names: KeyNames, bucket: int, swept: Swept
) -> Generator[Asked, list[Reply], dict[str, int]]:
    """Return the claim's number in each checkpoint, by pod. Raises ValueError for a bad one."""
    found: dict[str, int] = {}
    cursor = b"0"
    while True:
        (reply,) = yield [ask_checkpoints(names, bucket, cursor, PAGE)]
        page = read_page(good(reply))
        swept.fields += PAGE
        found |= {pod: read_checkpoint(value)[0] for pod, value in page.checkpoints.items()}
        if page.is_last:
            return found
        cursor = page.cursor


def _batches(items: list[Item], size: int) -> Iterator[list[Item]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
