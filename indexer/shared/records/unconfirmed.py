"""The doubt whether Redis has lost blocks of a pod while the pod's writer has not noticed it yet.

A node of Redis that fails may come back, or be replaced, without the last writes. The writer
notices that: it audits every bucket each tenth of its lease, and where its writes are missing, it
claims the pod again and writes everything again. Until the writer has had the time for that, a
reader that lost a connection does not know whether writes are missing. The reader waits for audits
and not for seconds, so nobody compares two clocks.
"""

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
        """Begin the doubt again: a node or reading was lost, a node reached, or content lost or read."""
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
