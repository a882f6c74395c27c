"""A plain listener to one engine's events, which yields frames without interpreting them.

Recorders and the doctor use it. `indexer.follow.subscribe` follows an engine through gaps and restarts.
"""

from collections.abc import AsyncIterator
from typing import Any

import zmq
import zmq.asyncio

from warmpath.indexer.follow.dial import CONNECTED, answered, dial

END = (-1).to_bytes(8, "big", signed=True)
"""The sequence that ends a replay's answer."""

Frames = tuple[bytes, bytes, bytes]
"""Topic, 8-byte big-endian sequence, payload."""


def is_sequence(frame: bytes) -> bool:
    """Return whether a frame is a batch's sequence: 8 bytes, and not above `MOST_SEQUENCE`."""
    return len(frame) == 8 and frame[0] < 0x80


def replay_frames(message: list[bytes]) -> Frames | None:
    """Return the frames of one message of a replay's answer; None if it is malformed.

    Since vLLM 0.26 a message is `[b"", topic, sequence, payload]`; before that it had no topic.
    """
    if len(message) not in (3, 4) or not (is_sequence(message[-2]) or message[-2] == END):
        return None
    return (message[1] if len(message) == 4 else b""), message[-2], message[-1]


class Tap:
    """Listens to live events, or asks for a replay. Close it at the end."""

    def __init__(self, context: zmq.asyncio.Context, topic: str = "") -> None:
        self._context = context
        self._live: Any = context.socket(zmq.SUB)
        self._live.setsockopt(zmq.RCVHWM, 0)
        self._live.setsockopt_string(zmq.SUBSCRIBE, topic)
        self._monitor: Any = self._live.get_monitor_socket(int(CONNECTED))

    async def connected(self, events: str) -> None:
        """Connect to an engine's events; wait until it answers. Raises OSError or ZMQError."""
        await answered(self._live, self._monitor, await dial(self._live, events))

    async def live(self) -> AsyncIterator[Frames]:
        while True:
            message = await self._live.recv_multipart()
            if len(message) == 3 and is_sequence(message[1]):
                yield message[0], message[1], message[2]

    async def replayed(self, replay: str, start: bytes) -> AsyncIterator[Frames]:
        """Yield the batches in an engine's replay buffer from the 8-byte sequence `start` on."""
        with self._context.socket(zmq.DEALER) as dealer:
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.setsockopt(zmq.IMMEDIATE, 1)
            await dial(dealer, replay)
            await dealer.send_multipart([b"", start])
            while True:
                frames = replay_frames(await dealer.recv_multipart())
                if frames is None:
                    continue
                if frames[1] == END:
                    return
                yield frames

    def close(self) -> None:
        self._live.disable_monitor()
        self._monitor.close(linger=0)
        self._live.close(linger=0)
