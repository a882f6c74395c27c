"""One pass over the index that removes the slots that no claim names any more. Sans-I/O.

Readers do not see dead slots anyway. A pass only frees their memory, and so may stop at any point. It
must never remove a living slot. For some buckets together, in bounded steps:

1. The pass reads their fields, and notes those with slots that are dead by the records read at its
   beginning, and the checkpoints of pods without a record.
2. It reads all checkpoints of the buckets with noted fields. A writer has its checkpoint in a bucket
   before it writes there, so the writers of all noted fields are among the pods of these checkpoints and
   those of `names.pods`.
3. It reads the records of all these pods anew. A claim's base is in the pod's record before anything is
   written under the claim, so each living slot that was noted in 1 has its base in a record read in 3.
4. `outlive.lua` keeps the numbers of the claims of pods without a record, so that none is given again.
5. `retire.lua` compares the checkpoints once more, on the bucket's own node. A token higher than that of
   the record means that the record read in 3 is not the latest (a master that was replaced may still
   answer), and the bucket is left alone. The checkpoint of a pod that seems to have no record is
   deleted: should the pod have one after all, its writer's next audit finds the bucket not as it left
   it, and the writer writes everything anew. So even a wrong answer in 3 is found and healed.
6. `purge.lua` takes the slots that were dead at the beginning and in 3 out of the fields noted in 1.
   Before 3 the pass rests once, so that no reader believes a record from before the pass any more:
   such a record may name slots that are dead since.

What no writer can have written is removed as well (`indexer.shared.sweep.mend`): before the other steps
where it is a key, in step 1 where it is a field of a bucket.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain

from warmpath.indexer.keys.segment_value import slots_of, spilled_blocks
from warmpath.indexer.shared.layout.living import Living, Owner, ask_owner, read_owner
from warmpath.indexer.shared.layout.names import KeyNames, checkpoint
from warmpath.indexer.shared.layout.pages import (
    ask_page,
    read_checkpoint,
    read_page,
)
from warmpath.indexer.shared.redis.command import Argument, Call, Command, good, script
from warmpath.indexer.shared.sweep.mend import mend_bucket, mend_pods, mend_shared
from warmpath.indexer.shared.sweep.swept import Steps, Swept, batches
from warmpath.indexer.shared.writer.calls import FENCE_MS, purge_calls
from warmpath.indexer.trust import PROMISED_SECONDS

PAGE = 64
"""About how many fields a page has: some tens of microseconds of Redis' time, mostly up to 100 KB."""
CHECKPOINTS = 512
"""About how many fields Redis looks at for a page of checkpoints alone."""
NOTED_BYTES = 4 << 20
"""How many bytes of values with dead slots are noted before they are purged."""
BUCKETS_AT_ONCE = 16
"""For how many buckets the records are read anew together."""
DEAD_SECONDS = PROMISED_SECONDS
"""For how long slots are dead before they are purged: no reader believes an older record."""
REMEMBERED_MS = 3_600_000
"""For how long a pod without a record stays in the hash of pods."""


@dataclass(slots=True)
class _Noted:
    fields: dict[bytes, bytes] = field(default_factory=dict)
    """The values with dead slots."""
    gone: dict[str, int] = field(default_factory=dict)
    """The claims' numbers in the checkpoints of pods without a record."""


class _Records:
    """The records of pods, and the pods whose claims' numbers are kept."""

    def __init__(self, first: Living) -> None:
        self.first = first
        """By the records at the pass's beginning."""
        self.are_old = False
        """Whether no reader believes those records any more."""
        self.met = set(first.owners)
        """Pods that were listed, or whose checkpoints were met."""
        self.last = first
        """By the records as read last."""
        self.kept: dict[str, int] = {}
        """The claim's number that `outlive.lua` kept of each pod without a record."""


def sweep(names: KeyNames, swept: Swept) -> Steps[None]:
    """Make one pass: yield commands, and take the replies that are sent back.

    An empty list, at most once a pass, asks for a pause of `DEAD_SECONDS`.
    Raises CommandRefusedError or UnreachableError where a reply is one, and BadRecordError where a
    record cannot be read: without it no slot is known to be dead.
    """
    yield from mend_shared(names, swept)
    yield from mend_pods(names, (yield from _listed(names)), swept)
    records = _Records((yield from _living(names, ())))
    listed = records.first.owners
    forgotten = yield from _roll(names, listed)
    for start in range(0, names.buckets, BUCKETS_AT_ONCE):
        buckets = range(start, min(start + BUCKETS_AT_ONCE, names.buckets))
        yield from _sweep_buckets(names, buckets, records, swept)
    # Redis may have lost the hash of pods but not the pods: put those back that the buckets named.
    found = {pod: records.last.owners.get(pod) for pod in records.met - listed.keys()}
    yield from _roll(names, found)
    living = yield from _living(names, forgotten)
    gone = [pair for pair in forgotten.items() if living.token(pair[0]) is None]
    for some in batches(gone):
        words: tuple[Argument, ...] = tuple(chain.from_iterable(some))
        (left,) = yield [Call(script("leave"), (names.pods,), words)]
        swept.forgotten += good(left)


def _listed(names: KeyNames) -> Steps[list[str]]:
    (reply,) = yield [Command(("HKEYS", names.pods))]
    return [name.decode(errors="replace") for name in good(reply)]


