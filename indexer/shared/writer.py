"""The writer of one pod's blocks in the shared index, as a machine; `indexer.shared.write` runs it.

    unclaimed -> claiming -> fencing -> rebuilding -> current
                    ^                                    |
                    +---- anything lost, or fenced ------+      waiting: another writer has the pod

A claim has a token. Its number stands in the pod's record and in every bucket, each beside the number of
writes since: so a write is refused where a later claim has the bucket, repeated where its outcome is not
known, and found out where it was lost. Whatever is not as it was left, everything is claimed and written
anew: there is one way of recovery. What is asked is asked again until it is answered, so nothing here
fails for good; while it fails the record says why, where it can be reached.
"""

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import NoReturn

import msgspec

from indexer.index import BrokenInvariantError
from indexer.pb.warmpath.watch.v1 import cache_watch_pb2 as pb
from indexer.pod_cache import PodCache
from indexer.shared.changes import KeysOf, Where, net, portions, whole
from indexer.shared.claimed import Claimed
from indexer.shared.command import Call, Command, Reply
from indexer.shared.kept_log import KeptLog
from indexer.shared.names import Names, checkpoint
from indexer.shared.plan import Status, apply_calls, fence_call, outcome
from indexer.shared.record import Claim
from indexer.shared.record_calls import RecordCalls
from indexer.shared.schema import SchemaError, ensure_call, judge
from indexer.shared.writer_state import (
    AnewError,
    Ask,
    Cause,
    Counts,
    Rest,
    State,
    Steps,
    TakenError,
)

log = logging.getLogger(__name__)

FIRST_PAUSE = 0.1
LAST_PAUSE = 2.0
"""Seconds between two attempts: the pause doubles from the first to the last."""
PAUSES_OF_A_LEASE = 4
"""At least: a writer that only fails keeps its record all the same."""
AUDITS_OF_A_LEASE = 10
BUCKET_LIFE = 86_400.0
"""Seconds that a bucket lives on after its last write, where a process has no reason for others."""
TOUCHES_OF_A_LIFE = 4
"""How often the time to live of a bucket is renewed within it where nothing is written to it."""
MOST_PLACES = 4096
"""Of a claim. An engine that is cleared takes new ones; a claim that has used them up is made anew."""
BATCH_DELTAS = 4096
BATCH_BYTES = 1 << 20
"""Of a batch and so of an entry of the log, unless one delta is larger."""


