"""Reads pods' records in the shared index together, and derives the trust in each pod from them.

`Unconfirmed` is the doubt whether Redis has lost blocks of a pod, unnoticed by its writer so far. A node
that fails may come back, or be replaced, without the last writes. The writer notices that: it audits
every bucket each tenth of its lease, and where its writes are missing, it claims the pod again and
writes everything again. Until the writer has had the time for that, a reader that lost a connection does
not know whether writes are missing. The reader waits for audits and not for seconds, so nobody compares
two clocks.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.layout.record import (
    BadRecordError,
    Claim,
    Record,
    fields_of,
    read_record,
)
from warmpath.indexer.shared.layout.schema import SchemaError, fits
from warmpath.indexer.shared.redis.command import Command, CommandFailedError, Redis, Reply
from warmpath.indexer.trust import MOST_REASON, PROMISED_SECONDS, Level
from warmpath.process.logs import shortened

log = logging.getLogger(__name__)

SURE_AUDITS = 2
"""How many audits of one claim a reader waits for after its first reading since the loss: the first may
have begun before the loss, the second began after the first had ended."""


class Unconfirmed:
    """The doubt about one pod: from the start, and from each loss, until its writer has audited."""

    def __init__(self) -> None:
        self.holds = True
        self._first: tuple[int, int] | None = None
        """Claim number and audits at the first reading since the last loss; None before that reading."""

    def lost(self) -> None:
        """Begin the doubt again: Redis, or the reader, may have lost writes of the pod."""
        self.holds = True
        self._first = None

    def read(self, token: int, audits: int) -> None:
        """Take the claim number and audits of a record, read after the last loss; 0 and 0 for none."""
        if not self.holds:
            return
        if self._first is None or (token, audits) < self._first:
            self._first = token, audits
        first, confirmed = self._first
        # A claim that was not there yet at the first reading wrote everything after the loss.
        needed = confirmed + SURE_AUDITS if token == first else 1
        self.holds = audits < needed


class Moment:
    """The last moment of the engine that a pod's record is known to show, by the reader's own clock.

    The record counts its confirmations. Each says by how much the index was behind the engine, at most,
    when Redis took the confirmation before it; the writer knows that by its own clock, from the reply.
    A reader that finds a new confirmation knows that Redis took it after the reader had asked for the
    record the last time before. So no two clocks are compared, and no lease and no server's time
    matters: a record whose confirmations do not move shows an ever older moment.
    """

    def __init__(self) -> None:
        self.at = -math.inf
        """The moment, in seconds of the reader's clock; minus infinity until two confirmations came."""
        self._last: tuple[int, int] | None = None
        """Claim number and confirmation that were read last; None before that."""
        self._taken_after = -math.inf
        """A time before Redis took the confirmation of `_last`."""
        self._asked_at = -math.inf
        """When the record was asked for, in the last good reading."""

    def read(self, record: Record | None, asked_at: float) -> bool:
        """Take a record asked for at `asked_at`; return False where it is older than the one before."""
        before, asked_before = self._last, self._asked_at
        self._asked_at = asked_at
        if record is None or not record.sound:
            return True
        self._last = record.token, record.confirmation
        if before is None or self._last < before:
            self.at = self._taken_after = -math.inf
            return before is None
        if self._last > before:
            if record.behind is not None:
                is_next = before == (record.token, record.confirmation - 1)
                taken_after = self._taken_after if is_next else asked_before
                self.at = max(self.at, taken_after - record.behind)
            self._taken_after = asked_before
        return True


UNCONFIRMED = (
    "being confirmed: its publisher has not audited the index since this router began to read it, or "
    "since a connection, a reading or a bucket was lost"
)
LATE = f"its publisher has not said for {PROMISED_SECONDS:g} s that the index has what the engine holds"
UNREAD = "the shared index was not reached yet"
NOBODY = "no publisher holds the pod in the shared index"
AWAY = "the shared index: "
"""The beginning of a reason where Redis refuses, does not answer, or holds something malformed."""
UNWRITTEN = "its publisher is writing what it holds"


@dataclass(slots=True)
class Reading:
    """The last good reading of a pod's record, and the problem of the last attempt since."""

    doubt: Unconfirmed = field(default_factory=Unconfirmed)
    moment: Moment = field(default_factory=Moment)
    fields: Mapping[bytes, bytes] | None = None
    """The fields of the record's hash; None before the first reading."""
    record: Record | None = None
    """The record; None where the pod has none, or none was read."""
    read_at: float | None = None
    """When the record was read, by the clock; None for never."""
    problem: str = UNREAD
    """Why the last attempt failed; empty where it did not."""


_NO_READING = Reading()


