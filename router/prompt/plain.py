"""A prompt of nothing but a model and token ids, as most are, cut out of a request's bytes.

Protobuf would copy packed ids twice, and make a message of listed ones. The bytes after the prompt are
left for it.
"""

from typing import NamedTuple

import numpy as np

from warmpath.indexer.compiled.keys import highest
from warmpath.indexer.compiled.scan.varint import unpack

PROMPT_TAG, MODEL_TAG = 0x0A, 0x0A
"""The tags of a request's prompt and of a prompt's model: field 1, of the wire type of bytes."""
PACKED_TAG, LISTED_TAG, RUN_TAG = 0x2A, 0x32, 0x0A
"""The tags of a prompt's packed ids (field 5), of its listed ids (6), and of a run in those (1)."""
MORE = 0x80
"""The bit that is set in every byte of a varint except the last."""
MOST_REST = 1024
"""Most bytes that may follow a plain prompt: lists in them are short."""


class PlainPrompt(NamedTuple):
    """A prompt of token ids and a model alone: no adapter, salt, media or truncation."""

    model: str
    ids: bytes
    """Token ids of 4 bytes each, little-endian; their number is not checked."""
    is_listed: bool = False
    """Whether the request has the ids as a list."""


def cut_prompt(raw: bytes) -> tuple[PlainPrompt, bytes] | None:
    """Return the plain prompt with which a request begins, and the bytes after it.

    The result is None if the request has no such prompt, or bytes that protobuf would refuse.
    """
    try:
        if raw[0] != PROMPT_TAG:
            return None
        size, at = _size(raw, 1)
        end = at + size
        if raw[at] != MODEL_TAG:
            return None
        size, at = _size(raw, at + 1)
        begin, at = at, at + size
        model = raw[begin:at].decode()
        is_listed = raw[at] == LISTED_TAG
        if not is_listed and raw[at] != PACKED_TAG:
            return None
        size, at = _size(raw, at + 1)
        if is_listed:
            if at + size != end or raw[at] != RUN_TAG:
                return None
            size, at = _size(raw, at + 1)
        if at + size != end or end > len(raw) or len(raw) - end > MOST_REST:
            return None
        ids = unpacked(raw[at:end]) if is_listed else raw[at:end]
    except (IndexError, ValueError):
        return None
    return PlainPrompt(model, ids, is_listed), raw[end:]


def unpacked(varints: bytes) -> bytes:
    """Return varints as token ids of 4 bytes each. Raises ValueError for one beyond 32 bits."""
    found = np.empty(len(varints), np.uint32)
    count = unpack(np.frombuffer(varints, np.uint8), found)
    if count < 0:
        raise ValueError("holds an entry that is not an unsigned 32-bit integer")
    return found[:count].astype("<u4", copy=False).tobytes()


def highest_token(packed: bytes) -> int:
    """Return the highest id of a packed form that is not empty."""
    return int(highest(np.frombuffer(packed, "<u4")))


def _size(raw: bytes, at: int) -> tuple[int, int]:
    """Return the length at a position, at most 28 bits, and the position after it."""
    # Without a loop, since each request has three lengths.
    first = raw[at]
    if first < MORE:
        return first, at + 1
    size, second = first - MORE, raw[at + 1]
    if second < MORE:
        return size | second << 7, at + 2
    size, third = size | second - MORE << 7, raw[at + 2]
    if third < MORE:
        return size | third << 14, at + 3
    size, fourth = size | third - MORE << 14, raw[at + 3]
    if fourth < MORE:
        return size | fourth << 21, at + 4
    raise IndexError
