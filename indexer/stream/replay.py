"""The replays that a stream asks for: which one runs, where it must begin, and how many failed."""

from warmpath.indexer.stream.action import AskReplay

PATIENCE = 10
"""Failures in a row after which a replay's batches count as lost, if the endpoint has ever answered."""

FIRST_PATIENCE = 3
"""The same if the endpoint has never answered: perhaps there is none."""

BACK_OFF = 0.1
LONGEST_BACK_OFF = 5.0
"""Seconds before a replay that broke off is asked for again: after the first failure, and at most."""


class ReplayCall:
    """The last replay that was asked for, and how the earlier ones ended."""

    def __init__(self) -> None:
        self._ticket = 0
        self.fence: int | None = None
        """The sequence with which the replay must begin; None where there is no fence."""
        self.begun = False
        """Whether the replay's first batch has arrived; with a fence, that batch or a later one."""
        self.unfillable = -1
        """The missing sequence for which a replay was asked; a second one would not bring it either."""
        self.failures = 0
        """How many replays failed in a row without bringing a batch."""
        self._answered = False
        """Whether any replay was ever answered."""

    def ask(self, sequence: int, *, has_fence: bool, delay: float) -> AskReplay:
        """Ask for the batches from `sequence` on, and with `has_fence` the one before them too."""
        self._ticket += 1
        self.begun = False
        self.fence = sequence - 1 if has_fence else None
        return AskReplay(self._ticket, sequence if self.fence is None else self.fence, delay)

    def drop(self) -> None:
        """Ignore answers to every replay asked for by now."""
        self._ticket += 1

    def is_current(self, ticket: int) -> bool:
        """Whether this ticket is that of the last replay that was asked for."""
        return ticket == self._ticket

    def answered(self) -> None:
        """Record that the endpoint answered."""
        self._answered = True

    def succeeded(self) -> None:
        """Record that the replay brought a batch, or ended properly."""
        self.failures = 0

    def failed(self) -> None:
        """Record that the answer did not come, or broke off."""
        self.failures += 1

    @property
    def is_hopeless(self) -> bool:
        """Whether the most replays in a row have failed, so that their batches count as lost."""
        return self.failures >= (PATIENCE if self._answered else FIRST_PATIENCE)

    @property
    def back_off(self) -> float:
        """Seconds to wait, after a failure, before the next replay is asked for."""
        doublings = min(self.failures - 1, 16)
        return min(BACK_OFF * 2.0**doublings, LONGEST_BACK_OFF)
