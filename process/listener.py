"""Listens, and takes each connection through its TLS handshake, within limits.

asyncio's own listener has no limit on handshakes under way and no way to end them, so clients that
connect and send nothing would use up the file descriptors.

Where there are too many connections, the client address with the most loses one. So no address keeps
others out, whether its connections are idle, answer pings or never get through their handshake. An idle
client connects again with its next call, and notices nothing.
"""

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
from collections.abc import Callable, Iterable
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any

from warmpath.process.address import HostPort
from warmpath.process.tasks import cancel, watched


def _half_of_descriptors() -> int:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 20 if most == resource.RLIM_INFINITY else most // 2


HALF_OF_DESCRIPTORS = _half_of_descriptors()
"""Half of the file descriptors that this process may have; the rest is for its other connections."""
MOST_GRPC_CONNECTIONS = min(2048, HALF_OF_DESCRIPTORS)
"""The most connections of a gRPC server, unless it is told another number."""

GRPC_OPTIONS = (
    # Further connections are closed at once; idle ones are closed to make room.
    ("grpc.max_allowed_incoming_connections", MOST_GRPC_CONNECTIONS),
    ("grpc.max_connection_idle_ms", 300_000),
    # A connection without an HTTP/2 handshake is closed after this (the default is 120 s).
    ("grpc.server_handshake_timeout_ms", 10_000),
    # Pings find peers that have vanished or do not read from their socket.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Routers ping publishers every 2 s to detect dead ones, and gateways ping routers, with calls or
    # without; without the latter option a client may ping every two hours while it has no call.
    ("grpc.http2.min_ping_interval_without_data_ms", 100),
    ("grpc.keepalive_permit_without_calls", 1),
)
"""Options of each gRPC server."""


class State(IntEnum):
    """What a connection does; those of an address are closed in this order to make room."""

    OPENING = 0
    """Its handshake has not ended."""
    IDLE = 1
    """None of its calls is at work."""
    STALLED = 2
    """A call is at work, and its client does not read a message that waits for it."""
    BUSY = 3


class Place:
    """A connection's place; `address` is its client's, without a port; `end` closes the connection."""

    __slots__ = ("_places", "address", "end", "state")

    def __init__(self, places: "Places", address: str, end: Callable[[], None]) -> None:
        self._places = places
        self.address = address
        self.end = end
        self.state: State | None = State.OPENING
        """None: the place is left, or has been given to another connection."""

    def becomes(self, state: State) -> None:
        """Set what the connection does now; it counts as the latest of those that do the same."""
        if self.state is not None:
            self._places.move(self, state)

    def works(self, *, is_busy: bool) -> None:
        """Set BUSY if a call is at work, else IDLE; also after each answer, which renews its age."""
        self.becomes(State.BUSY if is_busy else State.IDLE)

    def stalls(self, *, is_stalled: bool) -> None:
        """Set STALLED, or BUSY again; unlike after `becomes`, the connection keeps its age."""
        if self.state is not None:
            self.state = State.STALLED if is_stalled else State.BUSY

    def leave(self) -> None:
        """Give the place back; a second call does nothing."""
        if self.state is not None:
            self._places.move(self, None)


