"""The sockets of one rank's event stream: PUB for live batches, ROUTER for replay.

Source: `ZmqEventPublisher` in `vllm/distributed/kv_events.py`. Unlike vLLM's, both sockets are always
bound, and a replay is answered at once.
"""

import asyncio
import errno
import os
from collections import deque
from collections.abc import Callable

import zmq
import zmq.asyncio

from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.events.faulty_outlet import FaultyOutlet, Frame

END = (-1).to_bytes(8, "big", signed=True)
HIGH_WATER_MARK = 100_000
"""Batches that wait for one slow subscriber before it loses some; vLLM's default."""


class EndpointError(ValueError):
    """An endpoint cannot be used; the message names it, and the reason."""


_UNBOUND = {
    errno.EACCES: "this user may not listen there",
    errno.EADDRINUSE: "another process listens there; end it, or choose another port",
    errno.EADDRNOTAVAIL: "this machine has no such address",
    errno.EINVAL: "it is not tcp://HOST:PORT",
    errno.ENODEV: "this machine has no such address",
}


def unbound(number: int | None) -> str:
    """Return why a socket cannot be bound, in words; `number` is the system's or ZeroMQ's errno."""
    return _UNBOUND.get(number or 0) or os.strerror(number or 0).lower()


def rank_endpoint(endpoint: str, offset: int) -> str:
    """Return a rank's endpoint: its port is `offset` higher; an inproc name gets `_dp` and `offset`.

    Ports `*` and `0` stay, as each socket then gets a free one. Raises EndpointError.
    """
    if not offset:
        return endpoint
    if endpoint.startswith("inproc://"):
        return f"{endpoint}_dp{offset}"
    head, _, port = endpoint.rpartition(":")
    if not endpoint.startswith("tcp://") or not (port.isdigit() or port == "*"):
        raise EndpointError(f"{endpoint}: several ranks or workers need tcp://HOST:PORT")
    if port in {"*", "0"}:
        return endpoint
    if int(port) + offset > 65535:
        raise EndpointError(f"{endpoint}: a port {offset} higher would be above 65535")
    return f"{head}:{int(port) + offset}"


class Journal:
    """Numbers batches from 0 and keeps the last `buffer_steps`, which a replay sends without faults."""

    def __init__(self, buffer_steps: int) -> None:
        self.buffer_steps = buffer_steps
        self.next_sequence = 0
        self._kept: deque[Frame] = deque(maxlen=buffer_steps)

    def append(self, payload: bytes) -> Frame:
        """Add a batch under the next number; return it. The oldest is dropped if there are too many."""
        frame = Frame(self.next_sequence, payload)
        self.next_sequence += 1
        self._kept.append(frame)
        return frame

    def since(self, start: int) -> list[Frame]:
        """Return the kept batches from a number on, in order."""
        return [frame for frame in self._kept if frame.sequence >= start]

    def begin_life(self) -> None:
        """Forget all batches, and number the next one 0."""
        self.next_sequence = 0
        self._kept.clear()

    def check(self) -> None:
        """Raise BrokenInvariantError if the kept batches are not the last ones in order."""
        kept = [frame.sequence for frame in self._kept]
        if kept != list(range(self.next_sequence - len(kept), self.next_sequence)):
            raise BrokenInvariantError(f"kept are {kept}, next is {self.next_sequence}")


class Publisher:
    """Numbers batches, publishes them through a faulty outlet, and replays them without faults."""

    def __init__(
        self,
        context: zmq.asyncio.Context,
        endpoint: str,
        replay_endpoint: str,
        *,
        topic: str,
        journal: Journal,
        outlet: FaultyOutlet,
        replays_topic: bool,
        clock: Callable[[], float],
    ) -> None:
        """Bind both sockets. `clock` is steady, in seconds. Raises EndpointError."""
        self.journal = journal
        self.outlet = outlet
        self.topic = topic
        self._topic = topic.encode()
        self._replays_topic = replays_topic
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._live = zmq.Context(context).socket(zmq.PUB)
        self._live.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
        self._live.setsockopt(zmq.LINGER, 0)
        self._replay = context.socket(zmq.ROUTER)
        self._replay.setsockopt(zmq.SNDHWM, 0)
        self._replay.setsockopt(zmq.LINGER, 0)
        for socket, wanted in ((self._live, endpoint), (self._replay, replay_endpoint)):
            # With `*` it listens on IPv4, too.
            socket.setsockopt(zmq.IPV6, wanted.startswith(("tcp://[", "tcp://*:")))
            try:
                socket.bind(wanted)
            except zmq.ZMQError as error:
                self.close()
                raise EndpointError(f"{wanted}: {unbound(error.errno)}") from error
        self.endpoint = self._live.getsockopt_string(zmq.LAST_ENDPOINT)
        self.replay_endpoint = self._replay.getsockopt_string(zmq.LAST_ENDPOINT)

    def publish(self, payload: bytes) -> None:
        """Publish one batch. Slow subscribers lose it; the engine does not wait."""
        self._send(self.outlet.push(self._clock(), self.journal.append(payload)))

    def _send(self, frames: list[Frame]) -> None:
        for frame in frames:
            number = frame.sequence.to_bytes(8, "big")
            self._live.send_multipart((self._topic, number, frame.payload), flags=zmq.NOBLOCK)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.outlet.due is not None:
            left = max(0.0, self.outlet.due - self._clock())
            self._timer = asyncio.get_running_loop().call_later(left, self._release)

    def _release(self) -> None:
        self._timer = None
        self._send(self.outlet.release(self._clock()))

    def begin_life(self) -> None:
        """Begin the numbers at 0 again, as a restarted engine does; the sockets stay bound."""
        self.journal.begin_life()
        self.outlet.begin_life()

    async def serve_replay(self) -> None:
        """Answer replay requests until cancelled; any other message gets no answer."""
        topic = (self._topic,) if self._replays_topic else ()
        end_topic = (b"",) if self._replays_topic else ()
        while True:
            frames = await self._replay.recv_multipart()
            if len(frames) != 3 or len(frames[2]) != 8:
                continue
            head = (frames[0], b"")
            for sequence, payload in self.journal.since(int.from_bytes(frames[2], "big")):
                number = sequence.to_bytes(8, "big")
                await self._replay.send_multipart((*head, *topic, number, payload))
            await self._replay.send_multipart((*head, *end_topic, END, b""))

    def close(self) -> None:
        """Close both sockets; batches not sent yet are lost."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._live.close(linger=0)
        self._replay.close(linger=0)
