"""The messages between the renderer and its processes.

A frame is a length of 4 bytes, little-endian, and a MessagePack map tagged with its type. The renderer
sends one request at a time: `Begin` once, `Load` for each template, then any number
of `Render` and `Try`.
"""

import msgspec

from warmpath.prefixstore.chats.chat import Chat, ModelTemplate

LENGTH_BYTES = 4

REPLY_ROOM = 1 << 16
"""Bytes that a reply may have in addition to its text."""


class Begin(msgspec.Struct, frozen=True, tag=True):
    """Sets the limits that a process applies to itself."""

    max_output_bytes: int
    max_memory_bytes: int
    """Largest address space; 0: unbounded."""
    max_cpu_seconds: float
    """Most CPU time of one request; 0: unbounded. The renderer itself kills a process by the wall clock;
    this limit works when the renderer is gone."""


class Load(msgspec.Struct, frozen=True, tag=True):
    """Asks for a template to be compiled."""

    template_id: str
    source: ModelTemplate


class Render(msgspec.Struct, frozen=True, tag=True):
    """Asks for a chat to be rendered."""

    template_id: str
    chat: Chat


class Try(msgspec.Struct, frozen=True, tag=True):
    """Asks for a template's traits."""

    template_id: str


class Done(msgspec.Struct, frozen=True, tag=True):
    """Answers a request that succeeded.

    `text` is the rendered chat, or a template's traits in JSON; empty for `Begin` and `Load`.
    """

    text: str = ""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """Answers a request that the template refuses or cannot carry out."""

    problem: str
    field: str = ""
    limit: bool = False
    """Whether a limit of output or memory was reached. The process must then be replaced, as its
    heap is fragmented."""


Request = Begin | Load | Render | Try
Reply = Done | Refused

_encoder = msgspec.msgpack.Encoder()
request_decoder = msgspec.msgpack.Decoder(Request)
reply_decoder = msgspec.msgpack.Decoder(Reply)


def frame(message: Request | Reply) -> bytes:
    """Return a message's bytes.

    Raises OverflowError for integers beyond 64 bits, ValueError for text that is not Unicode or a
    message of 4 GiB or more, and RecursionError for a message that is nested too deeply.
    """
    body = _encoder.encode(message)
    if len(body) >> (8 * LENGTH_BYTES):
        raise ValueError(f"has {len(body)} bytes; a frame holds less than 4 GiB")
    return len(body).to_bytes(LENGTH_BYTES, "little") + body
