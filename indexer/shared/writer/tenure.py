"""The work of a writer under one claim: it takes all buckets, writes everything, then changes.

Every bucket has the claim's token and the number of writes since. So a bucket refuses a write once a
later claim has it, a write whose outcome is not known can be repeated, and a lost write is noticed.
"""

import logging
import math
from collections import deque
from collections.abc import Collection, Iterable, Sequence

import msgspec

from warmpath.indexer.shared.layout.names import checkpoint
from warmpath.indexer.shared.layout.pages import read_checkpoint
from warmpath.indexer.shared.layout.record import Claim
from warmpath.indexer.shared.redis.command import Argument, Call, Command, Reply, script
from warmpath.indexer.shared.writer.calls import Status, apply_calls, fence_call, outcome
from warmpath.indexer.shared.writer.changes import Claimed, KeysOf, Where, net, portions, whole
from warmpath.indexer.shared.writer.lease import CONFIRM_SECONDS, AnewError, Cause, Lease, Steps
from warmpath.indexer.watch.pod_cache import PodCache
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2 as pb

log = logging.getLogger(__name__)

LOG_ENTRIES = 10_000
LOG_BYTES = 4 << 20
"""The most entries and bytes of a pod's log in Redis: half a million keys, minutes of a busy engine."""


class KeptLog:
    """Counts the entries of a pod's log in Redis, and says from which one on they are kept.

    The writer makes one for each claim, when the log is empty, and adds every entry that it writes.
    """

    def __init__(self, *, entries: int = LOG_ENTRIES, max_bytes: int = LOG_BYTES) -> None:
        self.bytes = 0
        self._most = entries
        self._max_bytes = max_bytes
        self._entries: deque[tuple[int, int]] = deque()
        """The last sequence and the bytes of each entry."""

    def add(self, last: int, size: int) -> int:
        """Count a new entry of `size` bytes, whose last change has the journal's sequence `last`.

        Return the last sequence of the oldest entry that the log may keep.
        """
        self._entries.append((last, size))
        self.bytes += size
        while len(self._entries) > 1 and (
            len(self._entries) > self._most or self.bytes > self._max_bytes
        ):
            self.bytes -= self._entries.popleft()[1]
        return self._entries[0][0]


TOUCHES_OF_A_LIFE = 4
"""How often an idle bucket's time to live is renewed within that time."""
AUDITS_OF_AN_ENLISTING = 4
"""Of how many audits one also puts the pod into the list of pods, where it is missing."""
MOST_PLACES = 4096
"""The most places of a claim. Each clear takes new ones; a writer without more claims the pod again."""
BATCH_DELTAS = 4096
"""The most deltas of a batch."""
BATCH_BYTES = 1 << 20
"""The most bytes of a batch, and so of an entry of the log, unless one delta is larger."""


