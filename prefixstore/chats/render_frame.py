"""What a renderer and its processes say to each other.

A frame is its length, 4 bytes little-endian, and a MessagePack map tagged with its kind. The renderer
writes one and reads one, in turn: `Begin` once, `Load` for each template, then `Render`s.
"""

import msgspec

from prefixstore.chats.chat import Chat, ModelTemplate

LENGTH_BYTES = 4

REPLY_ROOM = 1 << 16
"""Bytes that a reply may have beyond the text it carries."""


class Begin(msgspec.Struct, frozen=True, tag=True):
    """The limits that a process puts on itself."""

    max_output_bytes: int
    max_memory_bytes: int
    """Of address space; 0: unbounded."""
    max_cpu_seconds: float
    """Of one rendering. The renderer ends a process by the wall clock; this one counts where the
    renderer itself is gone."""


class Load(msgspec.Struct, frozen=True, tag=True):
    """Compile a template."""

    template_id: str
    source: ModelTemplate


class Render(msgspec.Struct, frozen=True, tag=True):
    """Render a chat."""

    template_id: str
    chat: Chat


class Done(msgspec.Struct, frozen=True, tag=True):
    """What was asked is done."""

    text: str = ""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """A template refuses, or cannot do, what was asked."""

    problem: str
    field: str = ""
    limit: bool = False
    """Output or memory ran out. The process is to be replaced: its memory may be in pieces."""


Request = Begin | Load | Render
Reply = Done | Refused

_encoder = msgspec.msgpack.Encoder()
request_decoder = msgspec.msgpack.Decoder(Request)
reply_decoder = msgspec.msgpack.Decoder(Reply)


def frame(message: Request | Reply) -> bytes:
    """Return a message's bytes.

    Raises OverflowError for integers beyond 64 bits, ValueError for text that is not Unicode or a
    message of 4 GiB, and RecursionError for one nested too deep.
    """
    body = _encoder.encode(message)
    if len(body) >> (8 * LENGTH_BYTES):
        raise ValueError(f"has {len(body)} bytes; a frame holds less than 4 GiB")
    return len(body).to_bytes(LENGTH_BYTES, "little") + body