class Registry:
    """Reads the records of pods, and remembers the last good reading of each.

    `clock` gives the seconds for `read_at` and `moment`.
    """

    def __init__(self, redis: Redis, names: KeyNames, clock: Callable[[], float]) -> None:
        self._redis = redis
        self._names = names
        self._clock = clock
        self._readings: dict[str, Reading] = {}
        self._losses = 0
        """Losses of content while no connection was lost."""
        self._disruptions = 0
        """The value of `_breaks` when records were last read."""
        self._checked_at: int | None = None
        """The number of disruptions when the schema was last checked; None before that."""
        self._unfit = ""
        self.is_answered = False
        """Whether Redis answered for each record at the last reading, whatever it holds."""

    async def read(
        self, pods: Sequence[str], first: Sequence[Command], timeout: float
    ) -> list[Reply]:
        """Ask `first`, then read these pods' records, in one round trip; return the replies to `first`.

        Where a record cannot be read, `problem` says why; no error is raised.
        """
        before, asked_at = self._breaks, self._clock()
        asked = [Command(("HGETALL", self._names.record(pod))) for pod in pods]
        replies, unfit = await asyncio.gather(
            self._redis.run([*first, *asked], timeout=timeout), self._check_schema(timeout)
        )
        records = replies[len(first) :]
        self.is_answered = not any(isinstance(reply, CommandFailedError) for reply in records)
        if unfit:
            for pod in pods:
                self._of(pod).problem = unfit
        else:
            self._take(pods, records, before, asked_at)
        return replies[: len(first)]

    async def _check_schema(self, timeout: float) -> str:
        """Return why this version cannot read the index; empty where it can.

        The schema is checked again after each disruption, and at each reading while there is none or one
        that does not fit: a writer of another version may come, and a damaged schema is healed.
        """
        if self._checked_at == self._redis.disruptions:
            return ""
        try:
            is_said = await fits(self._redis, self._names, timeout=timeout)
        except SchemaError as error:
            self._unfit = str(error)
        except CommandFailedError:
            # The replies for the records fail alike; the last finding about the schema stands.
            pass
        else:
            self._unfit = ""
            if is_said:
                self._checked_at = self._redis.disruptions
        return self._unfit

    def _take(
        self, pods: Sequence[str], replies: Sequence[Reply], before: int, asked_at: float
    ) -> None:
        now = self._breaks
        if now != self._disruptions:
            self._disruptions = now
            for reading in self._readings.values():
                reading.doubt.lost()
        for pod, reply in zip(pods, replies, strict=True):
            reading = self._of(pod)
            reading.problem = self._problem_of(reading, reply)
            if reading.problem:
                reading.doubt.lost()
                continue
            reading.read_at, record = self._clock(), reading.record
            if not reading.moment.read(record, asked_at):
                # Redis has gone back to old data, as after DEBUG RELOAD or behind a proxy.
                self.lost()
                reading.doubt.lost()
            if before == now:
                reading.doubt.read(*((record.token, record.audits) if record else (0, 0)))

    def _of(self, pod: str) -> Reading:
        return self._readings.setdefault(pod, Reading())

    @staticmethod
    def _problem_of(reading: Reading, reply: Reply) -> str:
        """Take the record in a reply; return why it cannot be read, empty where it can."""
        if isinstance(reply, CommandFailedError):
            return f"{AWAY}{reply}"
        fields = fields_of(reply)
        # Mostly no field is new, and decoding them is the larger part of the work.
        if fields != reading.fields:
            try:
                reading.record = read_record(fields)
            except BadRecordError as error:
                return str(error)
            reading.fields = fields
        return ""

    @property
    def is_disrupted(self) -> bool:
        """Whether a connection was lost or made, or content lost, since the records were last read.

        Records from before that do not confirm blocks that are read after it.
        """
        return self._breaks != self._disruptions

    @property
    def _breaks(self) -> int:
        return self._redis.disruptions + self._losses

    def lost(self) -> None:
        """Doubt every pod until its writer has audited the index again: content was lost."""
        self._losses += 1

    def reading(self, pod: str) -> Reading:
        """Return the last reading of a pod's record; one that failed, where it was not tried yet."""
        return self._readings.get(pod, _NO_READING)

    def limit(self, pod: str) -> str:
        """Return why a pod's ranks are degraded at best; empty where they may be exact."""
        reading = self.reading(pod)
        if reading.record is None:
            return UNREAD
        if not reading.record.sound:
            return reading.record.reason or UNWRITTEN
        if reading.doubt.holds:
            return UNCONFIRMED
        return LATE if self._clock() - reading.moment.at > PROMISED_SECONDS else ""

    def trust_of(self, pod: str, rank: int) -> tuple[Level, str]:
        """Return how far a rank may be believed, and why, by the last reading of its pod's record."""
        reading = self.reading(pod)
        if reading.read_at is None:
            return Level.COLD, reading.problem
        record = reading.record
        if record is None:
            return Level.COLD, nobody(self._names.prefix)
        if record.claim is None:
            return Level.COLD, record.reason or UNWRITTEN
        state = record.states.get(rank)
        if state is None:
            return Level.COLD, f"its publisher says nothing of rank {rank}"
        level = Level(state.trust)
        if level is Level.EXACT and (limit := self.limit(pod)):
            return Level.DEGRADED, limit
        return level, shortened(state.reason, MOST_REASON)

    def forget(self, pod: str) -> None:
        """Drop the reading of a pod's record; until the record is read again the pod is cold."""
        self._readings.pop(pod, None)


def nobody(prefix: str) -> str:
    """Return the reason for a pod without a record; it names the prefix, since that may be wrong."""
    return f"{NOBODY} under prefix {prefix!r}"


def refusal(claim: Claim, keyspace: str, ranks: int) -> str:
    """Return why this router cannot use a pod's blocks; empty where it can.

    `keyspace` is the fingerprint of this router's own keys (`indexer.keys.key`).
    """
    if claim.keyspace != keyspace:
        return (
            "keyspace: router and publisher differ in the model's name or in the hash seed "
            f"([index] hash-seed, --hash-seed); the publisher's model is {claim.model!r}"
        )
    if claim.ranks != ranks:
        return f"the publisher follows {claim.ranks} ranks, but {ranks} are configured"
    return ""
