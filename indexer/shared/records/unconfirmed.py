"""Whether a pod's blocks may lack writes whose loss its writer has not noticed yet.

A node that was lost may come back, or be replaced, without the last that was written to it. The writer
notices: it audits every bucket each tenth of its lease, and where one is not as it left it, it claims
anew and writes everything again. Until it has had the time for that, a reader that lost a connection
does not know. It waits for audits, not for seconds: no two clocks are compared.
"""

SURE_AUDITS = 2
"""Of one claim, after the first reading since the loss: the first one may have begun before the loss,
the second began after the first one had ended."""


class Doubt:
    """One pod's doubt: from the start, and from each loss, until its writer has audited every bucket."""

    def __init__(self) -> None:
        self.holds = True
        self._first: tuple[int, int] | None = None
        """Token and audits of the first reading since the last loss."""

    def lost(self) -> None:
        """Take note that a node was lost, or reached anew."""
        self.holds = True
        self._first = None

    def read(self, token: int, audits: int) -> None:
        """Take note of what the pod's record says, read after the last loss; 0 and 0 for no record."""
        if not self.holds:
            return
        if self._first is None or (token, audits) < self._first:
            self._first = token, audits
        first, confirmed = self._first
        # A claim that was not there yet at the first reading wrote everything after the loss.
        needed = confirmed + SURE_AUDITS if token == first else 1
        self.holds = audits < needed
