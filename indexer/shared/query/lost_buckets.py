"""Finds out that Redis has lost a bucket, by the time at which each bucket was made. Sans-I/O.

Redis may drop one key, or all of them, while every connection stays. A bucket that is made again
after that has another time (`names.BORN`), and a bucket that is not there has none. Where Redis loads
old data, the buckets have the times that they had; `indexer.shared.records.moment` finds that out.
"""

from collections.abc import Callable, Mapping, Sequence

from indexer.shared.layout.names import BORN, KeyNames
from indexer.shared.redis.command import Command, Reply


class Births:
    """Calls `lost` where a bucket was made again since it was last read, or is not there any more.

    The first reading of a bucket calls `lost` too, since nobody knows what happened before.
    """

    def __init__(self, names: KeyNames, lost: Callable[[], None]) -> None:
        self.losses = 0
        """How often `lost` was called."""
        self._names = names
        self._lost = lost
        self._of: dict[int, bytes | None] = {}
        self._read_at: int | None = None
        """The value of `Redis.disruptions` when all buckets were read; None if `ask` has to."""

    def ask(self, disruptions: int) -> list[Command]:
        """Return commands that read all buckets; none where that was done since the last disruption.

        A doubt, or a loss that was found since, makes it read them too.
        """
        if self._read_at == disruptions:
            return []
        buckets = range(self._names.buckets)
        return [Command(("HGET", self._names.bucket(bucket), BORN)) for bucket in buckets]

    def doubt(self) -> None:
        """Make the next `ask` read all buckets, since some were probably created anew."""
        self._read_at = None

    def take(self, replies: Sequence[Reply], disruptions: int) -> None:
        """Take the replies to `ask`, which was called with that number of disruptions."""
        read = {
            bucket: reply
            for bucket, reply in enumerate(replies)
            if reply is None or isinstance(reply, bytes)
        }
        self.compare(read)
        if len(read) == self._names.buckets:
            self._read_at = disruptions

    def compare(self, read: Mapping[int, bytes | None]) -> None:
        """Compare the times that were read with the known ones, by bucket; None: there is no bucket."""
        if any(self._of.get(bucket, b"") != born for bucket, born in read.items()):
            self._of |= read
            # Redis mostly loses several buckets together. The next `ask` reads all, so that prompts
            # do not find the other losses one by one.
            self._read_at = None
            self.losses += 1
            self._lost()
