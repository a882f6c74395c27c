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
   Before 3 the pass reads the records and rests, so that no reader believes an older record any more:
   such a record may name slots that are dead since. It does so once, and again where it meets pods that
   it did not know.

What no writer can have written is removed as well (`indexer.shared.sweep.mend`): before the other steps
where it is a key, in step 1 where it is a field of a bucket.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain

from warmpath.indexer.keys.segment_value import slots_of, spilled_blocks
from warmpath.indexer.shared.layout.names import KeyNames, checkpoint
from warmpath.indexer.shared.layout.pages import ask_page, read_checkpoint, read_page
from warmpath.indexer.shared.layout.record import BadRecordError, Living, Record, read_record
from warmpath.indexer.shared.redis.command import Argument, Call, Command, script
from warmpath.indexer.shared.sweep.mend import (
    Asked,
    Steps,
    Swept,
    batches,
    mend_bucket,
    mend_pods,
    mend_shared,
)
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


OWNED = b"token", b"claim", b"building"
"""The fields of a record from which the pod's slots follow."""


@dataclass(slots=True)
class _Noted:
    fields: dict[bytes, bytes] = field(default_factory=dict)
    """The values with dead slots."""
    gone: dict[str, int] = field(default_factory=dict)
    """The claims' numbers in the checkpoints of pods without a record."""


