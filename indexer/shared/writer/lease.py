"""The lease of a pod's record, which is kept by the writer that has claimed the pod."""

from collections.abc import Callable

from warmpath.indexer.shared.writer.record_calls import RecordCalls
from warmpath.indexer.shared.writer.steps import AnewError, Cause, Commands, Steps

AUDITS_OF_A_LEASE = 10
CONFIRM_SECONDS = 0.5
"""Seconds between two confirmations of the record, whatever the lease."""
LEAST_KEPT = 1.0
"""Seconds after which a writer that writes everything renews the record, so that others see it live."""


class Lease:
    """The lease, `seconds` long. Batches and audits renew it; where there are none, `keep` does.

    The modules that audit or meet trouble call it; only its own methods set its times.
    """

    def __init__(self, calls: RecordCalls, seconds: float, clock: Callable[[], float]) -> None:
        self.seconds = seconds
        self.token = 0
        """The number of the claim that has the record; 0 where no claim of this writer has it."""
        self._kept_at = 0.0
        """When, by the clock, it was last claimed, audited or kept."""
        self._audit_at = 0.0
        """When, by the clock, the next audit is due."""
        self._confirm_at = 0.0
        """When, by the clock, the next confirmation is due."""
        self._calls = calls
        self._clock = clock
        self._is_given_up = False

    @property
    def audit_seconds(self) -> float:
        """Seconds between two audits."""
        return self.seconds / AUDITS_OF_A_LEASE

    @property
    def seconds_to_audit(self) -> float:
        """Seconds until the next audit; 0 or less where it is due."""
        return self._audit_at - self._clock()

    @property
    def seconds_to_confirmation(self) -> float:
        """Seconds until the next confirmation; 0 or less where it is due."""
        return self._confirm_at - self._clock()

    def demand_audit(self) -> None:
        """Let an audit be due now: only an audit makes the record sound."""
        self._audit_at = self._clock()

    def demand_confirmation(self) -> None:
        """Let a confirmation be due now; a batch takes it along."""
        self._confirm_at = self._clock()

    def begin_audit(self) -> float:
        """Begin an audit, and return the time of its beginning."""
        now = self._clock()
        self._audit_at = now + self.audit_seconds
        return now

    def end_audit(self) -> None:
        """End an audit. Where Redis is far away, half of the time is left for writing."""
        self._audit_at = max(self._audit_at, self._clock() + self.audit_seconds / 2)

    def confirmed(self, begun: float) -> None:
        """Record that a confirmation that began then has renewed the record."""
        self._kept_at = begun
        self._confirm_at = self._clock() + CONFIRM_SECONDS

    def hold(self, token: int) -> None:
        """Keep the record for a claim that was made just now."""
        self.token = token
        self._kept_at = self._clock()
        self._is_given_up = False

    def give_up(self, reason: str) -> Steps[None]:
        """Write into the record why the claim is over; keep the record until there is another claim."""
        self._is_given_up = True
        yield from self.keep(reason)

    def let_go(self) -> None:
        """Stop keeping the record: another writer has the pod."""
        self.token = 0

    def keep_in_time(self) -> Steps[None]:
        """Renew the lease in a rebuild as often as audits do, and once a second at least."""
        if self._clock() >= self._kept_at + min(self.audit_seconds, LEAST_KEPT):
            yield from self.keep("")

    def keep(self, reason: str) -> Steps[None]:
        """Renew the lease, if there is a claim.

        A `reason` that is not empty is written to the record, which then says that the pod's ranks are
        degraded. Raises AnewError where the record is no longer this claim's.
        """
        if not self.token:
            return
        (reply,) = yield Commands([self._calls.keep(self.token, reason)])
        if not isinstance(reply, Exception):
            self._kept_at = self._clock()
            if reply[0] < 0 and not self._is_given_up:
                raise AnewError(Cause.RECORD)
