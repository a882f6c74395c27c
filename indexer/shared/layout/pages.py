"""Reading a whole bucket, a page at a time: HSCAN, and what its fields are.

HSCAN promises every field that is there from its beginning to its end; it may return one twice, and
what comes or goes meanwhile or not at all.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote

from indexer.keys.word import WORD_BYTES
from indexer.shared.layout.names import BORN, Names, checkpoint
from indexer.shared.redis.command import Command

CHECKPOINT = checkpoint("")
"""What the names of checkpoints begin with. They are longer than a block's field."""


@dataclass(slots=True)
class Page:
    """Some fields of a bucket."""

    cursor: bytes
    """Where the next page begins; b"0": this was the last one."""
    values: dict[bytes, bytes] = field(default_factory=dict)
    """Packed values and markers, by field: a segment's 8 bytes, or 16 where a block has its own."""
    checkpoints: dict[str, bytes] = field(default_factory=dict)
    """By pod."""
    strange: dict[bytes, bytes] = field(default_factory=dict)
    """What none of ours writes."""

    def __len__(self) -> int:
        return len(self.values) + len(self.checkpoints) + len(self.strange)

    @property
    def is_last(self) -> bool:
        """Whether the bucket has no other page."""
        return self.cursor == b"0"


def ask_page(names: Names, bucket: int, cursor: bytes, count: int) -> Command:
    """Return the command for a page of about `count` fields; the first cursor is b"0"."""
    return Command(("HSCAN", names.bucket(bucket), cursor, "COUNT", count))


def ask_checkpoints(names: Names, bucket: int, cursor: bytes, count: int) -> Command:
    """Return the command for a page of checkpoints alone, `count` fields being looked at."""
    name = names.bucket(bucket)
    return Command(("HSCAN", name, cursor, "MATCH", CHECKPOINT + b"*", "COUNT", count))


def read_page(reply: Sequence[bytes | Sequence[bytes]]) -> Page:
    """Return what a page holds."""
    cursor, fields = reply
    assert isinstance(cursor, bytes)
    page = Page(cursor)
    for name, value in zip(fields[::2], fields[1::2], strict=True):
        assert isinstance(name, bytes)
        assert isinstance(value, bytes)
        if len(name) in {WORD_BYTES, 2 * WORD_BYTES}:
            page.values[name] = value
        elif name.startswith(CHECKPOINT):
            pod = name[len(CHECKPOINT) :].decode(errors="replace")
            page.checkpoints[unquote(pod)] = value
        elif name != BORN:
            page.strange[name] = value
    return page


def token_of(checkpoint: bytes) -> int:
    """Return the token of a checkpoint. Raises ValueError where it is none."""
    token, _, count = checkpoint.partition(b":")
    if not (token.isdigit() and count.isdigit()):
        raise ValueError(f"{checkpoint[:40]!r} is no checkpoint")
    return int(token)