class Pass:
    """One pass, whose work is counted in `swept`.

    An empty list among its steps asks for a pause of `DEAD_SECONDS`. They raise
    BadRecordError where a record cannot be read: without it no slot is known to be dead.
    """

    def __init__(self, names: KeyNames, swept: Swept) -> None:
        self._names = names
        self._swept = swept
        self._first = self._last = Living()
        """By records that no reader believes any more, once the pass has rested; and as read last."""
        self._has_rested = False
        self._met: set[str] = set()
        """Pods that were listed, or whose checkpoints were met."""
        self._kept: dict[str, int] = {}
        """The claim's number that `outlive.lua` kept of each pod without a record."""

    def steps(self) -> Steps[None]:
        names = self._names
        yield from mend_shared(names, self._swept)
        yield from mend_pods(names, (yield from self._listed()), self._swept)
        self._first = self._last = yield from self._living(())
        listed = self._first.owners
        self._met = set(listed)
        forgotten = yield from self._roll(listed)
        for start in range(0, names.buckets, BUCKETS_AT_ONCE):
            yield from self._sweep(range(start, min(start + BUCKETS_AT_ONCE, names.buckets)))
        # Redis may have lost the hash of pods but not the pods: put those back that the buckets named.
        yield from self._roll(
            {pod: self._last.owners.get(pod) for pod in self._met - listed.keys()}
        )
        living = yield from self._living(forgotten)
        gone = [pair for pair in forgotten.items() if living.token(pair[0]) is None]
        for some in batches(gone):
            words: tuple[Argument, ...] = tuple(chain.from_iterable(some))
            (left,) = yield [Call(script("leave"), (names.pods,), words)]
            self._swept.forgotten += left

    def _listed(self) -> Steps[list[str]]:
        (reply,) = yield [Command(("HKEYS", self._names.pods))]
        return [pod.decode() for pod in reply]

    def _living(self, others: Iterable[str]) -> Steps[Living]:
        """Read the records of all pods in the hash of pods, and of `others`."""
        listed = yield from self._listed()
        living = Living()
        for some in batches(list(dict.fromkeys([*listed, *others]))):
            replies = yield [Command(("HMGET", self._names.record(pod), *OWNED)) for pod in some]
            for pod, values in zip(some, replies, strict=True):
                fields = {name: value for name, value in zip(OWNED, values, strict=True) if value}
                try:
                    living.add(pod, read_record(fields))
                except BadRecordError as error:
                    why = f"the record of pod {pod!r} cannot be read: {error.__cause__}"
                    raise BadRecordError(why) from error
        return living

    def _roll(self, owners: Mapping[str, Record | None]) -> Steps[dict[str, bytes]]:
        """Note which pods have a record; return those to be forgotten, with their values in the hash."""
        forgotten: dict[str, bytes] = {}
        for is_there in (True, False):
            for some in batches([one for one, owner in owners.items() if is_there is bool(owner)]):
                words: tuple[Argument, ...] = (REMEMBERED_MS, len(some) * is_there, *some)
                (old,) = yield [Call(script("roll"), (self._names.pods,), words)]
                forgotten |= {
                    pod.decode(): value for pod, value in zip(old[::2], old[1::2], strict=True)
                }
        return forgotten

    def _sweep(self, buckets: Collection[int]) -> Steps[None]:
        noted: dict[int, _Noted] = {}
        size = 0
        for bucket in buckets:
            cursor = b"0"
            while cursor:
                (reply,) = yield [ask_page(self._names, bucket, cursor, PAGE)]
                page = read_page(reply)
                cursor = page.cursor
                self._swept.fields += len(page.values)
                yield from mend_bucket(self._names, bucket, page, self._swept)
                one = noted.setdefault(bucket, _Noted())
                for pod, value in page.checkpoints.items():
                    if self._first.token(pod) is None:
                        one.gone[pod] = read_checkpoint(value)[0]
                for name, value in page.values.items():
                    if spilled_blocks(value) is None and self._first.dead(slots_of(value)):
                        one.fields[name] = value
                        size += len(value)
                if size >= NOTED_BYTES:
                    yield from self._remove(noted)
                    noted, size = {}, 0
        yield from self._remove(noted)

    def _remove(self, noted: Mapping[int, _Noted]) -> Steps[None]:
        """Retire checkpoints and purge dead slots in the buckets in which any were noted."""
        checkpoints: dict[int, dict[str, int]] = {}
        for bucket, one in noted.items():
            if one.fields:
                self._swept.noted += len(one.fields)
                checkpoints[bucket] = yield from self._checkpoints(bucket)
            elif one.gone:
                checkpoints[bucket] = one.gone
        if not checkpoints:
            return
        pods = set().union(*checkpoints.values())
        yield from mend_pods(self._names, sorted(pods - self._met), self._swept)
        known = self._first.owners.keys()
        if any(one.fields for one in noted.values()) and not (self._has_rested and pods <= known):
            self._first = yield from self._living(known | pods)
            self._has_rested = True
            yield []
        living = self._last = yield from self._living(pods)
        self._met |= living.owners.keys()
        yield from self._keep_numbers(checkpoints.values())
        for bucket, tokens in checkpoints.items():
            if not (yield from self._retire(bucket, tokens)):
                self._swept.doubted += 1
                continue
            fields = noted[bucket].fields
            slots = {slot for value in fields.values() for slot in slots_of(value)}
            dead = living.dead(self._first.dead(slots))
            for call in purge_calls(self._names, bucket, fields, dead):
                (purged,) = yield [call]
                self._swept.purged += purged

    def _checkpoints(self, bucket: int) -> Steps[dict[str, int]]:
        found: dict[str, int] = {}
        cursor = b"0"
        while cursor:
            asked = ask_page(self._names, bucket, cursor, CHECKPOINTS, checkpoints_only=True)
            (reply,) = yield [asked]
            page = read_page(reply)
            cursor = page.cursor
            found |= {pod: read_checkpoint(value)[0] for pod, value in page.checkpoints.items()}
        return found

    def _keep_numbers(self, checkpoints: Iterable[Mapping[str, int]]) -> Steps[None]:
        """Keep the highest number of each pod without a record, for as long as a fence lives."""
        highest: dict[str, int] = {}
        for pod, token in chain.from_iterable(tokens.items() for tokens in checkpoints):
            if self._last.token(pod) is None:
                highest[pod] = max(highest.get(pod, 0), token)
        calls = [
            Call(script("outlive"), (self._names.fence(pod),), (token, FENCE_MS))
            for pod, token in highest.items()
            if self._kept.get(pod, -1) < token
        ]
        for some in batches(calls):
            yield list(some)
        self._kept |= highest

    def _retire(self, bucket: int, tokens: Mapping[str, int]) -> Steps[bool]:
        """Delete the checkpoints of pods without a record; return whether all records are the latest."""
        calls: Asked = []
        for some in batches(list(tokens.items())):
            triples: list[Argument] = []
            for pod, token in some:
                known = self._last.token(pod)
                triples += [checkpoint(pod), token if known is None else known, int(known is None)]
            calls.append(Call(script("retire"), (self._names.bucket(bucket),), tuple(triples)))
        retired = (yield calls) if calls else []
        self._swept.retired += sum(max(0, count) for count in retired)
        return min(retired, default=0) >= 0
