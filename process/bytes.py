"""Reads bytes that a peer, a caller or a file chose: the errors of decoders, and protobuf messages."""

from typing import TypeVar

import msgspec
from google.protobuf.message import Message

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Errors of decoders: malformed or unexpected content, text that is not UTF-8, nesting that is too deep.

The last two are not msgspec's own errors, so a handler that names only msgspec's lets them through.
"""


M = TypeVar("M", bound=Message)


def read_message(kind: type[M], raw: bytes) -> M:
    """Return the message of type `kind` in `raw`. Raises ValueError if it is malformed."""
    try:
        return kind.FromString(raw)
    except Exception as error:  # protobuf's own error is not a ValueError
        raise ValueError(f"a message cannot be read: {error}") from error
