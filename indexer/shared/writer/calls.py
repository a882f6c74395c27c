"""Turns changes of the index, and of one pod's record and log, into script calls of bounded work."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import msgspec

from warmpath.indexer.keys.key import WORD_BYTES, pack_words
from warmpath.indexer.keys.segment_value import BadSegmentError, slots_of, spilled_blocks
from warmpath.indexer.shared.layout.names import KeyNames, checkpoint
from warmpath.indexer.shared.layout.record import Claim
from warmpath.indexer.shared.redis.command import Argument, Call, Command, Reply, good, script
from warmpath.indexer.shared.writer.claimed import Claimed
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2 as pb

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
    """A script's status, and the bucket's checkpoint after it."""

    status: Status
    token: int
    count: int


def outcome(reply: Reply) -> ScriptOutcome:
    """Return the outcome in a reply of `apply.lua` or `fence.lua`. Raises a reply that is an error."""
    status, token, count = good(reply)
    return ScriptOutcome(Status(status), token, count)


def apply_calls(  # noqa: PLR0917 - whose writer, how far it is, what it writes: none can be left out
    names: KeyNames,
    pod: str,
    token: int,
    counts: Mapping[int, int],
    changes: Changes,
    ttl_ms: int,
) -> list[tuple[int, Call]]:
    """Return the calls that bring `changes` into the index, each with its bucket.

    `counts` says how many calls each bucket has seen under this token. A bucket's calls have to reach it
    in this order; repeating a call, with all after it, changes nothing more. In a cluster the next
    call may overtake one that is redirected, and then finds a gap: send a bucket's calls one at a time.
    """
    field = checkpoint(pod)
    apply = script("apply")
    calls: list[tuple[int, Call]] = []
    by_bucket: dict[int, list[Part]] = {}
    for (segment, slot), (added, gone) in changes.items():
        if added or gone:
            part = segment, slot, added, gone
            by_bucket.setdefault(names.bucket_of(segment), []).append(part)
    for bucket, parts in by_bucket.items():
        count = counts.get(bucket, 0)
        for arguments in _bounded(parts):
            head: tuple[Argument, ...] = (field, token, count, count + 1, ttl_ms)
            calls.append((bucket, Call(apply, (names.bucket(bucket),), head + tuple(arguments))))
            count += 1
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
    """Return the calls that remove `dead` slots from the fields in `page`, a part of a bucket.

    Fields without dead slots and malformed fields are left out.
    """
    calls: list[Call] = []
    fields: list[bytes] = []
    slots: dict[int, None] = {}
    size = 0

    def end() -> None:
        if fields:
            arguments: tuple[Any, ...] = (pack_words(slots), *fields)
            calls.append(Call(script("purge"), (names.bucket(bucket),), arguments))

    for field, value in page.items():
        found = _dead_in(field, value, dead)
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


def _dead_in(field: bytes, value: bytes, dead: Collection[int]) -> list[int]:
    if len(field) not in {WORD_BYTES, 2 * WORD_BYTES}:
        return []
    try:
        if spilled_blocks(value) is not None:
            return []
        return [slot for slot in slots_of(value) if slot in dead]
    except BadSegmentError:
        return []


FENCE_MS = 30 * 86_400_000


@dataclass(frozen=True, slots=True)
class RecordCalls:
    """The calls of one pod's writer; they renew the record's lease to `lease_ms`."""

    names: KeyNames
    pod: str
    owner: str
    lease_ms: int

    @property
    def _record(self) -> str:
        return self.names.record(self.pod)

    @property
    def _both(self) -> tuple[str, str]:
        return self._record, self.names.log(self.pod)

    def enlist(self) -> Call:
        """Return the call that puts the pod into the hash of pods; replies 1 where it was not there."""
        return Call(script("enlist"), (self.names.pods,), (self.pod,))

    def claim(self, base: int, *, take_over: bool, floor: int, reason: str) -> Call:
        """Return the call that claims the pod with a token above `floor`.

        Replies success and token, and where it succeeds the server's time in milliseconds.
        """
        keys = self._record, self.names.fence(self.pod)
        arguments = self.owner, base, int(take_over), floor, self.lease_ms, FENCE_MS, reason
        return Call(script("claim"), keys, arguments)

    def publish(self, token: int, applied: int, claimed: Claimed) -> Call:
        """Return the call that puts a claim's complete content into the record; replies a status."""
        claim = claimed.claim()
        head: list[Argument] = [token, claim.base, self.owner, applied, self.lease_ms]
        said = _claim_words(claim) + _said(claimed, sorted(claimed.states))
        return Call(script("publish"), self._both, tuple(head + said))

    def log(
        self,
        token: int,
        applied: int,
        claimed: Claimed,
        *,
        deltas: Sequence[pb.Delta],
        entry: bytes,
        first_kept: int,
        moved: Claim | None,
    ) -> Call:
        """Return the call that adds a batch, which every bucket has, to log and record.

        Replies a status. `entry` is the batch's deltas as the log has them, `first_kept` the log's first
        entry from then on, and `moved` the claim, where its places changed.
        """
        first, last = deltas[0].sequence, deltas[-1].sequence
        head: list[Argument] = [token, applied, first, last, entry, first_kept, self.lease_ms]
        said = _said(claimed, sorted({delta.state.rank for delta in deltas}))
        said += _claim_words(moved) if moved else []
        return Call(script("log"), self._both, tuple(head + said))

    def renew(
        self, token: int, applied: int, audits: int, *, confirmation: int, behind: int | None
    ) -> Call:
        """Return the call that renews the lease; replies a status.

        It comes after that many audits, and is the claim's `confirmation`-th. When Redis took the one
        before it, the index was at most `behind` milliseconds behind the engine; None: not known.
        """
        head: list[Argument] = [token, applied, audits, self.lease_ms]
        said: list[Argument] = [confirmation, "" if behind is None else behind]
        return Call(script("renew"), (self._record,), tuple(head + said))

    def keep(self, token: int, reason: str) -> Call:
        """Return the call that renews the lease without an audit; a reason makes the record unsound."""
        return Call(script("keep"), (self._record,), (token, self.lease_ms, reason))

    def owner_of(self) -> list[Command]:
        """Return the commands for the record's owner, its claim and the rest of its lease (ms).

        The claim is perhaps still an earlier owner's.
        """
        fields = [Command(("HGET", self._record, field)) for field in ("owner", "claim")]
        return [*fields, Command(("PTTL", self._record))]


def _claim_words(claim: Claim) -> list[Argument]:
    return ["claim", msgspec.json.encode(claim)]


def _said(claimed: Claimed, ranks: Sequence[int]) -> list[Argument]:
    words: list[Argument] = []
    for rank in ranks:
        words += [f"state:{rank}", claimed.states[rank].SerializeToString()]
        words += [f"blocks:{rank}", msgspec.json.encode(claimed.blocks(rank))]
    return words
