"""The replays that a stream asks for, and the digests of batches with which it compares the answers."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

import xxhash

MOST_SEQUENCE = (1 << 63) - 1
"""The highest sequence of a batch. Engines count from 0; -1, as a signed number, ends a replay."""

PATIENCE = 10
"""Failures in a row after which a replay's batches count as lost, if the endpoint has ever answered."""

FIRST_PATIENCE = 3
"""Failures in a row after which a replay's batches count as lost, if its endpoint never answered."""

BACK_OFF = 0.1
LONGEST_BACK_OFF = 5.0
"""Seconds before a replay that broke off is asked for again: after the first failure, and at most."""

KEPT = 1024
"""How many applied batches' digests are kept."""


@dataclass(frozen=True, slots=True)
class AskReplay:
    """Ask the engine, `delay` seconds from now, for every batch from `start` on.

    Answers carry `ticket`. A later replay takes the place of this one.
    """

    ticket: int
    start: int
    delay: float = 0.0


@dataclass(slots=True)
class ReplayCall:
    """The last replay that was asked for, and how the earlier ones ended."""

    ticket: int = 0
    """The ticket of the last replay; that of no replay where its answer is not wanted any more."""
    fence: int | None = None
    """The sequence with which the replay must begin; None where there is no fence."""
    begun: bool = False
    """Whether the replay's first batch has arrived; with a fence, that batch or a later one."""
    unfillable: int = -1
    """The missing sequence for which a replay was asked; a second one would not bring it either."""
    failures: int = 0
    """How many replays failed in a row without bringing a batch or ending properly."""
    is_answered: bool = False
    """Whether any replay was ever answered."""

    def ask(self, sequence: int, *, has_fence: bool, delay: float) -> AskReplay:
        """Ask for the batches from `sequence` on, and with `has_fence` the one before them too."""
        self.ticket += 1
        self.begun = False
        self.fence = sequence - 1 if has_fence else None
        return AskReplay(self.ticket, sequence if self.fence is None else self.fence, delay)

    @property
    def is_hopeless(self) -> bool:
        """Whether so many replays in a row have failed that their batches count as lost."""
        return self.failures >= (PATIENCE if self.is_answered else FIRST_PATIENCE)

    @property
    def back_off(self) -> float:
        """Seconds to wait, after a failure, before the next replay is asked for."""
        doublings = min(self.failures - 1, 16)
        return min(BACK_OFF * 2.0**doublings, LONGEST_BACK_OFF)


class Digests(OrderedDict[int, int]):
    """The digests of the batches that were applied last, by their sequences.

    They distinguish a duplicate from a restart.
    """

    def add(self, first: int, payloads: Iterable[bytes]) -> None:
        """Keep the digests of consecutive batches; `first` is the sequence of the first one."""
        digest = xxhash.xxh3_64_intdigest
        for sequence, payload in enumerate(payloads, first):
            self[sequence] = digest(payload)
        while len(self) > KEPT:
            self.popitem(last=False)

    def has(self, sequence: int, payload: bytes) -> bool:
        """Whether this batch is known to be the one that was applied with its sequence."""
        return self.get(sequence) == xxhash.xxh3_64_intdigest(payload)
