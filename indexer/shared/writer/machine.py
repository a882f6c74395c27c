"""The state machine of one pod's writer to the shared index; `indexer.shared.writer.run` runs it.

    unclaimed -> claiming -> fencing -> rebuilding -> current
                    ^                                    |
                    +---- anything lost, or fenced ------+      waiting: another writer has the pod

This module goes from one state to the next; `indexer.shared.writer.tenure` does the work under a claim.
Where anything in Redis is not as the writer left it, the writer claims the pod anew and writes
everything, so there is one way of recovery. Each request is repeated until it is answered
(`indexer.shared.writer.lease`), so nothing fails for good; meanwhile the pod's record says why, where it
can be reached.
"""

import logging
import secrets
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import NoReturn

import msgspec
from msgspec.structs import replace

from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.layout.record import Claim
from warmpath.indexer.shared.layout.schema import SchemaError, ensure_call, judge
from warmpath.indexer.shared.redis.command import Call, Command, script
from warmpath.indexer.shared.writer.calls import FENCE_MS
from warmpath.indexer.shared.writer.lease import (
    AUDITS_OF_A_LEASE,
    LAST_PAUSE,
    AnewError,
    Cause,
    Lease,
    Rest,
    Steps,
)
from warmpath.indexer.shared.writer.tenure import Tenure
from warmpath.indexer.watch.pod_cache import PodCache
from warmpath.process.bytes import UNREADABLE

log = logging.getLogger(__name__)


def rival_of(owner: str, said: bytes | None, ours: Claim) -> str:
    """Return the words for the other writer that has the pod, by its claim `said`.

    Empty if the claim cannot be read or is an earlier owner's.
    """
    try:
        claim = msgspec.json.decode(said or b"", type=Claim)
    except UNREADABLE:
        return ""
    if claim.owner != owner:
        return ""
    where = f"watched at {claim.watch}" if claim.watch else "which names no address"
    pairs = ("model", claim.model, ours.model), ("keyspace", claim.keyspace, ours.keyspace)
    unlike = [f"{name} {one!r}, not {other!r}" for name, one, other in pairs if one != other]
    also = f", with {' and '.join(unlike)}" if unlike else ""
    return f"writer {owner} has the pod, {where}{also}"


LEAST_LEFT = 5.0
"""Least seconds without a renewal after which a record is left over, however short the lease."""

BUCKET_LIFE = 86_400.0
"""Seconds that a bucket stays after its writers end, unless a process sets another time."""


class WriterState(StrEnum):
    """The states of a writer."""

    UNCLAIMED = "unclaimed"
    CLAIMING = "claiming"
    FENCING = "fencing"
    REBUILDING = "rebuilding"
    CURRENT = "current"
    WAITING = "waiting"
    """Another writer has the pod."""


