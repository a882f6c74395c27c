"""Reads the messages that have arrived at a ZeroMQ socket, within a bound."""

import zmq

MOST_MESSAGES = 256
MOST_BYTES = 256 << 10
"""The most messages and bytes that are read at once, and followed before other tasks have their turn."""
READ_MESSAGES = 4 * MOST_MESSAGES
READ_BYTES = 8 << 20
"""The most messages and bytes that are read from a socket in one such turn: more than are followed, so
that messages that come too fast wait here, within a bound, and not in ZeroMQ, which bounds no bytes."""
MESSAGE_BYTES, PART_BYTES = 200, 40
"""Bytes of memory that a message takes beside its parts' bytes, and that each further part takes."""


def drain(line: "zmq.Socket[bytes]") -> tuple[list[list[bytes]], int]:
    """Return the messages that have arrived, up to a bound, and the bytes of memory that they take."""
    messages: list[list[bytes]] = []
    size = 0
    try:
        while len(messages) < MOST_MESSAGES and size < MOST_BYTES:
            # As `recv_multipart`, which asks for each part whether there are more.
            part = line.recv(zmq.NOBLOCK, copy=False)
            message = [part.bytes]
            size += MESSAGE_BYTES + len(message[0])
            while part.more:
                part = line.recv(zmq.NOBLOCK, copy=False)
                message.append(part.bytes)
                size += PART_BYTES + len(message[-1])
            messages.append(message)
    except zmq.Again:
        pass
    return messages, size
