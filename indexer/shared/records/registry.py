"""What the shared index says of pods: their records, read together, and how far they may be believed."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from indexer.process.shortened import shortened
from indexer.shared.layout.names import Names
from indexer.shared.layout.record import BadRecordError, Claim, Record, fields_of, read_record
from indexer.shared.layout.schema import SchemaError, fits
from indexer.shared.records.unconfirmed import Doubt
from indexer.shared.redis.command import Command, Redis, RefusedError, Reply, UnreachableError
from indexer.trust import MOST_REASON, Level

log = logging.getLogger(__name__)

UNCONFIRMED = (
    "being confirmed: its publisher has not looked at every bucket since this began to read, or since a "
    "connection or a bucket was lost"
)
UNREAD = "the shared index was not reached yet"
NOBODY = "no publisher holds the pod in the shared index"
AWAY = "the shared index: "
"""What a reason begins with where Redis refuses, does not answer, or holds what cannot be read."""
UNWRITTEN = "its publisher is writing what it holds"


@dataclass(slots=True)
class _Reading:
    """The last good reading of a pod's record, and what is wrong since."""

    doubt: Doubt
    fields: Mapping[bytes, bytes] | None = None
    """None before the first reading."""
    record: Record | None = None
    heard_at: float | None = None
    problem: str = UNREAD
    """Why the last attempt failed; empty where it did not."""


class Registry:
    """The records of the pods that it is told of; the last good reading of each is remembered.

    `clock` tells seconds, for `heard_at`; no reading depends on it.
    """

    def __init__(self, redis: Redis, names: Names, clock: Callable[[], float]) -> None:
        self._redis = redis
        self._names = names
        self._clock = clock
        self._readings: dict[str, _Reading] = {}
        self._losses = 0
        """Of content, that no connection told of."""
        self._disruptions = 0
        """What `_breaks` was when records were last read."""
        self._checked_at: int | None = None
        """At how many disruptions the schema was last looked at."""
        self._unfit = ""

    async def read(
        self, pods: Sequence[str], first: Sequence[Command], timeout: float
    ) -> list[Reply]:
        """Read these pods' records, all in one round trip; what fails is remembered, not raised.

        Returns the replies to what is asked before them.
        """
        before = self._breaks
        asked = [Command(("HGETALL", self._names.record(pod))) for pod in pods]
        replies, unfit = await asyncio.gather(
            self._redis.run([*first, *asked], timeout=timeout), self._check_schema(timeout)
        )
        if unfit:
            for pod in pods:
                self._of(pod).problem = unfit
        else:
            self._take(pods, replies[len(first) :], before)
        return replies[: len(first)]

    async def _check_schema(self, timeout: float) -> str:
        """Return why what lies in Redis cannot be read; looked at anew after each disruption.

        Where nobody has written yet it is looked at each time: a writer of another version may come.
        """
        if self._checked_at == self._redis.disruptions:
            return self._unfit
        try:
            is_said = await fits(self._redis, self._names, timeout=timeout)
        except SchemaError as error:
            self._unfit = str(error)
        except (RefusedError, UnreachableError):
            # The records' own replies say so; what was found before holds as far as is known.
            return self._unfit
        else:
            self._unfit = ""
            if not is_said:
                return ""
        self._checked_at = self._redis.disruptions
        return self._unfit

    def _take(self, pods: Sequence[str], replies: Sequence[Reply], before: int) -> None:
        """Take the replies; `before` is what `_breaks` was when they were asked for."""
        now = self._breaks
        if now != self._disruptions:
            self._disruptions = now
            for reading in self._readings.values():
                reading.doubt.lost()
        for pod, reply in zip(pods, replies, strict=True):
            reading = self._of(pod)
            self._take_one(reading, reply)
            if not reading.problem and before == now:
                record = reading.record
                reading.doubt.read(*((record.token, record.audits) if record else (0, 0)))

    def _of(self, pod: str) -> _Reading:
        return self._readings.setdefault(pod, _Reading(Doubt()))

    def _take_one(self, reading: _Reading, reply: Reply) -> None:
        if isinstance(reply, UnreachableError | RefusedError):
            reading.problem = f"{AWAY}{reply}"
            return
        fields = fields_of(reply)
        # Mostly nothing is new, and reading it is the larger part of the work.
        if fields != reading.fields:
            try:
                reading.record = read_record(fields)
            except BadRecordError as error:
                reading.problem = str(error)
                return
            reading.fields = fields
        reading.problem = ""
        reading.heard_at = self._clock()

    @property
    def is_disrupted(self) -> bool:
        """Whether a connection was lost or made, or content lost, since the records were last read.

        What they said before then is no reason to believe what is read since.
        """
        return self._breaks != self._disruptions

    @property
    def _breaks(self) -> int:
        return self._redis.disruptions + self._losses

    def lost(self) -> None:
        """Take note that content was lost: no pod's is sure before its writer has looked again."""
        self._losses += 1

    def record(self, pod: str) -> Record | None:
        """Return a pod's record as it was last read; None where there is none, or none was read."""
        reading = self._readings.get(pod)
        return reading.record if reading else None

    def problem(self, pod: str) -> str:
        """Return why a pod's record could not be read the last time; empty where it could."""
        reading = self._readings.get(pod)
        return reading.problem if reading else UNREAD

    def heard_at(self, pod: str) -> float | None:
        """Return when a pod's record was last read, by the clock; None for never."""
        reading = self._readings.get(pod)
        return reading.heard_at if reading else None

    def limit(self, pod: str) -> str:
        """Return why a pod's ranks are degraded at best; empty where nothing speaks against them."""
        reading = self._readings.get(pod)
        if reading is None or reading.record is None:
            return UNREAD
        if not reading.record.sound:
            return reading.record.reason or UNWRITTEN
        return UNCONFIRMED if reading.doubt.holds else ""

    def trust_of(self, pod: str, rank: int) -> tuple[Level, str]:
        """Return how far what the index holds of a rank may be believed, and why, as last read."""
        reading = self._readings.get(pod)
        if reading is None or reading.heard_at is None:
            return Level.COLD, reading.problem if reading else UNREAD
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
        """Drop the readings of a pod's record; until it is read again the pod is cold."""
        self._readings.pop(pod, None)


def nobody(prefix: str) -> str:
    """Return that a pod has no record; who looks under another prefix sees that here."""
    return f"{NOBODY} under prefix {prefix!r}"


def refusal(claim: Claim, keyspace: str, ranks: int) -> str:
    """Return why a pod's blocks can be of no use to this router; empty where they can.

    `keyspace` is the fingerprint of this router's own keys (`indexer.keys.key`).
    """
    if claim.keyspace != keyspace:
        return (
            "keyspace: router and publisher differ in the model's name or in the hash seed "
            f"([index] hash-seed, --hash-seed); the publisher's model is {claim.model!r}"
        )
    if claim.ranks != ranks:
        return f"the publisher follows {claim.ranks} ranks, configured are {ranks}"
    return ""