class Writer(Lease):
    """Writes the blocks of a pod's cache, then the changes in its journal.

    `owner` is a random name for one life of this writer. `random_base` returns 47 random bits. The
    writer's first claim wins over another writer's. `lease` and `bucket_life` are in seconds. `watch` is
    where the publisher serves CacheWatch, `place` is where Redis is, for the log.
    """

    def __init__(
        self,
        names: KeyNames,
        cache: PodCache,
        *,
        owner: str,
        keyspace: str,
        model: str,
        watch: str,
        lease: float,
        bucket_life: float,
        clock: Callable[[], float],
        place: str = "",
        random_base: Callable[[], int] | None = None,
    ) -> None:
        super().__init__(names, cache.pod, lease, clock)
        self.state = WriterState.UNCLAIMED
        self.written_at: float | None = None
        """When, by the clock, Redis last had all changes up to `applied` for certain; None: never."""
        self.tenure: Tenure | None = None
        """The work under the last claim, which may be over; None before the first."""
        self._cache = cache
        self._rival = ""
        """The other writer that was logged last, since this one had the pod."""
        self._own = Claim(
            owner=owner, base=0, places=[],
            keyspace=keyspace, model=model, ranks=len(cache.ranks), watch=watch,
        )  # fmt: skip
        self._takes_over = True
        """Whether its next claim wins over another writer's."""
        self._place = place
        self._bucket_life = bucket_life
        self._random_base = random_base or partial(secrets.randbits, 47)

    @property
    def applied(self) -> int:
        """The last sequence of the journal that Redis has under the last claim."""
        return self.tenure.applied if self.tenure else 0

    def steps(self) -> Steps[NoReturn]:
        """Yield the writer's steps, without end."""
        cause, floor, pause = Cause.START, 0, 0.0
        while True:
            self.counts.rebuilds[cause] += 1
            audits = self.counts.audits
            try:
                tenure = yield from self._claim(cause, floor, pause)
                if tenure is None:
                    yield from self._wait()
                    cause, floor, pause = Cause.FREE, 0, 0.0
                    continue
                self.tenure = tenure
                self._enter(WriterState.FENCING)
                yield from tenure.fence()
                self._enter(WriterState.REBUILDING)
                yield from tenure.rebuild()
                self._become_current()
                yield from self._go_on(tenure)
            except AnewError as error:
                cause, floor = error.cause, error.floor
                log.warning("pod %s: shared index: %s; everything is written anew", self.pod, cause)
                # Where Redis loses the content again and again, the writer slows down.
                lasted = self.counts.audits - audits > AUDITS_OF_A_LEASE
                pause = 0.0 if lasted else self.longer(pause)

    def _enter(self, state: WriterState, why: str = "") -> None:
        if state is not self.state:
            is_news = state in {WriterState.CURRENT, WriterState.WAITING}
            log.log(
                logging.INFO if is_news else logging.DEBUG,
                "pod %s: shared index: %s, was %s%s",
                self.pod, state, self.state, f": {why}" if why else "",
            )  # fmt: skip
            self.state = state

    def _claim(self, cause: Cause, floor: int, pause: float) -> Steps[Tenure | None]:
        """Claim the pod; return None where another writer has it."""
        self._enter(WriterState.CLAIMING, cause)
        self.is_given_up = True
        yield from self.keep(f"everything is to be written anew: {cause}")
        if pause:
            yield Rest(pause)
        yield from self._ensure_schema()
        # The pod is listed before its claim has a base: sweepers remove the slots of unlisted pods.
        yield from self.asked([self.enlist_call()])
        claim = replace(self._own, base=self._random_base())
        reason = f"everything is being written anew: {cause}"
        # Tokens never go back, even where Redis has lost the fence: an earlier writer that still runs
        # may have any lower one.
        floor = max(floor, self.token)
        words = claim.owner, claim.base, int(self._takes_over), floor, self.ms, FENCE_MS, reason
        keys = self.names.record(self.pod), self.names.fence(self.pod)
        ((claimed, token),) = yield from self.asked([Call(script("claim"), keys, words)])
        self._takes_over = False
        if not claimed:
            return None
        self.token, self.is_given_up = token, False
        self.kept_at = self.clock()
        return Tenure(self._cache, claim, self, self._bucket_life)

    def _ensure_schema(self) -> Steps[None]:
        while True:
            [reply] = yield from self.asked([ensure_call(self.names)], over=False)
            try:
                judge(self.names, reply)
            except SchemaError as error:
                self.in_trouble(str(error))
                yield Rest(LAST_PAUSE)
            else:
                self.out_of_trouble()
                return

    def _become_current(self) -> None:
        self.written_at = self.clock()
        self._rival = ""
        self._enter(WriterState.CURRENT)
        if self._place:
            log.info(
                "pod %s: writing to the shared index at %s under prefix %s",
                self.pod, self._place, self.names.prefix,
            )  # fmt: skip
            self._place = ""

    def _go_on(self, tenure: Tenure) -> Steps[NoReturn]:
        while True:
            # A batch comes first, so that the confirmation after it counts for what was in it.
            has_news = self._cache.journal.sequence > tenure.applied
            if has_news:
                yield from tenure.batch()
                self.written_at = self.clock()
            now = self.clock()
            due = min(self.audit_at, self.confirm_at)
            if due <= now:
                yield from tenure.audit() if self.audit_at <= now else tenure.confirm()
                self.written_at = now
            elif not has_news:
                yield Rest(due - now, until_news=True)

    def _wait(self) -> Steps[None]:
        """Wait until no other writer has the pod.

        A record that nobody has renewed for the time of this writer's lease is left over: only the
        server's clock, which was set back, keeps it.
        """
        self._enter(WriterState.WAITING, "another writer has the pod")
        self.token = 0
        record = self.names.record(self.pod)
        left, read_at = 0, self.clock()
        renewed_at = read_at
        while True:
            yield Rest(self.audit_seconds)
            asked = ("HGET", record, "owner"), ("HGET", record, "claim"), ("PTTL", record)
            owner, claim, rest = yield from self.asked([Command(words) for words in asked])
            # This writer is the owner where its own claim arrived late.
            if owner is None or owner == self._own.owner.encode():
                return
            self._log_rival(owner.decode(errors="replace"), claim)
            now = self.clock()
            if rest > left - (now - read_at) * 1000 / 2:
                renewed_at = now
            elif now - renewed_at > max(self.seconds, LEAST_LEFT):
                self._takes_over = True
                return
            left, read_at = rest, now

    def _log_rival(self, owner: str, said: bytes | None) -> None:
        rival = rival_of(owner, said, self._own)
        if rival and owner != self._rival:
            self._rival = owner
            pod = self.pod
            log.warning(
                "pod %s: shared index: %s; two publishers have --pod %s: give each pod its own id",
                pod, rival, pod,
            )  # fmt: skip

    def farewell(self) -> list[Call]:
        """Return the calls to make at the writer's end: they make the record unsound for readers."""
        return [self.keep_call("its publisher has ended")] if self.token else []
