"""Repeats the requests of a pod's writer until they are answered, and meanwhile keeps the lease."""

import logging
from collections.abc import Sequence

from warmpath.indexer.shared.layout.damage import heal_call, is_wrong_type
from warmpath.indexer.shared.redis.command import Call, Command, Reply
from warmpath.indexer.shared.writer.lease import Lease
from warmpath.indexer.shared.writer.steps import Commands, Rest, Steps, WriterCounts

log = logging.getLogger(__name__)

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
        self._lease = lease
        self._last_pause = min(LAST_PAUSE, lease.seconds / PAUSES_OF_A_LEASE)
        self._counts = counts

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
            yield from self._lease.keep(self.trouble)
            yield Rest(pause)
            pause = self.longer(pause)
            self._counts.retries += len(failed)
            again = yield Commands([asked[n] for n in failed])
            for n, reply in zip(failed, again, strict=True):
                replies[n] = reply
        if over:
            self.out_of_trouble()
        return replies

    def in_trouble(self, reason: str) -> None:
        """Keep the reason why the writer does not get on; log it where it is new."""
        if reason != self.trouble:
            log.warning("pod %s: shared index: %s", self._pod, reason)
        self.trouble = reason

    def out_of_trouble(self) -> None:
        """End the trouble, if there is any: the writer gets on."""
        if self.trouble:
            log.info("pod %s: shared index: it can be written again", self._pod)
            self.trouble = ""
            self._lease.demand_audit()


def _keys_of(one: Command | Call) -> tuple[str, ...]:
    return one.keys if isinstance(one, Call) else (str(one.words[1]),)