class Tenure:
    """The work under one claim, which has the lease. `claim` has no places yet.

    Call first `fence`, then `rebuild`; from then on `batch`, `audit` and `confirm`, in any order. Each
    raises AnewError where something in Redis is not as the writer left it: the tenure is over then.
    `bucket_life` is in seconds.
    """

    def __init__(self, cache: PodCache, claim: Claim, lease: Lease, bucket_life: float) -> None:
        self.claimed = Claimed(claim)
        self.applied = 0
        """The last sequence of the journal that Redis has."""
        self.writes: dict[int, int] = {}
        """How often each bucket was written to under this claim, for the buckets that it has taken."""
        self._cache = cache
        self._lease = lease
        self._token = lease.token
        self._clock = lease.clock
        self._names = lease.names
        self._record, self._log_key = self._names.record(cache.pod), self._names.log(cache.pod)
        self._bucket_life = bucket_life
        self._bucket_ms = round(bucket_life * 1000)
        self._audits = 0
        self._confirmations = 0
        self._moments: deque[tuple[int, float]] = deque()
        """Sequences of the journal that Redis may not have yet, each with the moment that it shows."""
        self._shown = -math.inf
        """The moment of the engine, by the clock, that the index shows."""
        self._behind: int | None = None
        """By how many milliseconds the index was behind the engine, at most, when Redis took the last
        confirmation; None where that is not known."""
        self._touch_at = 0.0
        self._log = KeptLog()

    def fence(self) -> Steps[None]:
        """Take every bucket: from then on no earlier claim writes there."""
        buckets = range(self._names.buckets)
        calls = [
            fence_call(self._names, bucket, self._cache.pod, self._token, self._bucket_ms)
            for bucket in buckets
        ]
        found = [outcome(reply) for reply in (yield from self._lease.asked(calls))]
        highest = max(one.token for one in found)
        if any(one.status is not Status.APPLIED for one in found):
            # Also where a bucket has this very token already: another writer, whose record was
            # lost, may have had it.
            raise AnewError(Cause.FENCED, highest)
        self.writes = dict.fromkeys(buckets, 0)
        self._touch_at = self._clock() + self._bucket_life / TOUCHES_OF_A_LIFE

    def rebuild(self) -> Steps[None]:
        """Write everything that the cache holds, then make it known in place of the earlier claim's."""
        claimed, cache = self.claimed, self._cache
        self._note_moment()
        contents = list(cache.contents())
        sequence = cache.journal.sequence
        claimed.say(cache.states())
        yield from self._apply(whole(claimed, contents))
        claim = claimed.claim()
        head = self._token, claim.base, claim.owner, sequence, self._lease.ms
        said = _claim_words(claim) + self._said(claimed.states)
        yield from self._recorded("publish", (*head, *said), sequence)
        self.applied = sequence
        self._lease.audit_at = self._clock()

    def batch(self) -> Steps[None]:
        """Write the journal's next deltas to Redis. There must be at least one."""
        self._note_moment()
        deltas = self._cache.journal.after(self.applied, BATCH_DELTAS)
        if deltas is None:
            raise AnewError(Cause.BEHIND)
        deltas = _bounded(deltas)
        claimed = self.claimed
        before = claimed.claim()
        changes = net(claimed, deltas)
        claim = claimed.claim()
        if len(claim.places) > MOST_PLACES:
            raise AnewError(Cause.PLACES)
        yield from self._apply(changes.items())
        first, last = deltas[0].sequence, deltas[-1].sequence
        entry = pb.Deltas(deltas=deltas).SerializeToString()
        kept = self._log.add(last, len(entry))
        head = self._token, self.applied, first, last, entry, kept, self._lease.ms
        said = self._said({delta.state.rank for delta in deltas})
        said += _claim_words(claim) if claim.places != before.places else []
        # Redis takes a confirmation that goes along only if it has this batch.
        yield from self._recorded("log", (*head, *said), last)
        self.applied = last
        self._lease.counts.batches += 1

    def audit(self) -> Steps[None]:
        """Check that every bucket is as the writer left it; confirm that, now or with the next batch.

        Raises AnewError if a bucket is not, or the record is lost. Now and then it renews the buckets'
        time to live, too.
        """
        lease, now = self._lease, self._clock()
        lease.audit_at = now + lease.audit_seconds
        names, pod = self._names, self._cache.pod
        name = checkpoint(pod)
        asked: list[Command | Call]
        asked = [Command(("HGET", names.bucket(one), name)) for one in self.writes]
        enlists = self._audits % AUDITS_OF_AN_ENLISTING == 0
        asked += [lease.enlist_call()] if enlists else []
        if now >= self._touch_at:
            self._touch_at = now + self._bucket_life / TOUCHES_OF_A_LIFE
            asked += [
                Command(("PEXPIRE", names.bucket(one), self._bucket_ms)) for one in self.writes
            ]
        # While there is news, the audit is confirmed with the next batch only.
        has_news = self._cache.journal.sequence > self.applied
        replies = yield from self._asked(asked, self.applied) if has_news else lease.asked(asked)
        if enlists and replies[len(self.writes)]:
            # The pod was not in the hash of pods, so its slots may have been swept.
            raise AnewError(Cause.FORGOTTEN)
        for (bucket, writes), stored in zip(self.writes.items(), replies, strict=False):
            try:
                token, count = read_checkpoint(stored or b"0:0")
            except ValueError as error:
                raise AnewError(Cause.LOST) from error
            if token > self._token:
                raise AnewError(Cause.FENCED, token)
            if (token, count) != (self._token, writes):
                log.debug("pod %s: bucket %d has %r", pod, bucket, stored)
                raise AnewError(Cause.LOST)
        self._audits += 1
        if self._cache.journal.sequence > self.applied:
            lease.confirm_at = self._clock()
        else:
            yield from self.confirm()
        # The next one is due after half an interval or later: that leaves time to write.
        lease.audit_at = max(lease.audit_at, self._clock() + lease.audit_seconds / 2)
        lease.counts.audits += 1

    def confirm(self) -> Steps[None]:
        """Renew the lease, and tell the record by how much the index may be behind the engine."""
        self._note_moment()
        yield from self._asked([], self.applied, insist=True)

    def _recorded(self, name: str, words: tuple[Argument, ...], applied: int) -> Steps[None]:
        """Call a script for record and log."""
        call = Call(script(name), (self._record, self._log_key), words)
        ((status, *_),) = yield from self._asked([call], applied)
        if status < 0:
            raise AnewError(Cause.RECORD)

    def _asked(
        self, asked: Sequence[Command | Call], applied: int, *, insist: bool = False
    ) -> Steps[list[Reply]]:
        """Return each command's reply. A confirmation due soon goes along: a round trip may be long.

        With `insist` it goes in any case; raises AnewError where Redis does not take it.
        """
        lease, now = self._lease, self._clock()
        is_due = self._audits and lease.confirm_at - now <= CONFIRM_SECONDS / 2
        if not (is_due or insist):
            return (yield from lease.asked(asked))
        while self._moments and self._moments[0][0] <= applied:
            self._shown = max(self._shown, self._moments.popleft()[1])
        self._confirmations += 1
        behind = "" if self._behind is None else self._behind
        words = self._token, applied, self._audits, lease.ms, self._confirmations, behind
        self._behind = None
        renewal = Call(script("renew"), (self._record,), words)
        *replies, (status, *_) = yield from lease.asked([*asked, renewal])
        if status > 0:
            if self._shown > -math.inf:
                self._behind = math.ceil((self._clock() - self._shown) * 1000)
            lease.confirmed(now, self._shown)
        elif insist:
            raise AnewError(Cause.RECORD)
        return replies

    def _said(self, ranks: Collection[int]) -> list[Argument]:
        words: list[Argument] = []
        for rank in sorted(ranks):
            words += [f"state:{rank}", self.claimed.states[rank].SerializeToString()]
            words += [f"blocks:{rank}", msgspec.json.encode(self.claimed.blocks(rank))]
        return words

    def _note_moment(self) -> None:
        self._moments.append((self._cache.journal.sequence, self._cache.moment(self._clock())))

    def _apply(self, changes: Iterable[tuple[Where, KeysOf]]) -> Steps[None]:
        """Write changes; end when every bucket has confirmed them."""
        is_long = False
        for portion in portions(changes):
            waiting: dict[int, deque[Call]] = {}
            for bucket, call in apply_calls(
                self._names, self._cache.pod, self._token, self.writes, portion, self._bucket_ms
            ):
                waiting.setdefault(bucket, deque()).append(call)
            while waiting:
                if is_long:
                    yield from self._lease.keep_in_time()
                is_long = True
                # One call of a bucket at a time: in a cluster the next one could overtake it.
                calls = {bucket: queue.popleft() for bucket, queue in waiting.items()}
                waiting = {bucket: queue for bucket, queue in waiting.items() if queue}
                replies = yield from self._asked(list(calls.values()), self.applied)
                for bucket, reply in zip(calls, replies, strict=True):
                    self._applied(bucket, reply)
            self._lease.counts.changes += sum(len(a) + len(g) for a, g in portion.values())

    def _applied(self, bucket: int, reply: Reply) -> None:
        found = outcome(reply)
        self.writes[bucket] += 1
        if found.status is Status.FENCED:
            raise AnewError(Cause.FENCED, found.token)
        if found.status is Status.GAP or found.count != self.writes[bucket]:
            raise AnewError(Cause.LOST)


def _claim_words(claim: Claim) -> list[Argument]:
    return ["claim", msgspec.json.encode(claim)]


def _bounded(deltas: Sequence[pb.Delta]) -> list[pb.Delta]:
    """Return as many of the first deltas as fit into a batch, at least one."""
    size = 0
    for number, delta in enumerate(deltas):
        size += delta.ByteSize()
        if number and size > BATCH_BYTES:
            return list(deltas[:number])
    return list(deltas)
