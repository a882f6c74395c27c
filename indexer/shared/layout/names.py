"""The names of all keys in Redis. Each begins with the deployment's own prefix.

A hash tag (the part in braces) decides on which node of a cluster a key lies: each bucket of the index
has one, and so has each pod.
"""

import re
from dataclasses import dataclass
from urllib.parse import quote

SCHEMA = 1
"""The version of the layout under these names; processes of two versions never share a prefix."""

BUCKETS = 64
"""How many hashes the index is spread over: few enough that each writer audits all of them each second,
enough for the nodes of a cluster."""

MOST_DIGITS = 12
"""The most digits of a number that a writer can have reached: claims and writes are counted one by one,
so even one each millisecond takes 30 years to the first number with more. `claim.lua`, `fence.lua` and
`outlive.lua` know it too: a higher number there counts as none."""

_PREFIX = re.compile(r"[^\s{}:]([^\s{}]{0,62}[^\s{}:])?")
"""The form of a prefix. Braces mark the part of a key that decides on its node, so it has none. A colon
follows it in each key, so it neither begins nor ends with one."""


def prefix_problem(prefix: str) -> str:
    """Return why no deployment can have this prefix; empty where one can."""
    if _PREFIX.fullmatch(prefix):
        return ""
    return "is not 1 to 64 characters without spaces and braces, and without a colon at either end"


def is_credible(digits: bytes) -> bool:
    """Return whether these are the digits of a number that a writer can have reached."""
    return digits.isdigit() and len(digits) <= MOST_DIGITS


@dataclass(frozen=True, slots=True)
class KeyNames:
    """The names of Redis' keys under one prefix."""

    prefix: str
    buckets: int = BUCKETS

    def bucket(self, number: int) -> str:
        """Return the key of a bucket, a hash of segments, blocks, checkpoints, `BORN` and `WRITES`.

        Segments and blocks are named by their keys.
        """
        return f"{self.prefix}:{{{self.prefix}:b{number}}}"

    def bucket_of(self, segment: int) -> int:
        """Return the bucket in which a segment lies, named by its first block's key."""
        return segment % self.buckets

    def record(self, pod: str) -> str:
        """Return the key of a pod's record, a hash (`indexer.shared.layout.record`)."""
        return f"{self._pod(pod)}:record"

    def log(self, pod: str) -> str:
        """Return the key of the stream of a pod's last changes."""
        return f"{self._pod(pod)}:log"

    def fence(self, pod: str) -> str:
        """Return the key of the counter of a pod's claims, which outlives the record."""
        return f"{self._pod(pod)}:fence"

    def _pod(self, pod: str) -> str:
        return f"{self.prefix}:{{{self.prefix}:p{quote(pod, safe='')}}}"

    @property
    def pods(self) -> str:
        """The key of the hash of the pods that were claimed, each with the time of its last record.

        A sweep forgets a pod that has had no record for an hour.
        """
        return f"{self.prefix}:pods"

    @property
    def schema(self) -> str:
        """The key of the hash with the schema: the version of all other keys' layout."""
        return f"{self.prefix}:schema"

    @property
    def sweeper(self) -> str:
        """The key of the lease that the sweeping router holds."""
        return f"{self.prefix}:sweeper"

    @property
    def routers(self) -> str:
        return f"{self.prefix}:routers"

    def load(self, router: str) -> str:
        """Return the key of the bookings that a router shares with the others."""
        return f"{self.prefix}:{{{self.prefix}:r{quote(router, safe='')}}}:load"

    def reports(self, router: str) -> str:
        """Return the key of the stream of reports on a router's bookings that reached another router."""
        return f"{self.prefix}:{{{self.prefix}:r{quote(router, safe='')}}}:reports"


BORN = b"born"
"""A bucket's field with the time when the bucket was made: one that was lost and made again has
another time. Fields of segments and blocks have 8 or 16 bytes, so none has this name."""

WRITES = b"writes"
"""A bucket's field with the number of writes since the bucket was made, by all pods' writers: where it
is lower than before, Redis has gone back to old data. It is not there before the first write."""


def checkpoint(pod: str) -> bytes:
    """Return the field of a bucket with a pod's claim number and the count of writes under that claim.

    Fields of segments and blocks have 8 or 16 bytes, so none has this name.
    """
    return b"checkpoint of pod/" + quote(pod, safe="").encode()
