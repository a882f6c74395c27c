"""The states of a pod's writer, the steps that it asks for, and the causes for which it starts again."""

from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from warmpath.indexer.shared.redis.command import Call, Command, Reply


class WriterState(StrEnum):
    """The states of a writer (`indexer.shared.writer.machine`)."""

    UNCLAIMED = "unclaimed"
    CLAIMING = "claiming"
    FENCING = "fencing"
    REBUILDING = "rebuilding"
    CURRENT = "current"
    WAITING = "waiting"
    """Another writer has the pod."""


class Cause(StrEnum):
    """Why a writer claims its pod again and writes everything again."""

    START = "the writer has started"
    FREE = "the other writer's lease is over"
    FENCED = "a bucket has a later claim"
    LOST = "a bucket has lost writes"
    RECORD = "the pod's record is gone or is not as it was left"
    FORGOTTEN = "the pod was forgotten"
    BEHIND = "the journal no longer has all changes that were not written yet"
    PLACES = "the claim's places are used up"


@dataclass(frozen=True, slots=True)
class Commands:
    """Commands to run now; their replies are to be sent back, in order."""

    asked: Sequence[Command | Call]


@dataclass(frozen=True, slots=True)
class Rest:
    """A pause of `seconds`; with `until_news` it ends early when the journal has grown."""

    seconds: float
    until_news: bool = False


Result = TypeVar("Result")
Steps = Generator[Commands | Rest, Sequence[Reply], Result]
"""Steps to do one after the other, and their result. Send the replies of each `Commands`."""


class AnewError(Exception):
    """The writer has to claim its pod and write everything again."""

    def __init__(self, cause: Cause, floor: int = 0) -> None:
        super().__init__(cause)
        self.cause = cause
        self.floor = floor
        """The highest claim number that was found in a bucket; 0 where none was looked for."""


@dataclass(slots=True)
class WriterCounts:
    """Counts of a writer's work so far."""

    batches: int = 0
    changes: int = 0
    """Keys added and gone, in batches and in rebuilds."""
    audits: int = 0
    retries: int = 0
    rebuilds: Counter[Cause] = field(default_factory=Counter)
