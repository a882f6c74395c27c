"""Connects ZeroMQ sockets to endpoints over IPv4 and IPv6.

ZeroMQ asks for IPv4 addresses only, unless a socket is told otherwise; then it takes only the IPv6
address of a name that has both, although most engines listen on IPv4 (vLLM's `tcp://*:5557`). So names
are resolved here, and a socket is connected to both addresses; the first that answers stays.
"""

import asyncio
import socket
from collections.abc import Sequence
from typing import Any

import zmq
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
