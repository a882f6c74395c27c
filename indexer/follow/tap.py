"""A plain listener to one engine's events, which yields frames without interpreting them.

Recorders use it. `indexer.follow.subscribe` follows an engine through gaps and restarts.
"""

from collections.abc import AsyncIterator
from typing import Any

import zmq
import zmq.asyncio

END = (-1).to_bytes(8, "big", signed=True)
"""The sequence that ends a replay's answer."""

Frames = tuple[bytes, bytes, bytes]
"""Topic, 8-byte big-endian sequence, payload."""


def replay_frames(message: list[bytes]) -> Frames | None:
    """Return the frames of one message of a replay's answer; None if it is malformed.

    Since vLLM 0.26 a message is `[b"", topic, sequence, payload]`; before that it had no topic.
    """
    if len(message) not in (3, 4) or len(message[-2]) != 8:
        return None
    return (message[1] if len(message) == 4 else b""), message[-2], message[-1]


class Tap:
    """Listens to live events, and asks for a replay. Close it at the end."""

    def __init__(self, events: str, replay: str, topic: str) -> None:
        self._context = zmq.asyncio.Context()
        self._replay = replay
        self._live: Any = self._context.socket(zmq.SUB)
        self._live.setsockopt(zmq.RCVHWM, 0)
        self._live.setsockopt_string(zmq.SUBSCRIBE, topic)
        self._monitor: Any = self._live.get_monitor_socket(int(zmq.Event.HANDSHAKE_SUCCEEDED))
        self._live.connect(events)

    async def connected(self) -> None:
        """Wait until the engine answers."""
        await self._monitor.recv_multipart()

    async def live(self) -> AsyncIterator[Frames]:
        """Yield live batches for ever; ignore malformed messages."""
        while True:
            message = await self._live.recv_multipart()
            if len(message) == 3 and len(message[1]) == 8:
                yield message[0], message[1], message[2]

    async def replayed(self, start: int) -> AsyncIterator[Frames]:
        """Yield the batches in the engine's replay buffer from sequence `start` on."""
        with self._context.socket(zmq.DEALER) as dealer:
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.connect(self._replay)
            await dealer.send_multipart([b"", start.to_bytes(8, "big")])
            while True:
                frames = replay_frames(await dealer.recv_multipart())
                if frames is None:
                    continue
                if frames[1] == END:
                    return
                yield frames

    def close(self) -> None:
        """Close the sockets."""
        self._live.disable_monitor()
        self._monitor.close(linger=0)
        self._live.close(linger=0)
        self._context.term()
