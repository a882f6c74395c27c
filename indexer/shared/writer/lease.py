"""The lease of a pod's record, as the writer that has claimed the pod keeps it."""

from collections.abc import Callable

from indexer.shared.writer.record_calls import RecordCalls
from indexer.shared.writer.steps import AnewError, Ask, Cause, Steps

AUDITS_OF_A_LEASE = 10


class Lease:
    """What batches and audits renew; `keep` does where there are none. `seconds` long.

    Whoever audits or finds trouble tells it here; nobody else sets its times.
    """

    def __init__(self, calls: RecordCalls, seconds: float, clock: Callable[[], float]) -> None:
        self.seconds = seconds
        self.token = 0
        """The number of the claim that has the record; 0 where no claim of this writer has."""
        self._kept_at = 0.0
        """When, by the clock, it was last claimed, audited or kept."""
        self._audit_at = 0.0
        """When every bucket is to be looked at next."""
        self._calls = calls
        self._clock = clock
        self._is_given_up = False

    @property
    def audit_seconds(self) -> float:
        """Seconds from one audit to the next, and the longest that a rebuild keeps nothing."""
        return self.seconds / AUDITS_OF_A_LEASE

    @property
    def seconds_to_audit(self) -> float:
        """Seconds until every bucket is to be looked at; not above 0 where that is due."""
        return self._audit_at - self._clock()

    def demand_audit(self) -> None:
        """Let an audit be due now: only an audit makes the record sound."""
        self._audit_at = self._clock()

    def begin_audit(self) -> float:
        """Take note that an audit begins, and return when that is."""
        now = self._clock()
        self._audit_at = now + self.audit_seconds
        return now

    def end_audit(self, begun: float) -> None:
        """Take note that the audit renewed the record."""
        self._kept_at = begun

    def hold(self, token: int) -> None:
        """Keep the record for a claim that was made just now."""
        self.token = token
        self._kept_at = self._clock()
        self._is_given_up = False

    def give_up(self, reason: str) -> Steps[None]:
        """Let readers know why the claim is over. Its record is kept until there is another one."""
        self._is_given_up = True
        yield from self.keep(reason)

    def let_go(self) -> None:
        """Keep nothing: another writer has the pod."""
        self.token = 0

    def keep_in_time(self) -> Steps[None]:
        """Keep the record as it is where nothing did for as long as from one audit to the next."""
        if self._clock() >= self._kept_at + self.audit_seconds:
            yield from self.keep("")

    def keep(self, reason: str) -> Steps[None]:
        """Keep the record, if a claim has it; with a reason, say there that the index may not be sound.

        Raises AnewError where the record is no longer this claim's.
        """
        if not self.token:
            return
        (reply,) = yield Ask([self._calls.keep(self.token, reason)])
        if not isinstance(reply, Exception):
            self._kept_at = self._clock()
            if reply[0] < 0 and not self._is_given_up:
                raise AnewError(Cause.RECORD)
