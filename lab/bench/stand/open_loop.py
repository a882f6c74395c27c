"""A client that sends calls at a fixed rate, however fast they are answered, over raw HTTP/2.

It repeats one request, whose frames are made once, so it costs a tenth of what the server does. It tells
answers from refusals by their frames: a refusal is HEADERS alone. A call's time counts from the moment
at which it was due, so that a late client does not hide waits.

Usage: python -m warmpath.lab.bench.stand.open_loop HOST:PORT PATH BODY RATE SECONDS CLIENTS
It prints JSON.
"""

import heapq
import json
import selectors
import socket
import struct
import sys
import time
from pathlib import Path

DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
INITIAL_WINDOW_SIZE, CANCEL = 4, 8
END_STREAM = ACK = 1
END_HEADERS = 4
FRAME_BYTES = 16_384
FIRST_WINDOW = 65_535
MOST_STREAMS = 200
"""Calls in progress on a connection; beyond it a call is not sent, and counts as `unsent`."""


WARM_SECONDS = 0.5
"""Time before the first call that counts: an overload shows itself within a fraction of it."""


class Connection:
    """One connection; `taken` gets the seconds of each answer, `refused` those of each refusal."""

    def __init__(self, address: str, path: str, body: bytes, into: "Counts") -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._into = into
        self._header = _header_block(address, path)
        self._body = body
        self._size = len(body)
        self._window = FIRST_WINDOW
        self._stream = -1
        self._stream_window = FIRST_WINDOW
        """The window with which a stream begins."""
        self._windows: dict[int, int] = {}
        """Stream whose body is not yet sent whole -> bytes of its window."""
        self._unsent: dict[int, int] = {}
        """Stream whose body is not yet sent whole -> bytes that are sent."""
        self._due: dict[int, float] = {}
        self._answered: set[int] = set()
        self._in = bytearray()
        self._out = bytearray(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        self._out += _frame(SETTINGS, 0, 0, struct.pack(">HI", 4, (1 << 31) - 1))
        self._out += _frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", (1 << 31) - 1 - FIRST_WINDOW))
        self.flush()
        self.socket.setblocking(False)

    @property
    def pending(self) -> int:
        return len(self._due)

    def call(self, due: float) -> bool:
        """Begin a call, which `flush` sends; return False if the connection has no room for it."""
        if len(self._due) >= MOST_STREAMS or self._window < self._size or len(self._out) > 1 << 22:
            return False
        self._stream += 2
        stream = self._stream
        self._due[stream] = due
        self._out += _frame(HEADERS, END_HEADERS, stream, self._header)
        self._windows[stream], self._unsent[stream] = self._stream_window, 0
        self._send_body(stream)
        return True

    def _send_body(self, stream: int) -> None:
        """Send as much of a body as its window allows."""
        at, window = self._unsent[stream], self._windows[stream]
        while at < self._size and window > 0 and self._window > 0:
            end = min(at + min(FRAME_BYTES, window, self._window), self._size)
            self._out += _frame(DATA, END_STREAM * (end == self._size), stream, self._body[at:end])
            self._window -= end - at
            window -= end - at
            at = end
        if at == self._size:
            del self._unsent[stream], self._windows[stream]
        else:
            self._unsent[stream], self._windows[stream] = at, window

    def _give_up(self, stream: int) -> None:
        """Send nothing more of a call that is answered."""
        if self._unsent.pop(stream, None) is not None:
            del self._windows[stream]
            self._out += _frame(RESET, 0, stream, struct.pack(">I", CANCEL))

    def flush(self) -> None:
        try:
            while self._out:
                del self._out[: self.socket.send(self._out)]
        except BlockingIOError:
            pass

    def read(self) -> None:
        try:
            data = self.socket.recv(1 << 18)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionError("the server closed the connection")
        now = time.perf_counter()
        buffer = self._in
        buffer += data
        at = 0
        while len(buffer) - at >= 9:
            size = int.from_bytes(buffer[at : at + 3], "big")
            if len(buffer) - at < 9 + size:
                break
            kind, flags = buffer[at + 3], buffer[at + 4]
            stream = int.from_bytes(buffer[at + 5 : at + 9], "big")
            self._take(kind, flags, stream, bytes(buffer[at + 9 : at + 9 + size]), now)
            at += 9 + size
        del buffer[:at]
        self.flush()

    def _take(self, kind: int, flags: int, stream: int, payload: bytes, now: float) -> None:
        if kind == DATA:
            self._answered.add(stream)
        elif kind == HEADERS and flags & END_STREAM:
            due = self._due.pop(stream)
            self._give_up(stream)
            into = self._into.taken if stream in self._answered else self._into.refused
            if due >= self._into.since:
                into.append(now - due)
            self._answered.discard(stream)
        elif kind == WINDOW_UPDATE and not stream:
            self._window += int.from_bytes(payload, "big")
        elif kind == WINDOW_UPDATE and stream in self._unsent:
            self._windows[stream] += int.from_bytes(payload, "big")
            self._send_body(stream)
        elif kind == RESET and self._due.pop(stream, None) is not None:
            self._unsent.pop(stream, None)
            self._windows.pop(stream, None)
            self._into.reset += 1
        elif kind in (SETTINGS, PING) and not flags & ACK:
            if kind == SETTINGS:
                self._set(payload)
            self._out += _frame(kind, ACK, 0, payload if kind == PING else b"")
        elif kind == GOAWAY:
            raise ConnectionError("the server sent GOAWAY")

    def _set(self, payload: bytes) -> None:
        for name, value in struct.iter_unpack(">HI", payload):
            if name == INITIAL_WINDOW_SIZE:
                change, self._stream_window = value - self._stream_window, value
                for stream in list(self._windows):
                    self._windows[stream] += change
                    self._send_body(stream)


class Counts:
    """The outcomes of the calls that were due after `since`; times are in seconds."""

    def __init__(self, since: float = 0.0) -> None:
        self.since = since
        self.taken: list[float] = []
        self.refused: list[float] = []
        self.reset = 0
        self.unsent = 0


def run(
    address: str, path: str, body: bytes, *, rate: float, seconds: float, clients: int
) -> Counts:
    """Send `rate` calls a second for `seconds`, or with rate 0 one at a time on each connection."""
    begun = time.perf_counter()
    counts = Counts(begun + WARM_SECONDS)
    connections = [Connection(address, path, body, counts) for _ in range(clients)]
    ready = selectors.DefaultSelector()
    for one in connections:
        ready.register(one.socket, selectors.EVENT_READ, one)
    end = begun + WARM_SECONDS + seconds
    turns = [(begun + number / rate, number) for number in range(clients)] if rate else []
    heapq.heapify(turns)
    while (now := time.perf_counter()) < end:
        while turns and turns[0][0] <= now:
            due, number = heapq.heappop(turns)
            heapq.heappush(turns, (due + clients / rate, number))
            counts.unsent += not connections[number].call(due)
        for one in connections if not rate else ():
            if not one.pending:
                one.call(now)
        _read(ready, connections, max(0.0, turns[0][0] - time.perf_counter()) if turns else 1.0)
    while any(one.pending for one in connections) and time.perf_counter() < end + 10:
        _read(ready, connections, 0.1)
    return counts


def _read(ready: selectors.BaseSelector, connections: list[Connection], timeout: float) -> None:
    for one in connections:
        one.flush()
    for key, _ in ready.select(timeout):
        key.data.read()


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _header_block(address: str, path: str) -> bytes:
    # RFC 7541, 6.2.2: literals that are not indexed, with new names.
    fields = (
        (":method", "POST"), (":scheme", "http"), (":path", path), (":authority", address),
        ("content-type", "application/grpc"), ("te", "trailers"),
    )  # fmt: skip
    return b"".join(
        b"\0" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode()
        for name, value in fields
    )


def main() -> None:
    """Run with the command line's arguments."""
    address, path, body, rate, seconds, clients = sys.argv[1:]
    counts = run(
        address,
        path,
        Path(body).read_bytes(),
        rate=float(rate),
        seconds=float(seconds),
        clients=int(clients),
    )
    print(json.dumps(vars(counts)))


if __name__ == "__main__":
    main()
