"""Connects ZeroMQ sockets to endpoints over IPv4 and IPv6.

ZeroMQ asks for IPv4 addresses only, unless a socket is told otherwise; then it takes only the IPv6
address of a name that has both, although most engines listen on IPv4 (vLLM's `tcp://*:5557`). So names
are resolved here, and a socket is connected to both addresses; the first that answers stays.

`Tap`, for recorders and the doctor, yields an engine's frames without interpreting them;
`indexer.follow.subscribe` follows an engine through gaps and restarts.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from typing import Any

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from warmpath.indexer.follow.endpoint import ENDPOINT
from warmpath.process.address import is_ip

CONNECTED = zmq.Event.HANDSHAKE_SUCCEEDED
GONE = zmq.Event.DISCONNECTED


async def dial(line: "zmq.Socket[Any]", endpoint: str) -> list[str]:
    """Begin to connect a socket; return the endpoints, one for each address, that it may reach.

    A host's name is resolved at each call. Raises OSError where it has no address, and ZMQError.
    """
    places = await _places(endpoint)
    for place in places:
        line.setsockopt(zmq.IPV6, place.startswith("tcp://["))
        line.connect(place)
    return places


async def answered(line: "zmq.Socket[Any]", monitor: Any, places: Sequence[str]) -> str:
    """Wait until one of the places answers, and hang up the others; return the one that answered."""
    first = await monitored(CONNECTED, monitor, places)
    for place in places:
        if place != first:
            line.disconnect(place)
    return first


async def monitored(event: int, monitor: Any, places: Sequence[str]) -> str:
    """Read a socket's monitor up to an event at one of the places; return the event's place.

    The monitor also tells of places that were hung up, whose connections may end later.
    """
    while True:
        said = parse_monitor_message(await monitor.recv_multipart())
        place = str(said["endpoint"], "utf-8", "replace")
        if said["event"] == event and place in places:
            return place


def name_in(endpoint: str) -> str:
    """Return the host's name in an endpoint, whose address may change; empty where it has none."""
    match = ENDPOINT.match(endpoint)
    host = (match[2] or "") if match else ""
    return "" if is_ip(host.strip("[]")) else host


async def _places(endpoint: str) -> list[str]:
    """Return an endpoint with an address in place of its host's name: one for IPv4, one for IPv6."""
    name = name_in(endpoint)
    if not name:
        return [endpoint]
    _, _, port = endpoint.rpartition(":")
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(name, int(port), type=socket.SOCK_STREAM)
    first: dict[int, str] = {}
    for family, _, _, _, address in found:
        first.setdefault(family, str(address[0]))
    return [
        f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
        for host in first.values()
    ]


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
