"""The connection of one client: an asyncio protocol around a `Session`, with the calls on it."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from warmpath.h2grpc.call import Call
from warmpath.h2grpc.calls import Calls, headers_of
from warmpath.h2grpc.http2 import library as lib
from warmpath.h2grpc.http2.events import EndedError
from warmpath.h2grpc.http2.journal import READ, RECEIVE_BYTES
from warmpath.h2grpc.http2.session import Session
from warmpath.h2grpc.metadata import address_of, names_of, peer_name
from warmpath.h2grpc.method import Gate
from warmpath.h2grpc.shared import Shared

log = logging.getLogger(__name__)

WRITE_BYTES = 1 << 20
"""Bytes in the socket's buffer above which no more are taken out of the session."""
TURN_SECONDS = 0.005
"""Longest time for which a connection handles bytes before other connections have their turn."""


class Place(Protocol):
    """A connection's place among those that a listener allows."""

    end: Callable[[], None]
    """Closes the connection, when another one gets its place."""

    def works(self, *, is_busy: bool) -> None:
        """Note that methods run (`is_busy`), or that none does any more or a call was answered."""

    def leave(self) -> None:
        """Free the place: the connection is closed."""


class Connection(asyncio.Protocol):
    """Answers the calls of one client. It calls `closed` with itself once its socket is closed.

    It calls `arrived` with the number of bytes that its socket has received, before it takes them.
    """

    def __init__(
        self,
        shared: Shared,
        place: Place,
        *,
        opened: Callable[["Connection"], None],
        closed: Callable[["Connection"], None],
        arrived: Callable[[int], None],
    ) -> None:
        self._limits = shared.limits
        self._place = place
        self.calls = Calls(self, shared)
        self._opened = opened
        self._closed = closed
        self._arrived = arrived
        self._clock = shared.clock
        self._gate = shared.gate
        self._journal = shared.journal
        self._is_in_session = False
        """Whether nobody may ask libnghttp2 for bytes to send: it handles received ones, or several
        answers go out together."""
        self._rest = b""
        """Bytes of the client that wait for the next turn."""
        self._paused_since: float | None = None
        self._has_received = True
        """Whether bytes arrived since the last look."""
        self._silent_since = self._made = self._clock()

    # The socket.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the session."""
        self._socket = cast("asyncio.Transport", transport)
        self.loop = asyncio.get_running_loop()
        self._opened(self)
        self._place.end = self.give_way
        self.works(is_busy=False)
        self._socket.set_write_buffer_limits(high=WRITE_BYTES)
        self.session = Session(self.calls, self._limits, self._clock, self._journal)
        self.peer = peer_name(transport.get_extra_info("peername"))
        self.address = address_of(self.peer)
        self._names: Sequence[str] | None = None
        self.flush()

    @property
    def names(self) -> Sequence[str]:
        """The names in the client's certificate."""
        if self._names is None:
            self._names = names_of(self._socket.get_extra_info("ssl_object"))
        return self._names

    def data_received(self, data: bytes) -> None:
        """Take bytes of the client."""
        if self._socket.is_closing():
            return
        self._has_received = True
        self._arrived(len(data))
        if self._rest:
            self._rest += data
        else:
            self._take(data)

    def _take(self, data: bytes) -> None:
        """Give bytes to the session, for no longer than a turn: other connections wait."""
        until = time.perf_counter() + TURN_SECONDS
        self._is_in_session = True
        at = 0
        try:
            while at < len(data):
                if self._gate is not None:
                    self._ask(self._gate)
                self.session.receive(data[at : at + RECEIVE_BYTES])
                at += RECEIVE_BYTES
                if self.calls.fresh:
                    self.calls.answer_at_once()
                if time.perf_counter() > until:
                    break
        except EndedError as error:
            self._break(error)
            return
        finally:
            self._is_in_session = False
        self._rest = data[at:]
        if self.session.wants != READ:
            self.flush()
        if self._rest and not self._socket.is_closing():
            self._socket.pause_reading()
            self.loop.call_soon(self._go_on)

    def _ask(self, gate: Gate) -> None:
        """Ask the gate how many calls may begin with the next bytes."""
        rooms = gate.rooms(self.peer)
        self._journal.limit(rooms)
        if rooms is not None and (refusal := gate.refusal) is not self._journal.refusal:
            self._journal.refuse_with(refusal, headers_of(refusal))

    def _go_on(self) -> None:
        rest, self._rest = self._rest, b""
        if self._socket.is_closing():
            return
        self._socket.resume_reading()
        if rest:
            self._take(rest)

    def pause_writing(self) -> None:
        """Leave bytes in the session until `resume_writing`, since the socket's buffer is full."""
        self._paused_since = self._clock()

    def resume_writing(self) -> None:
        """Go on sending."""
        self._paused_since = None
        self.flush()

    def connection_lost(self, _: Exception | None) -> None:
        """End all calls."""
        self.calls.end()
        self.session.close()
        self._place.leave()
        self._closed(self)

    def flush(self) -> None:
        """Give the session's bytes to the socket, unless the socket's buffer is full."""
        if self._is_in_session or self._paused_since is not None or self._socket.is_closing():
            return
        self._is_in_session = True
        try:
            self.session.send(self._socket.write)
        except EndedError as error:
            self._break(error)
            return
        finally:
            self._is_in_session = False
        if self.session.drained:
            drained, self.session.drained = self.session.drained, []
            self.calls.drained(drained)
        if not self.session.wants:
            # Either side has ended the connection, or the client broke the protocol.
            self._socket.close()

    def _break(self, error: EndedError) -> None:
        self._say("the connection ends: %s", error)
        if self._paused_since is None:
            self._socket.write(self.session.goaway_of(error))
            self._socket.close()
        else:
            self._socket.abort()
        self.calls.end()

    # Calls of its calls.

    def if_gone(self, stream: int, call: Callable[[], None]) -> None:
        """Call `call`, once, if the client turns out not to have read what was sent on a stream."""
        self.calls.if_gone(stream, call)

    # Calls of the server.

    @property
    def held(self) -> int:
        """The bytes that have arrived and that no method has read."""
        return len(self._rest) + sum(call.held for call in self.calls)

    def holding(self) -> list[Call]:
        """Return the calls with bytes that have arrived and that no method has read."""
        return [call for call in self.calls if call.held]

    def look(self, now: float) -> None:
        """End the connection if the client has gone or exceeds a time limit; ping a silent client."""
        limits = self._limits
        if self._has_received:
            self._has_received = False
            self._silent_since = now
        if problem := self._problem(now):
            self._say("the connection is cut off: %s", problem)
            self._socket.abort()
            return
        self.calls.look(now)
        self.session.end_half_open(now - limits.handshake_seconds)
        if not self.calls and now - self.calls.idle_since > limits.idle_seconds:
            self.terminate()
        elif now - self._silent_since >= limits.ping_seconds and not self.session.pings:
            self.session.ping()
        self.flush()

    def _problem(self, now: float) -> str:
        session, limits = self.session, self._limits
        begun = session.headers_since
        if not session.has_begun and now - self._made > limits.handshake_seconds:
            return f"no HTTP/2 preface within {limits.handshake_seconds:g} s"
        if begun is not None and now - begun > limits.handshake_seconds:
            return f"a call's headers did not end within {limits.handshake_seconds:g} s"
        if self._paused_since is not None and now - self._paused_since > limits.stall_seconds:
            return f"nothing was read for {limits.stall_seconds:g} s"
        if session.pings and now - self._silent_since >= 2 * limits.ping_seconds:
            return f"no answer to a ping within {limits.ping_seconds:g} s"
        return ""

    def go_away(self) -> None:
        """Tell the client to call no more on this connection; calls on their way are still answered."""
        self.session.announce_end()
        self.flush()

    def terminate(self) -> None:
        """Take no more calls, and close the connection once those in progress have ended."""
        if self.calls:
            self.session.refuse_new()
        else:
            self.session.terminate(lib.NO_ERROR)
        self.flush()

    async def cut_off(self) -> None:
        """Cancel the calls in progress, and close the connection."""
        await self.calls.cut_off()
        if self._socket.is_closing():
            return
        self.session.terminate(lib.NO_ERROR)
        self.flush()
        self._socket.close()

    def works(self, *, is_busy: bool) -> None:
        """Note that methods run (`is_busy`), or that none does any more or a call was answered."""
        self._place.works(is_busy=is_busy)

    def give_way(self) -> None:
        """Close the connection, since another one gets its place."""
        self._say("the connection gives way to another")
        self.session.terminate(lib.NO_ERROR)
        self.flush()
        self._socket.close()

    def _say(self, what: str, *args: object) -> None:
        # The lines of an address are of one kind, whatever its ports (`process.logs`).
        port = self.peer.removeprefix(self.address)
        log.info("%s%s: " + what, self.address, port, *args)  # noqa: G003  a line's form is constant

    def abort(self) -> None:
        """Close the socket without waiting for the client to read what was sent."""
        self._socket.abort()

    def __repr__(self) -> str:
        return f"<Connection {self.peer}: {len(self.calls)} calls>"
