"""Finds out that Redis has lost a bucket, or has gone back to old data in one. Sans-I/O.

Redis may drop one key, or all of them, while every connection stays. A bucket that is made again
after that has another time (`names.BORN`), and a bucket that is not there has none. Where Redis loads
old data, a bucket has the time that it had, but fewer writes than before (`names.WRITES`).
"""

from collections.abc import Callable, Mapping, Sequence

from warmpath.indexer.shared.layout.names import BORN, WRITES, KeyNames, is_credible
from warmpath.indexer.shared.redis.command import Command, Reply

LIFE = BORN, WRITES
"""The fields to read for a bucket's life."""
Life = tuple[bytes | None, bytes | None]
"""Their values; None for a field that is not there."""


class Lives:
    """Calls `lost` where a bucket was made again since it was last read, is gone, or has gone back.

    The first reading of a bucket calls `lost` too, since nobody knows what happened before.
    """

    def __init__(self, names: KeyNames, lost: Callable[[], None]) -> None:
        self.losses = 0
        """How often `lost` was called."""
        self._names = names
        self._lost = lost
        self._of: dict[int, tuple[bytes | None, int, float]] = {}
        """When each bucket was made, its writes by then, and when that was read."""
        self._read_at: int | None = None
        """The value of `Redis.disruptions` when all buckets were read; None if `ask` has to."""

    def ask(self, disruptions: int) -> list[Command]:
        """Return commands that read all buckets; none where that was done since the last disruption.

        A doubt, or a loss that was found since, makes it read them too.
        """
        if self._read_at == disruptions:
            return []
        buckets = range(self._names.buckets)
        return [Command(("HMGET", self._names.bucket(bucket), *LIFE)) for bucket in buckets]

    def doubt(self) -> None:
        """Make the next `ask` read all buckets, since some were probably created anew."""
        self._read_at = None

    def take(self, replies: Sequence[Reply], disruptions: int, asked_at: float, now: float) -> None:
        """Process the replies to `ask`, called at `asked_at` with this number of disruptions."""
        read: dict[int, Life] = {
            bucket: (reply[0], reply[1])
            for bucket, reply in enumerate(replies)
            if isinstance(reply, list) and len(reply) == len(LIFE)
        }
        self.compare(read, asked_at, now)
        if len(read) == self._names.buckets:
            self._read_at = disruptions

    def compare(self, read: Mapping[int, Life], asked_at: float, now: float) -> None:
        """Compare what was read with what is known, by bucket; the times are of one clock."""
        is_lost = False
        for bucket, (born, writes) in read.items():
            count = int(writes) if writes and is_credible(writes) else 0
            before = self._of.get(bucket)
            if before is None or before[0] != born:
                is_lost = True
            elif count < before[1]:
                # A reading that was asked for before the other one came may have been overtaken by it.
                if asked_at < before[2]:
                    continue
                is_lost = True
            self._of[bucket] = born, count, now
        if is_lost:
            # Redis mostly loses several buckets together. The next `ask` reads all, so that prompts
            # do not find the other losses one by one.
            self._read_at = None
            self.losses += 1
            self._lost()
