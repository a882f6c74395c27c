"""A prompt of nothing but a model and packed token ids, as most are, cut out of a request's bytes.

Protobuf would copy the ids twice. The bytes after the prompt are left for it.
"""

from typing import NamedTuple

PROMPT_TAG, MODEL_TAG, IDS_TAG = 0x0A, 0x0A, 0x2A
"""Field 1 of a request; fields 1 and 5 of a prompt: all of them bytes."""
MORE = 0x80
"""The bit that is set in every byte of a varint except the last."""
MOST_REST = 1024
"""Most bytes after the prompt: lists in them are short."""


class PlainPrompt(NamedTuple):
    """A prompt without anything else."""

    model: str
    ids: bytes
    """4 bytes each, little-endian; their number is not checked."""


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
        if raw[at] != IDS_TAG:
            return None
        size, at = _size(raw, at + 1)
    except (IndexError, UnicodeDecodeError):
        return None
    if at + size != end or end > len(raw) or len(raw) - end > MOST_REST:
        return None
    return PlainPrompt(model, raw[at:end]), raw[end:]


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
