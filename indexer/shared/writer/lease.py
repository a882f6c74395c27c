"""The lease of a pod's record, which is kept by the writer that has claimed the pod.

The writer's requests are repeated until they are answered; meanwhile the lease is kept.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from warmpath.indexer.shared.layout.damage import heal_call, is_wrong_type
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.redis.command import Call, Command, Reply, script

log = logging.getLogger(__name__)

AUDITS_OF_A_LEASE = 10
CONFIRM_SECONDS = 0.5
"""Seconds between two confirmations of the record, whatever the lease."""
SOON_SECONDS = 0.1
"""Seconds to the next confirmation where one is late."""
LATE_SECONDS = 0.75
"""A confirmation is late if it is behind the engine by more seconds than this, or if the moment that it
shows is later by more seconds than this than that of the confirmation before it."""
LEAST_KEPT = 1.0
"""Seconds after which a writer that writes everything renews the record, so that others see it live."""
FIRST_PAUSE = 0.1
LAST_PAUSE = 2.0
"""Seconds before a request is repeated, at first and at most: the pause doubles each time."""
PAUSES_OF_A_LEASE = 4
"""How many pauses fit into a lease, at least: a writer that cannot write still renews it in time."""


class Cause(StrEnum):
    """Why a writer claims its pod again and writes everything again."""

    START = "the writer has started"
    FREE = "the other writer's lease is over"
    FENCED = "a bucket has a later claim"
    LOST = "a bucket has lost writes"
    RECORD = "the pod's record is gone or is not as it was left"
    FORGOTTEN = "the pod was forgotten"
    BEHIND = "the journal no longer has all changes that were not written yet"
    PLACES = "the claim's places are used up"


@dataclass(frozen=True, slots=True)
class Rest:
    """A pause of `seconds`; with `until_news` it ends early when the journal has grown."""

    seconds: float
    until_news: bool = False


Result = TypeVar("Result")
Steps = Generator[Sequence[Command | Call] | Rest, Sequence[Reply], Result]
"""Steps to do one after the other, and their result: pauses, and commands whose replies are to be sent
back, in order."""


class AnewError(Exception):
    """The writer has to claim its pod and write everything again."""

    def __init__(self, cause: Cause, floor: int = 0) -> None:
        super().__init__(cause)
        self.cause = cause
        self.floor = floor
        """The highest claim number that was found in a bucket; 0 where none was looked for."""


@dataclass(slots=True)
class WriterCounts:
    """Counts of a writer's work so far."""

    batches: int = 0
    changes: int = 0
    """Keys added and gone, in batches and in rebuilds."""
    audits: int = 0
    retries: int = 0
    rebuilds: Counter[Cause] = field(default_factory=Counter)


class Lease:
    """A writer's lease of its pod's record, `seconds` long, and the requests that it makes meanwhile.

    Batches and audits renew it; where there are none, `keep` does.
    """

    def __init__(
        self, names: KeyNames, pod: str, seconds: float, clock: Callable[[], float]
    ) -> None:
        self.names = names
        self.pod = pod
        self.seconds = seconds
        self.ms = round(seconds * 1000)
        self.clock = clock
        self.counts = WriterCounts()
        self.trouble = ""
        """Why the writer does not get on; empty while it does."""
        self.token = 0
        """The number of the claim that has the record; 0 where no claim of this writer has it."""
        self.is_given_up = False
        """Whether the claim is over; the record is kept until there is another."""
        self.audit_seconds = seconds / AUDITS_OF_A_LEASE
        self.audit_at = 0.0
        """When, by the clock, the next audit is due. Only an audit makes the record sound."""
        self.confirm_at = 0.0
        """When, by the clock, the next confirmation is due; a batch takes it along."""
        self.kept_at = 0.0
        """When, by the clock, the lease was last renewed: by a claim, a confirmation or `keep`."""
        self._shown = -math.inf
        """The moment of the engine, by the clock, that the last confirmation shows."""
        self._last_pause = min(LAST_PAUSE, seconds / PAUSES_OF_A_LEASE)

    def confirmed(self, begun: float, shown: float) -> None:
        """Record that a confirmation begun at `begun` has renewed the record.

        It shows the engine at the moment `shown`, which readers know by the confirmation after it.
        """
        is_ahead = shown - self._shown > LATE_SECONDS
        is_behind = LATE_SECONDS < begun - shown < math.inf
        self.kept_at, self._shown = begun, shown
        self.confirm_at = begun + (
            0 if is_ahead else SOON_SECONDS if is_behind else CONFIRM_SECONDS
        )

    def keep_in_time(self) -> Steps[None]:
        """Renew the lease in a rebuild as often as audits do, and once a second at least."""
        if self.clock() >= self.kept_at + min(self.audit_seconds, LEAST_KEPT):
            yield from self.keep("")

    def keep(self, reason: str) -> Steps[None]:
        """Renew the lease, if there is a claim.

        A `reason` that is not empty is written to the record, which then says that the pod's ranks are
        degraded. Raises AnewError where the record is no longer this claim's.
        """
        if not self.token:
            return
        (reply,) = yield [self.keep_call(reason)]
        if not isinstance(reply, Exception):
            self.kept_at = self.clock()
            if reply[0] < 0 and not self.is_given_up:
                raise AnewError(Cause.RECORD)

    def keep_call(self, reason: str) -> Call:
        """Return the call that renews the lease without an audit; it replies a status."""
        record = self.names.record(self.pod)
        return Call(script("keep"), (record,), (self.token, self.ms, reason))

    def enlist_call(self) -> Call:
        """Return the call that puts the pod into the hash of pods; replies 1 where it was not there."""
        return Call(script("enlist"), (self.names.pods,), (self.pod,))

    def longer(self, pause: float) -> float:
        """Return the seconds of the next pause; `pause` is the last one, 0 where there was none."""
        return min(max(FIRST_PAUSE, 2 * pause), self._last_pause)

    def asked(self, asked: Sequence[Command | Call], *, over: bool = True) -> Steps[list[Reply]]:
        """Return the reply to each command; those refused or not answered are repeated.

        Keys not of warmpath's type for them are removed. With `over`, the replies end the trouble.
        Raises AnewError where the record was lost meanwhile.
        """
        replies = list((yield asked))
        pause = FIRST_PAUSE
        while failed := [n for n, reply in enumerate(replies) if isinstance(reply, Exception)]:
            self.in_trouble(str(replies[failed[0]]))
            if damaged := [asked[n] for n in failed if is_wrong_type(replies[n])]:
                yield [heal_call(*map(str, one.keys)) for one in damaged]
            yield from self.keep(self.trouble)
            yield Rest(pause)
            pause = self.longer(pause)
            self.counts.retries += len(failed)
            again = yield [asked[n] for n in failed]
            for n, reply in zip(failed, again, strict=True):
                replies[n] = reply
        if over:
            self.out_of_trouble()
        return replies

    def in_trouble(self, reason: str) -> None:
        if reason != self.trouble:
            log.warning("pod %s: shared index: %s", self.pod, reason)
        self.trouble = reason

    def out_of_trouble(self) -> None:
        if self.trouble:
            log.info("pod %s: shared index: it can be written again", self.pod)
            self.trouble = ""
            self.audit_at = self.clock()
