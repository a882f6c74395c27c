"""When each bucket was made, as it was read last: how a reader finds out that one was lost. Sans-I/O.

Redis may drop a key, or all of them, without a connection being lost by it. A bucket that is made anew
after that says so (`names.BORN`), and one that is not there says nothing.
"""

from collections.abc import Callable, Mapping, Sequence

from indexer.shared.layout.names import BORN, Names
from indexer.shared.redis.command import Command, Reply


class Births:
    """Tells `lost` when a bucket is found to be another than before, or not to be there any more.

    Of a bucket that was not read yet nobody knows: that tells it too.
    """

    def __init__(self, names: Names, lost: Callable[[], None]) -> None:
        self.losses = 0
        """Times that it was told."""
        self._names = names
        self._lost = lost
        self._of: dict[int, bytes | None] = {}
        self._read_at: int | None = None
        """What `Redis.disruptions` was when all were read; None where they are to be read anew."""

    def ask(self, disruptions: int) -> list[Command]:
        """Return what to ask for, where another server may have them than they were read from."""
        if self._read_at == disruptions:
            return []
        buckets = range(self._names.buckets)
        return [Command(("HGET", self._names.bucket(bucket), BORN)) for bucket in buckets]

    def doubt(self) -> None:
        """Have all read again: some were made anew, as likely as not."""
        self._read_at = None

    def take(self, replies: Sequence[Reply], disruptions: int) -> None:
        """Take the replies to what was asked when there had been so many disruptions."""
        read = {
            bucket: reply
            for bucket, reply in enumerate(replies)
            if reply is None or isinstance(reply, bytes)
        }
        self.compare(read)
        if len(read) == self._names.buckets:
            self._read_at = disruptions

    def compare(self, read: Mapping[int, bytes | None]) -> None:
        """Take note of what was read of buckets."""
        if any(self._of.get(bucket, b"") != born for bucket, born in read.items()):
            self._of |= read
            # What took one mostly took others too: these are read then, and tell nobody again.
            self._read_at = None
            self.losses += 1
            self._lost()
