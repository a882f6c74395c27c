"""The sockets of the event stream: PUB for live batches, ROUTER for replay.

Source: `ZmqEventPublisher` in `vllm/distributed/kv_events.py` (`shared/engine-events.md`, 1.2 and
1.4). Unlike vLLM's, both sockets are always bound.
"""

from collections import deque

import zmq
import zmq.asyncio

END = (-1).to_bytes(8, "big", signed=True)


class Publisher:
    """Numbers batches from 0, publishes them, and replays the last `buffer_steps`."""

    def __init__(self, endpoint: str, replay_endpoint: str, topic: str, buffer_steps: int) -> None:
        """Bind both sockets. Raises zmq.ZMQError where an endpoint cannot be bound."""
        self._topic = topic.encode()
        self._next = 0
        self._buffer: deque[tuple[bytes, bytes]] = deque(maxlen=buffer_steps)
        self._context = zmq.Context()
        self._live = self._context.socket(zmq.PUB)
        self._live.setsockopt(zmq.SNDHWM, 100_000)
        self._live.setsockopt(zmq.LINGER, 0)
        self._replay_context = zmq.asyncio.Context()
        self._replay = self._replay_context.socket(zmq.ROUTER)
        self._replay.setsockopt(zmq.SNDHWM, 0)
        self._replay.setsockopt(zmq.LINGER, 0)
        try:
            self._live.bind(endpoint)
            self._replay.bind(replay_endpoint)
        except zmq.ZMQError:
            self.close()
            raise
        self.endpoint = self._live.getsockopt_string(zmq.LAST_ENDPOINT)
        self.replay_endpoint = self._replay.getsockopt_string(zmq.LAST_ENDPOINT)

    def publish(self, payload: bytes) -> None:
        """Publish one batch. Slow subscribers lose it; nothing waits."""
        sequence = self._next.to_bytes(8, "big")
        self._next += 1
        self._live.send_multipart((self._topic, sequence, payload), flags=zmq.NOBLOCK)
        self._buffer.append((sequence, payload))

    async def serve_replay(self) -> None:
        """Answer replay requests until cancelled; what is no request gets no answer."""
        while True:
            frames = await self._replay.recv_multipart()
            if len(frames) != 3 or len(frames[2]) != 8:
                continue
            identity, start = frames[0], frames[2]
            for sequence, payload in list(self._buffer):
                if sequence >= start:
                    reply = (identity, b"", self._topic, sequence, payload)
                    await self._replay.send_multipart(reply)
            await self._replay.send_multipart((identity, b"", b"", END, b""))

    def close(self) -> None:
        """Close both sockets; what is not sent yet is lost."""
        self._live.close(linger=0)
        self._replay.close(linger=0)
        self._context.term()
        self._replay_context.term()