class Places:
    """The places of all connections, at most `most`; chooses which one is closed to make room."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.opening = 0
        """The number of connections whose handshake has not ended."""
        self._all = 0
        self._of: dict[str, dict[Place, None]] = {}
        """The places of each address: of those with one state, the one first that has had it longest."""

    def __len__(self) -> int:
        return self._all

    def enter(self, address: str, end: Callable[[], None]) -> Place | None:
        """Return a place for a new connection, which `end` closes; None if no other may be closed."""
        if self._all >= self.most and not self._give_way(address):
            return None
        place = Place(self, address, end)
        self._of.setdefault(address, {})[place] = None
        self.opening += 1
        self._all += 1
        return place

    def move(self, place: Place, state: State | None) -> None:
        """Change the state of a place; None frees it."""
        of = self._of[place.address]
        del of[place]
        self.opening += (state is State.OPENING) - (place.state is State.OPENING)
        place.state = state
        if state is not None:
            of[place] = None
            return
        self._all -= 1
        if not of:
            del self._of[place.address]

    def _give_way(self, address: str) -> bool:
        """End one of the address with the most connections, the new one counted; return whether it did.

        A busy one, the latest unless one stalls, ends only where its address has more than the new
        one's afterwards, too.
        """
        if not self._of:
            return False
        own = self._of.get(address, {})
        count = len(own) + 1
        most = max(self._of.values(), key=len)
        if own and count > len(most):
            most = own
        place = _first(most, State.OPENING) or _first(most, State.IDLE)
        if place is None and len(most) > count:
            place = _first(most, State.STALLED) or _first(reversed(most), State.BUSY)
        if place is None:
            return False
        place.leave()
        place.end()
        return True


def _first(places: Iterable[Place], state: State) -> Place | None:
    return next((place for place in places if place.state is state), None)


log = logging.getLogger(__name__)

BACKLOG = 1024
ACCEPTED_AT_ONCE = 64
"""Most connections that are accepted before other work has its turn."""
PAUSE = 0.1
"""Seconds until connections are accepted again after an error, such as a lack of file descriptors."""


class Listener:
    """Listens at one address.

    `make` is called before a connection's handshake, which may take `seconds`; it takes the connection's
    place among `places`, and returns its protocol. The place is freed after the handshake, unless the
    protocol's `connection_made` has given it another state: then the protocol must `leave` it. Without a
    place the connection is closed, and `full` is called with the client's address and port as a text.
    """

    def __init__(
        self,
        make: Callable[[Place], asyncio.Protocol],
        *,
        places: Places,
        seconds: float,
        tls: ssl.SSLContext | None = None,
        reuse_port: bool = False,
        full: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._make = make
        self._places = places
        self._seconds = seconds
        self._tls = tls
        self._reuse_port = reuse_port
        self._full = full
        self._sockets: list[socket.socket] = []
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}
        """By a socket that could not accept a connection, the timer after which it goes on."""
        self._tasks: set[asyncio.Task[None]] = set()
        """The tasks that open connections."""

    @property
    def opening(self) -> int:
        """The number of accepted connections whose TLS handshake has not ended."""
        return self._places.opening

    async def start(self, address: str) -> str:
        """Listen at host:port or unix:PATH; return the address with the port that was bound.

        Raises OSError if it cannot be bound.
        """
        if address.startswith("unix:"):
            self._sockets = [_listening_at(Path(address.removeprefix("unix:")))]
            bound = address
        else:
            where = HostPort.of(address)
            self._sockets = await _listening(*where, reuse_port=self._reuse_port)
            bound = str(where._replace(port=self._sockets[0].getsockname()[1]))
        for one in self._sockets:
            one.setblocking(False)
            self._listen(one)
        return bound

    async def stop(self) -> None:
        """Take no more connections, and end TLS handshakes; accepted plain connections still open."""
        for one in self._sockets:
            asyncio.get_running_loop().remove_reader(one)
            if one in self._pauses:
                self._pauses.pop(one).cancel()
            one.close()
        if self._tls is not None:
            await cancel(self._tasks)
        elif self._tasks:
            # They end in the next turns. If one were cancelled, uvloop would close its connection
            # without telling the protocol, which may count it as open already.
            await asyncio.wait(self._tasks)

    def _listen(self, listening: socket.socket) -> None:
        self._pauses.pop(listening, None)
        asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # The process has no more file descriptors, for example.
                log.warning("cannot accept a connection: %s", error)
                loop = asyncio.get_running_loop()
                loop.remove_reader(listening)
                self._pauses[listening] = loop.call_later(PAUSE, self._listen, listening)
                return
            client = _name(address)
            place = self._places.enter(client[0], accepted.close)
            if place is None:
                accepted.close()
                self._full("".join(client))
                continue
            task = watched(self._open(accepted, client, place), "opening a connection")
            place.end = partial(self._give_way, client, task)
            self._tasks.add(task)
            task.add_done_callback(partial(self._ended, accepted, place))

    def _ended(self, accepted: socket.socket, place: Place, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if place.state is State.OPENING:
            place.leave()
        # A task that is cancelled before it begins does nothing, so this is not in the task.
        if task.cancelled() or task.exception() is not None:
            accepted.close()

    def _give_way(self, client: tuple[str, str], task: asyncio.Task[None]) -> None:
        log.info("%s%s: the connection gives way to another in its handshake", *client)
        # A plain connection opens in the next turns. If its task were cancelled, uvloop would close it
        # without telling the protocol.
        if self._tls is not None:
            task.cancel()

    async def _open(self, accepted: socket.socket, client: tuple[str, str], place: Place) -> None:
        try:
            accepted.setblocking(False)
            if accepted.family != socket.AF_UNIX:
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                partial(self._make, place),
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=self._seconds if self._tls else None,
            )
        except OSError as error:
            # ssl.SSLError and TimeoutError are of this kind, too.
            log.info(
                "%s%s: the connection was not opened: %s",
                *client, str(error) or "the client left in the TLS handshake",
            )  # fmt: skip
            accepted.close()
        else:
            if place.state is None:  # it has given way
                transport.abort()


def _name(address: Any) -> tuple[str, str]:
    """Return a client's address, and its port with the colon before it, for the log.

    The log counts lines by their first argument, the address (`process.logs`).
    """
    return (str(address[0]), f":{address[1]}") if isinstance(address, tuple) else ("unix", "")


def _listening_at(path: Path) -> socket.socket:
    """Return a listening Unix socket; one that a process left behind is replaced. Raises OSError."""
    if path.is_socket():
        path.unlink()
    with contextlib.ExitStack() as stack:
        found = stack.enter_context(socket.socket(socket.AF_UNIX))
        found.bind(str(path))
        found.listen(BACKLOG)
        stack.pop_all()
    return found


async def _listening(host: str, port: int, *, reuse_port: bool) -> list[socket.socket]:
    """Return listening sockets for all addresses of a host; an empty one means all of the machine.

    They have one port, which the first gets from the system if `port` is 0. Raises OSError.
    """
    if not host:
        is_dual = socket.has_dualstack_ipv6()
        return [
            socket.create_server(
                ("", port), family=socket.AF_INET6 if is_dual else socket.AF_INET,
                reuse_port=reuse_port, dualstack_ipv6=is_dual, backlog=BACKLOG,
            )
        ]  # fmt: skip
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    with contextlib.ExitStack() as stack:
        for family, _, _, _, address in dict.fromkeys(found):
            at = (str(address[0]), port or (sockets[0].getsockname()[1] if sockets else 0))
            one = socket.create_server(at, family=family, reuse_port=reuse_port, backlog=BACKLOG)
            sockets.append(stack.enter_context(one))
        stack.pop_all()
    return sockets