class Writer:
    """Writes what a pod's cache holds, and goes on with its journal.

    `owner` is random, one life of this writer. `random_base` returns 47 random bits. `take_over` says
    whether its first claim wins over another writer's. `lease` and `bucket_life` in seconds. `watch` is
    where the publisher serves CacheWatch.
    """

    def __init__(
        self,
        names: Names,
        cache: PodCache,
        *,
        owner: str,
        keyspace: str,
        model: str,
        watch: str,
        take_over: bool,
        lease: float,
        bucket_life: float,
        random_base: Callable[[], int],
        clock: Callable[[], float],
        place: str = "",
    ) -> None:
        self.state = State.UNCLAIMED
        self.trouble = ""
        """Why the last that was asked was not answered; empty where it was."""
        self.counts = Counts()
        self.written_at: float | None = None
        """When, by the clock, it last was certain that Redis has what `applied` says."""
        self.token = 0
        self.applied = 0
        self.claimed: Claimed | None = None
        self._names = names
        self._cache = cache
        self._calls = RecordCalls(names, cache.pod, owner, round(lease * 1000))
        self._owner = owner
        self._keyspace = keyspace
        self._model = model
        self._watch = watch
        self._take_over = take_over
        self._is_alone = take_over
        """Whether another writer of the pod is a mistake, not one whose turn it is."""
        self._place = place
        self._rival = ""
        """The other writer that was told of last."""
        self._lease = lease
        self._last_pause = min(LAST_PAUSE, lease / PAUSES_OF_A_LEASE)
        self._bucket_life = bucket_life
        self._random_base = random_base
        self._clock = clock
        self._writes: dict[int, int] = {}
        """Of each bucket: how often it was written to under the token."""
        self._audits = 0
        self._audit_at = 0.0
        self._touch_at = 0.0
        self._kept_at = 0.0
        self._log = KeptLog()

    def steps(self) -> Steps:
        """Return what is to be done, one after the other. Send the replies of each `Ask`."""
        cause, floor, pause = Cause.START, 0, 0.0
        while True:
            self.counts.rebuilds[cause] += 1
            audits = self.counts.audits
            try:
                yield from self._claim(cause, floor, pause)
                yield from self._fence()
                yield from self._rebuild()
                yield from self._go_on()
            except AnewError as error:
                cause, floor = error.cause, error.floor
                log.warning("pod %s: shared index: %s; it is written anew", self._cache.pod, cause)
                # What is lost time and again is not to be written as fast as it can be.
                lasted = self.counts.audits - audits > AUDITS_OF_A_LEASE
                pause = 0.0 if lasted else min(max(FIRST_PAUSE, 2 * pause), self._last_pause)
            except TakenError:
                yield from self._wait()
                cause, floor, pause = Cause.FREE, 0, 0.0

    def _enter(self, state: State, why: str = "") -> None:
        if state is not self.state:
            level = logging.INFO if state in {State.CURRENT, State.WAITING} else logging.DEBUG
            log.log(
                level,
                "pod %s: shared index: %s, was %s%s",
                self._cache.pod,
                state,
                self.state,
                f": {why}" if why else "",
            )
            self.state = state

    def _claim(
        self, cause: Cause, floor: int, pause: float
    ) -> Generator[Ask | Rest, Sequence[Reply], None]:
        self._enter(State.CLAIMING, cause)
        if self.token:
            yield from self._keep(f"everything is to be written anew: {cause}")
        if pause:
            yield Rest(pause)
        yield from self._ensure_schema()
        # Before there is a base: what nobody is known to have claimed is swept.
        yield from self._asked([self._calls.enlist()])
        base = self._random_base()
        reason = f"everything is being written anew: {cause}"
        # Where Redis has lost the fence, tokens are not to go back: a zombie may have any lower one.
        floor = max(floor, self.token)
        call = self._calls.claim(base, take_over=self._take_over, floor=floor, reason=reason)
        ((claimed, token),) = yield from self._asked([call])
        self._take_over = False
        if not claimed:
            raise TakenError
        self.token = token
        self.applied = self._audits = 0
        self._writes = {}
        self.claimed = Claimed(
            Claim(
                owner=self._owner,
                base=base,
                places=[],
                keyspace=self._keyspace,
                model=self._model,
                ranks=len(self._cache.ranks),
                watch=self._watch,
            )
        )
        self._kept_at = self._clock()

    def _ensure_schema(self) -> Generator[Ask | Rest, Sequence[Reply], None]:
        """Wait until what lies under the prefix, if anything, is of this version."""
        while True:
            [reply] = yield from self._asked([ensure_call(self._names)], over=False)
            try:
                judge(self._names, reply)
            except SchemaError as error:
                self._in_trouble(str(error))
                yield Rest(LAST_PAUSE)
            else:
                self._out_of_trouble()
                return

    def _fence(self) -> Generator[Ask | Rest, Sequence[Reply], None]:
        self._enter(State.FENCING)
        buckets = range(self._names.buckets)
        calls = [
            fence_call(self._names, bucket, self._cache.pod, self.token, self._bucket_ms)
            for bucket in buckets
        ]
        found = [outcome(reply) for reply in (yield from self._asked(calls))]
        highest = max(one.token for one in found)
        if any(one.status is not Status.APPLIED for one in found):
            # Also where it has this very token: that may be another's, whose record was lost.
            raise AnewError(Cause.FENCED, highest)
        self._writes = dict.fromkeys(buckets, 0)
        self._touch_at = self._clock() + self._bucket_life / TOUCHES_OF_A_LIFE

    @property
    def _bucket_ms(self) -> int:
        return round(self._bucket_life * 1000)

    def _rebuild(self) -> Generator[Ask | Rest, Sequence[Reply], None]:
        self._enter(State.REBUILDING)
        claimed, cache = self._mine, self._cache
        contents = cache.contents()
        sequence = cache.journal.sequence
        claimed.say(cache.states())
        yield from self._apply(whole(claimed, contents))
        call = self._calls.publish(self.token, sequence, claimed)
        ((status, *_),) = yield from self._asked([call])
        if status < 0:
            raise AnewError(Cause.RECORD)
        self.applied = sequence
        self._log = KeptLog()
        self.written_at = self._audit_at = self._clock()
        self._rival = ""
        self._enter(State.CURRENT)
        if self._place:
            log.info(
                "pod %s: writing to the shared index at %s under prefix %s",
                self._cache.pod, self._place, self._names.prefix,
            )  # fmt: skip
            self._place = ""

    @property
    def _mine(self) -> Claimed:
        assert self.claimed is not None
        return self.claimed

    def _go_on(self) -> Generator[Ask | Rest, Sequence[Reply], NoReturn]:
        while True:
            now = self._clock()
            if now >= self._audit_at:
                yield from self._audit()
            elif self._cache.journal.sequence > self.applied:
                yield from self._batch()
            else:
                yield Rest(self._audit_at - now, until_news=True)

    def _batch(self) -> Generator[Ask | Rest, Sequence[Reply], None]:
        deltas = self._cache.journal.after(self.applied, BATCH_DELTAS)
        if deltas is None:
            raise AnewError(Cause.BEHIND)
        deltas = _bounded(deltas)
        claimed = self._mine
        places = claimed.claim().places
        changes = net(claimed, deltas)
        if claimed.places > MOST_PLACES:
            raise AnewError(Cause.PLACES)
        yield from self._apply(changes.items())
        last = deltas[-1].sequence
        entry = pb.Deltas(deltas=deltas).SerializeToString()
        kept = self._log.add(last, len(entry))
        moved = claimed.claim().places != places
        call = self._calls.log(
            self.token,
            self.applied,
            claimed,
            deltas=deltas,
            entry=entry,
            first_kept=kept,
            moved=moved,
        )
        ((status, *_),) = yield from self._asked([call])
        if status < 0:
            raise AnewError(Cause.RECORD)
        self.applied = last
        self.written_at = self._clock()
        self.counts.batches += 1

    def _apply(
        self, changes: Iterable[tuple[Where, KeysOf]]
    ) -> Generator[Ask | Rest, Sequence[Reply], None]:
        """Write changes; over when every bucket has said that it has them."""
        for portion in portions(changes):
            waiting: dict[int, deque[Call]] = {}
            for bucket, call in apply_calls(
                self._names, self._cache.pod, self.token, self._writes, portion, self._bucket_ms
            ):
                waiting.setdefault(bucket, deque()).append(call)
            while waiting:
                # One call of a bucket at a time: whether the next one is in order is known then.
                calls = {bucket: queue.popleft() for bucket, queue in waiting.items()}
                waiting = {bucket: queue for bucket, queue in waiting.items() if queue}
                replies = yield from self._asked(list(calls.values()))
                for bucket, reply in zip(calls, replies, strict=True):
                    self._applied(bucket, reply)
                if self._clock() >= self._kept_at + self._lease / AUDITS_OF_A_LEASE:
                    yield from self._keep("")
            self.counts.changes += sum(len(a) + len(g) for a, g in portion.values())

    def _applied(self, bucket: int, reply: Reply) -> None:
        found = outcome(reply)
        self._writes[bucket] += 1
        if found.status is Status.FENCED:
            raise AnewError(Cause.FENCED, found.token)
        if found.status is Status.GAP or found.count != self._writes[bucket]:
            raise AnewError(Cause.LOST)

    def _audit(self) -> Generator[Ask | Rest, Sequence[Reply], None]:
        """Look whether every bucket is as it was left; renew the lease then."""
        now = self._clock()
        self._audit_at = now + self._lease / AUDITS_OF_A_LEASE
        names, pod = self._names, self._cache.pod
        name = checkpoint(pod)
        asked: list[Command | Call] = [self._calls.enlist()]
        asked += [Command(("HGET", names.bucket(one), name)) for one in self._writes]
        if now >= self._touch_at:
            self._touch_at = now + self._bucket_life / TOUCHES_OF_A_LIFE
            asked += [
                Command(("PEXPIRE", names.bucket(one), self._bucket_ms)) for one in self._writes
            ]
        new, *replies = yield from self._asked(asked)
        if new:
            # It was not on the list, so what it holds may have been swept.
            raise AnewError(Cause.FORGOTTEN)
        for (bucket, writes), stored in zip(self._writes.items(), replies, strict=False):
            token, _, count = (stored or b"0:0").partition(b":")
            if int(token) > self.token:
                raise AnewError(Cause.FENCED, int(token))
            if (int(token), int(count)) != (self.token, writes):
                log.debug("pod %s: bucket %d has %r", pod, bucket, stored)
                raise AnewError(Cause.LOST)
        self._audits += 1
        call = self._calls.renew(self.token, self.applied, self._audits)
        ((status, *_),) = yield from self._asked([call])
        if status < 0:
            raise AnewError(Cause.RECORD)
        self._kept_at = self.written_at = now
        self.counts.audits += 1

    def _keep(self, reason: str) -> Generator[Ask | Rest, Sequence[Reply], None]:
        """Keep the record; with a reason, say in it that the index may not be sound, and why."""
        (reply,) = yield Ask([self._calls.keep(self.token, reason)])
        if not isinstance(reply, Exception):
            self._kept_at = self._clock()
            if reply[0] < 0 and self.state is not State.CLAIMING:
                raise AnewError(Cause.RECORD)

    def farewell(self) -> list[Call]:
        """Return what is to be asked when it ends: no reader is to believe what goes on without it."""
        if not self.token:
            return []
        return [self._calls.keep(self.token, "its publisher has ended")]

    def _asked(
        self, asked: Sequence[Command | Call], *, over: bool = True
    ) -> Generator[Ask | Rest, Sequence[Reply], list[Reply]]:
        """Return the reply to each; what is not answered, or refused, is asked again and again.

        With `over`, that it is answered ends what trouble there was.
        """
        replies = list((yield Ask(asked)))
        pause = FIRST_PAUSE
        while failed := [n for n, reply in enumerate(replies) if isinstance(reply, Exception)]:
            self._in_trouble(str(replies[failed[0]]))
            if self.token:
                yield from self._keep(self.trouble)
            yield Rest(pause)
            pause = min(2 * pause, self._last_pause)
            self.counts.retries += len(failed)
            again = yield Ask([asked[n] for n in failed])
            for n, reply in zip(failed, again, strict=True):
                replies[n] = reply
        if over:
            self._out_of_trouble()
        return replies

    def _in_trouble(self, reason: str) -> None:
        if self.trouble.partition(" ")[0] != reason.partition(" ")[0]:
            log.warning("pod %s: shared index: %s", self._cache.pod, reason)
        self.trouble = reason

    def _out_of_trouble(self) -> None:
        if self.trouble:
            log.info("pod %s: shared index: answers again", self._cache.pod)
            self.trouble = ""
            # Only an audit makes the record sound again.
            self._audit_at = self._clock()

    def _wait(self) -> Generator[Ask | Rest, Sequence[Reply], None]:
        """Wait until nobody has the pod."""
        self._enter(State.WAITING, "another writer has the pod")
        self.token = 0
        self.claimed = None
        while True:
            yield Rest(self._lease / AUDITS_OF_A_LEASE)
            owner, claim = yield from self._asked(self._calls.owner_of())
            # A claim of ours may have been late on the way.
            if owner is None or owner == self._owner.encode():
                return
            self._tell_of(owner.decode(errors="replace"), claim)

    def _tell_of(self, owner: str, said: bytes | None) -> None:
        """Log who has the pod, once, when its own claim can be read."""
        try:
            claim = msgspec.json.decode(said or b"", type=Claim)
        except msgspec.MsgspecError:
            return
        if owner == self._rival or claim.owner != owner:
            return
        self._rival = owner
        pod = self._cache.pod
        where = f"watched at {claim.watch}" if claim.watch else "which names no address"
        unlike = [
            f"{name} {theirs!r}, not {ours!r}"
            for name, theirs, ours in (
                ("model", claim.model, self._model), ("keyspace", claim.keyspace, self._keyspace),
            )
            if theirs != ours
        ]  # fmt: skip
        also = f", with {' and '.join(unlike)}" if unlike else ""
        other = f"pod {pod}: shared index: writer {owner} has the pod, {where}{also}"
        if self._is_alone:
            # A router may write too, and names no address either.
            log.warning(
                "%s; %stwo publishers have --pod %s: give each pod its own id",
                other, "" if claim.watch else "if ", pod,
            )  # fmt: skip
        else:
            log.info("%s", other)

    def check(self) -> None:
        """Raise BrokenInvariantError where what it believes of its claim contradicts itself."""
        if self.claimed is not None:
            self.claimed.check()
        if self.state is State.CURRENT and set(self._writes) != set(range(self._names.buckets)):
            raise BrokenInvariantError("it is current without every bucket")
        if self.state is State.CURRENT and not self.token:
            raise BrokenInvariantError("it is current without a claim")
        self._log.check()


def _bounded(deltas: Sequence[pb.Delta]) -> list[pb.Delta]:
    """Return as many as fit into a batch, one at least."""
    size = 0
    for number, delta in enumerate(deltas):
        size += delta.ByteSize()
        if number and size > BATCH_BYTES:
            return list(deltas[:number])
    return list(deltas)
