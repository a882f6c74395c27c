"""Reads a whole bucket with HSCAN, a page at a time, and sorts the fields by kind.

HSCAN returns every field that exists all the time from its first page to its last. It may return a
field twice, and it may leave out a field that appears or disappears between the pages.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote

from warmpath.indexer.keys.key import WORD_BYTES
from warmpath.indexer.shared.layout.names import BORN, WRITES, KeyNames, checkpoint, is_credible
from warmpath.indexer.shared.redis.command import Command

CHECKPOINT = checkpoint("")
"""The beginning of each checkpoint's field, which is longer than a block's field."""


@dataclass(slots=True)
class Page:
    """Some fields of a bucket."""

    cursor: bytes
    """Where the next page begins; empty where this page is the last."""
    values: dict[bytes, bytes] = field(default_factory=dict)
    """Packed values and markers of spilled segments, by field: 8 bytes for a segment, 16 for a block
    that has a field of its own."""
    checkpoints: dict[str, bytes] = field(default_factory=dict)
    """Each writer's checkpoint, by pod."""
    strange: dict[bytes, bytes] = field(default_factory=dict)
    """Fields that warmpath does not write."""


def ask_page(
    names: KeyNames, bucket: int, cursor: bytes, count: int, *, checkpoints_only: bool = False
) -> Command:
    """Return the command for a page for which Redis looks at about `count` fields.

    The first cursor is b"0".
    """
    match = ("MATCH", CHECKPOINT + b"*") if checkpoints_only else ()
    return Command(("HSCAN", names.bucket(bucket), cursor, *match, "COUNT", count))


def read_page(reply: Sequence[bytes | Sequence[bytes]]) -> Page:
    """Return the page in a reply to HSCAN."""
    cursor, fields = reply
    assert isinstance(cursor, bytes)
    page = Page(cursor if cursor != b"0" else b"")
    for name, value in zip(fields[::2], fields[1::2], strict=True):
        assert isinstance(name, bytes)
        assert isinstance(value, bytes)
        if len(name) in {WORD_BYTES, 2 * WORD_BYTES}:
            page.values[name] = value
        elif (
            name.startswith(CHECKPOINT)
            and checkpoint(pod := unquote(name[len(CHECKPOINT) :].decode(errors="replace"))) == name
        ):
            page.checkpoints[pod] = value
        elif name != BORN and not (name == WRITES and is_credible(value)):
            page.strange[name] = value
    return page


def read_checkpoint(checkpoint: bytes) -> tuple[int, int]:
    """Return a checkpoint's claim number and count of writes.

    Raises ValueError if no writer can have written it.
    """
    token, _, count = checkpoint.partition(b":")
    if not (is_credible(token) and is_credible(count)):
        raise ValueError(f"{checkpoint[:40]!r} is not a checkpoint")
    return int(token), int(count)
