"""The lease of a pod's record, which is kept by the writer that has claimed the pod.

`Retry` repeats the writer's requests until they are answered, and meanwhile keeps the lease.
"""

import logging
import math
from collections.abc import Callable, Sequence

from warmpath.indexer.shared.layout.damage import heal_call, is_wrong_type
from warmpath.indexer.shared.redis.command import Call, Command, Reply
from warmpath.indexer.shared.writer.calls import RecordCalls
from warmpath.indexer.shared.writer.steps import (
    AnewError,
    Cause,
    Commands,
    Rest,
    Steps,
    WriterCounts,
)

log = logging.getLogger(__name__)

AUDITS_OF_A_LEASE = 10
CONFIRM_SECONDS = 0.5
"""Seconds between two confirmations of the record, whatever the lease."""
SOON_SECONDS = 0.1
"""Seconds to the next confirmation where one is late."""
LATE_SECONDS = 0.75
"""A confirmation is late if it is more seconds than that behind the engine, or shows the engine more
seconds later than the one before it."""
LEAST_KEPT = 1.0
"""Seconds after which a writer that writes everything renews the record, so that others see it live."""


class Lease:
    """The lease, `seconds` long. Batches and audits renew it; where there are none, `keep` does.

    The modules that audit or meet trouble call it; only its own methods set its times.
    """

    def __init__(self, calls: RecordCalls, seconds: float, clock: Callable[[], float]) -> None:
        self.seconds = seconds
        self.audit_seconds = seconds / AUDITS_OF_A_LEASE
        self.token = 0
        """The number of the claim that has the record; 0 where no claim of this writer has it."""
        self._kept_at = 0.0
        """When, by the clock, it was last claimed, audited or kept."""
        self._audit_at = 0.0
        """When, by the clock, the next audit is due."""
        self._confirm_at = 0.0
        """When, by the clock, the next confirmation is due."""
        self._confirmed = -math.inf
        """The moment of the engine, by the clock, that the last confirmation shows."""
        self.calls = calls
        self.clock = clock
        self._is_given_up = False

    @property
    def seconds_to_audit(self) -> float:
        return self._audit_at - self.clock()

    @property
    def seconds_to_confirmation(self) -> float:
        return self._confirm_at - self.clock()

    def demand_audit(self) -> None:
        """Let an audit be due now: only an audit makes the record sound."""
        self._audit_at = self.clock()

    def demand_confirmation(self) -> None:
        """Let a confirmation be due now; a batch takes it along."""
        self._confirm_at = self.clock()

    def begin_audit(self) -> float:
        now = self.clock()
        self._audit_at = now + self.audit_seconds
        return now

    def end_audit(self) -> None:
        """End an audit; the next is due after half an interval or later: that leaves time to write."""
        self._audit_at = max(self._audit_at, self.clock() + self.audit_seconds / 2)

    def confirmed(self, begun: float, shown: float) -> None:
        """Record that a confirmation that began then has renewed the record.

        It shows the engine at the moment `shown`, which readers know by the confirmation after it.
        """
        is_ahead = shown - self._confirmed > LATE_SECONDS
        is_behind = LATE_SECONDS < begun - shown < math.inf
        self._kept_at, self._confirmed = begun, shown
        self._confirm_at = begun + (
            0 if is_ahead else SOON_SECONDS if is_behind else CONFIRM_SECONDS
        )

    def hold(self, token: int) -> None:
        self.token = token
        self._kept_at = self.clock()
        self._is_given_up = False

    def give_up(self, reason: str) -> Steps[None]:
        """Write into the record why the claim is over; keep the record until there is another claim."""
        self._is_given_up = True
        yield from self.keep(reason)

    def let_go(self) -> None:
        self.token = 0

    def keep_in_time(self) -> Steps[None]:
        """Renew the lease in a rebuild as often as audits do, and once a second at least."""
        if self.clock() >= self._kept_at + min(self.audit_seconds, LEAST_KEPT):
            yield from self.keep("")

    def keep(self, reason: str) -> Steps[None]:
        """Renew the lease, if there is a claim.

        A `reason` that is not empty is written to the record, which then says that the pod's ranks are
        degraded. Raises AnewError where the record is no longer this claim's.
        """
        if not self.token:
            return
        (reply,) = yield Commands([self.calls.keep(self.token, reason)])
        if not isinstance(reply, Exception):
            self._kept_at = self.clock()
            if reply[0] < 0 and not self._is_given_up:
                raise AnewError(Cause.RECORD)


FIRST_PAUSE = 0.1
LAST_PAUSE = 2.0
"""Seconds between two attempts: the pause doubles from the first to the last."""
PAUSES_OF_A_LEASE = 4
"""How many pauses fit into a lease, at least: a writer that cannot write still renews it in time."""


class Retry:
    """Repeats requests that are refused or not answered."""

    def __init__(self, pod: str, lease: Lease, counts: WriterCounts) -> None:
        self.trouble = ""
        """Why the writer does not get on; empty while it does."""
        self._pod = pod
        self.lease = lease
        self._last_pause = min(LAST_PAUSE, lease.seconds / PAUSES_OF_A_LEASE)
        self.counts = counts

    def longer(self, pause: float) -> float:
        """Return the seconds of the next pause; `pause` is the last one, 0 where there was none."""
        return min(max(FIRST_PAUSE, 2 * pause), self._last_pause)

    def asked(self, asked: Sequence[Command | Call], *, over: bool = True) -> Steps[list[Reply]]:
        """Return the reply to each command; those refused or not answered are repeated.

        Keys of another type than warmpath's are removed. With `over`, the replies end the trouble.
        Raises AnewError where the record was lost meanwhile.
        """
        replies = list((yield Commands(asked)))
        pause = FIRST_PAUSE
        while failed := [n for n, reply in enumerate(replies) if isinstance(reply, Exception)]:
            self.in_trouble(str(replies[failed[0]]))
            if damaged := [asked[n] for n in failed if is_wrong_type(replies[n])]:
                yield Commands([heal_call(*_keys_of(one)) for one in damaged])
            yield from self.lease.keep(self.trouble)
            yield Rest(pause)
            pause = self.longer(pause)
            self.counts.retries += len(failed)
            again = yield Commands([asked[n] for n in failed])
            for n, reply in zip(failed, again, strict=True):
                replies[n] = reply
        if over:
            self.out_of_trouble()
        return replies

    def in_trouble(self, reason: str) -> None:
        if reason != self.trouble:
            log.warning("pod %s: shared index: %s", self._pod, reason)
        self.trouble = reason

    def out_of_trouble(self) -> None:
        if self.trouble:
            log.info("pod %s: shared index: it can be written again", self._pod)
            self.trouble = ""
            self.lease.demand_audit()


def _keys_of(one: Command | Call) -> tuple[str, ...]:
    return one.keys if isinstance(one, Call) else (str(one.words[1]),)
