"""The steps of a pass, and the counts of its work."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from warmpath.indexer.shared.redis.command import Call, Command, Reply

Asked = list[Command | Call]
Item = TypeVar("Item")
Result = TypeVar("Result")
Steps = Generator[Asked, list[Reply], Result]
"""Commands to run, one list after the other, and their result. Send the replies of each list.

An error among them ends the steps."""

AT_ONCE = 256
"""How many pods or fields one list of commands, or one command, is about, at most."""


@dataclass(slots=True)
class Swept:
    """Counts of what passes have done so far."""

    fields: int = 0
    """Segments, and blocks of spilled segments, read."""
    noted: int = 0
    """Fields that seemed to hold dead slots."""
    purged: int = 0
    """Fields that dead slots were taken out of."""
    retired: int = 0
    """Checkpoints deleted."""
    forgotten: int = 0
    """Pods removed from the hash of pods."""
    doubted: int = 0
    """How often a bucket was skipped, since a record that was read was not the latest."""
    healed: int = 0
    """Keys and fields removed that no writer can have written."""
    passes: int = 0
    """Passes that went to the end."""
    failed: int = 0
    """Passes that ended early."""


def batches(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """Yield the items, some at a time."""
    for start in range(0, len(items), AT_ONCE):
        yield items[start : start + AT_ONCE]
