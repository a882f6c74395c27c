"""The lease of a pod's record, as the writer that has claimed the pod keeps it."""

from collections.abc import Callable

from indexer.shared.writer.record_calls import RecordCalls
from indexer.shared.writer.steps import AnewError, Ask, Cause, Steps

AUDITS_OF_A_LEASE = 10


class Lease:
    """What batches and audits renew; `keep` does where there are none. `seconds` long."""

    def __init__(self, calls: RecordCalls, seconds: float, clock: Callable[[], float]) -> None:
        self.seconds = seconds
        self.token = 0
        """The number of the claim that has the record; 0 where no claim of this writer has."""
        self.kept_at = 0.0
        """When, by the clock, it was last claimed, audited or kept."""
        self.audit_at = 0.0
        """When every bucket is to be looked at next."""
        self._calls = calls
        self._clock = clock
        self._is_given_up = False

    @property
    def audit_seconds(self) -> float:
        """Seconds from one audit to the next, and the longest that a rebuild keeps nothing."""
        return self.seconds / AUDITS_OF_A_LEASE

    def hold(self, token: int) -> None:
        """Keep the record for a claim that was made just now."""
        self.token = token
        self.kept_at = self._clock()
        self._is_given_up = False

    def give_up(self, reason: str) -> Steps[None]:
        """Let readers know why the claim is over. Its record is kept until there is another one."""
        self._is_given_up = True
        if self.token:
            yield from self.keep(reason)

    def let_go(self) -> None:
        """Keep nothing: another writer has the pod."""
        self.token = 0

    def keep(self, reason: str) -> Steps[None]:
        """Keep the record; with a reason, say in it that the index may not be sound, and why.

        Raises AnewError where the record is no longer this claim's.
        """
        (reply,) = yield Ask([self._calls.keep(self.token, reason)])
        if not isinstance(reply, Exception):
            self.kept_at = self._clock()
            if reply[0] < 0 and not self._is_given_up:
                raise AnewError(Cause.RECORD)
