"""Asks for a pod's writer until it is answered, and keeps the pod's lease meanwhile."""

import logging
from collections.abc import Sequence

from indexer.shared.redis.command import Call, Command, Reply
from indexer.shared.writer.lease import Lease
from indexer.shared.writer.steps import Ask, Counts, Rest, Steps

log = logging.getLogger(__name__)

FIRST_PAUSE = 0.1
LAST_PAUSE = 2.0
"""Seconds between two attempts: the pause doubles from the first to the last."""
PAUSES_OF_A_LEASE = 4
"""At least: a writer that only fails keeps its record all the same."""


class Retry:
    """Asks again what is not answered, or refused; `trouble` says why it was not."""

    def __init__(self, pod: str, lease: Lease, counts: Counts) -> None:
        self.trouble = ""
        """Why the last that was asked was not answered; empty where it was."""
        self._pod = pod
        self._lease = lease
        self._last_pause = min(LAST_PAUSE, lease.seconds / PAUSES_OF_A_LEASE)
        self._counts = counts

    def longer(self, pause: float) -> float:
        """Return the pause, seconds, that follows one that was in vain; 0 where there was none."""
        return min(max(FIRST_PAUSE, 2 * pause), self._last_pause)

    def asked(self, asked: Sequence[Command | Call], *, over: bool = True) -> Steps[list[Reply]]:
        """Return the reply to each; what is not answered, or refused, is asked again and again.

        With `over`, that it is answered ends what trouble there was. Raises AnewError where the record
        was lost meanwhile.
        """
        replies = list((yield Ask(asked)))
        pause = FIRST_PAUSE
        while failed := [n for n, reply in enumerate(replies) if isinstance(reply, Exception)]:
            self.in_trouble(str(replies[failed[0]]))
            yield from self._lease.keep(self.trouble)
            yield Rest(pause)
            pause = self.longer(pause)
            self._counts.retries += len(failed)
            again = yield Ask([asked[n] for n in failed])
            for n, reply in zip(failed, again, strict=True):
                replies[n] = reply
        if over:
            self.out_of_trouble()
        return replies

    def in_trouble(self, reason: str) -> None:
        """Take note of why it does not go on."""
        if self.trouble.partition(" ")[0] != reason.partition(" ")[0]:
            log.warning("pod %s: shared index: %s", self._pod, reason)
        self.trouble = reason

    def out_of_trouble(self) -> None:
        """Take note that it goes on."""
        if self.trouble:
            log.info("pod %s: shared index: answers again", self._pod)
            self.trouble = ""
            self._lease.demand_audit()