def _living(names: KeyNames, others: Iterable[str]) -> Steps[Living]:
    """Read the records of all pods in the hash of pods, and of `others`."""
    listed = yield from _listed(names)
    living = Living()
    for some in batches(list(dict.fromkeys([*listed, *others]))):
        replies = yield [ask_owner(names, pod) for pod in some]
        for pod, owner in zip(some, replies, strict=True):
            living.add(pod, read_owner(pod, good(owner)))
    return living


def _roll(names: KeyNames, owners: Mapping[str, Owner | None]) -> Steps[dict[str, bytes]]:
    """Note which pods have a record; return the pods to be forgotten, with their values in the hash."""
    forgotten: dict[str, bytes] = {}
    for is_there in (True, False):
        for some in batches([one for one, owner in owners.items() if is_there is bool(owner)]):
            words: tuple[Argument, ...] = (REMEMBERED_MS, len(some) * is_there, *some)
            (reply,) = yield [Call(script("roll"), (names.pods,), words)]
            old = good(reply)
            forgotten |= {
                pod.decode(): value for pod, value in zip(old[::2], old[1::2], strict=True)
            }
    return forgotten


def _sweep_buckets(
    names: KeyNames, buckets: Collection[int], records: _Records, swept: Swept
) -> Steps[None]:
    noted: dict[int, _Noted] = {}
    size = 0
    for bucket in buckets:
        cursor, is_last = b"0", False
        while not is_last:
            (reply,) = yield [ask_page(names, bucket, cursor, PAGE)]
            page = read_page(good(reply))
            cursor, is_last = page.cursor, page.is_last
            swept.fields += len(page.values)
            yield from mend_bucket(names, bucket, page, swept)
            one = noted.setdefault(bucket, _Noted())
            for pod, value in page.checkpoints.items():
                if records.first.token(pod) is None:
                    one.gone[pod] = read_checkpoint(value)[0]
            for name, value in page.values.items():
                if spilled_blocks(value) is None and records.first.dead(slots_of(value)):
                    one.fields[name] = value
                    size += len(value)
            if size >= NOTED_BYTES:
                yield from _remove(names, noted, records, swept)
                noted, size = {}, 0
    yield from _remove(names, noted, records, swept)


def _remove(
    names: KeyNames, noted: Mapping[int, _Noted], records: _Records, swept: Swept
) -> Steps[None]:
    """Retire checkpoints and purge dead slots in the buckets in which any were noted."""
    checkpoints: dict[int, dict[str, int]] = {}
    for bucket, one in noted.items():
        if one.fields:
            swept.noted += len(one.fields)
            checkpoints[bucket] = yield from _checkpoints(names, bucket)
        elif one.gone:
            checkpoints[bucket] = one.gone
    if not checkpoints:
        return
    pods = set().union(*checkpoints.values())
    yield from mend_pods(names, sorted(pods - records.met), swept)
    if not records.are_old and any(one.fields for one in noted.values()):
        records.are_old = True
        yield []
    living = records.last = yield from _living(names, pods)
    records.met |= living.owners.keys()
    yield from _keep_numbers(names, checkpoints.values(), records)
    for bucket, tokens in checkpoints.items():
        is_latest = yield from _retire(names, bucket, tokens, living, swept)
        if not is_latest:
            swept.doubted += 1
            continue
        fields = noted[bucket].fields
        slots = {slot for value in fields.values() for slot in slots_of(value)}
        dead = living.dead(records.first.dead(slots))
        for call in purge_calls(names, bucket, fields, dead):
            (reply,) = yield [call]
            swept.purged += good(reply)


def _checkpoints(names: KeyNames, bucket: int) -> Steps[dict[str, int]]:
    found: dict[str, int] = {}
    cursor, is_last = b"0", False
    while not is_last:
        (reply,) = yield [ask_page(names, bucket, cursor, CHECKPOINTS, checkpoints_only=True)]
        page = read_page(good(reply))
        cursor, is_last = page.cursor, page.is_last
        found |= {pod: read_checkpoint(value)[0] for pod, value in page.checkpoints.items()}
    return found


def _keep_numbers(
    names: KeyNames, checkpoints: Iterable[Mapping[str, int]], records: _Records
) -> Steps[None]:
    """Keep the highest number of each pod without a record, for as long as a fence lives."""
    highest: dict[str, int] = {}
    for tokens in checkpoints:
        for pod, token in tokens.items():
            if records.last.token(pod) is None:
                highest[pod] = max(highest.get(pod, 0), token)
    calls = [
        Call(script("outlive"), (names.fence(pod),), (token, FENCE_MS))
        for pod, token in highest.items()
        if records.kept.get(pod, -1) < token
    ]
    for some in batches(calls):
        for reply in (yield list(some)):
            good(reply)
    records.kept |= highest


def _retire(
    names: KeyNames, bucket: int, tokens: Mapping[str, int], living: Living, swept: Swept
) -> Steps[bool]:
    """Delete the checkpoints of pods without a record; return whether all records are the latest."""
    calls: list[Command | Call] = []
    for some in batches(list(tokens.items())):
        triples: list[Argument] = []
        for pod, token in some:
            known = living.token(pod)
            triples += [checkpoint(pod), token if known is None else known, int(known is None)]
        calls.append(Call(script("retire"), (names.bucket(bucket),), tuple(triples)))
    retired = [good(reply) for reply in (yield calls)] if calls else []
    swept.retired += sum(max(0, count) for count in retired)
    return min(retired, default=0) >= 0
