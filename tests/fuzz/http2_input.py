"""What a client may do to a connection, read from arbitrary bytes; nothing but its end may come of it.

The first byte says whether a valid preface comes before, and whether the others are the client's bytes as
they are, or acts: frames, parts of calls, and what happens to the socket.
"""

import logging
from collections.abc import Callable, Iterator

from tests.h2grpc.http2 import raw_frames as raw
from tests.h2grpc.served import Service
from tests.h2grpc.stand import Stand
from warmpath.h2grpc.http2.limits import Http2Limits

METHODS = ("Echo", "Take", "Each", "Many", "Hold", "Large", "None", "Once")
LIMITS = Http2Limits(
    streams=4,
    message_bytes=2000,
    header_bytes=500,
    unsent_bytes=5000,
    resets_per_second=3,
    control_frames_per_second=10,
)
PREFACED, RAW = 1, 2
MOST_ACTS = 200
WHOLE = raw.PREFACE + raw.settings()
SEEDS = (
    bytes([RAW]) + WHOLE + raw.call(1, "Echo", b"x") + raw.call(3, "Many", b"3 9"),
    bytes([RAW | PREFACED]) + raw.headers(1, raw.fields("Take"))
    + b"".join(raw.data(1, raw.message(bytes(30))) for _ in range(4)) + raw.data(1, b"", raw.END_STREAM),
    bytes([RAW | PREFACED]) + raw.headers(1, raw.fields("Hold"), 0)
    + raw.frame(raw.CONTINUATION, raw.END_HEADERS, 1, b"") + raw.reset(1) + raw.window(0, 1),
    bytes([RAW | PREFACED]) + raw.headers(1, raw.fields("Each", (b"grpc-encoding", b"gzip")))
    + raw.data(1, b"\1\0\0\0\4abcd"),
    bytes([PREFACED, 0, 0, 1, 0, 0, 3, 0, 5, 1, 4, 1, 3, 2, 20, 1, 4, 1, 5, 9, 6, 6, 7]),
    bytes([PREFACED, 0, 0, 4, 1, 0, 0, 5, 2, 3, 0, 0, 1, 2, 2, 8, 8, 0, 4, 0, 0, 1, 8, 200]),
)  # fmt: skip


class Fault(logging.Handler):
    """Keeps what is logged as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record))


class Attack(Stand):
    """One connection and its client, who does what bytes say."""

    def __init__(self) -> None:
        super().__init__(Service().methods(), LIMITS)
        self.is_paused = False

    def run(self, data: bytes) -> None:
        """Do what the bytes say."""
        kind = data[0] if data else 0
        if kind & PREFACED:
            self.send(WHOLE)
        if kind & RAW:
            # In pieces, as sockets give them.
            for at in range(1, len(data), 1000):
                self.send(data[at : at + 1000])
            return
        rest = iter(data[1:])
        for _, act in zip(range(MOST_ACTS), rest, strict=False):
            if self.socket.is_closing():
                return
            self._act(act % 10, rest)

    def _act(self, act: int, rest: Iterator[int]) -> None:
        def more() -> int:
            return next(rest, 0)

        def some() -> bytes:
            return bytes(more() for _ in range(more() % 64))

        if act == 0:
            self.send(
                raw.headers(2 * (more() % 16) + 1, raw.fields(METHODS[more() % len(METHODS)]))
            )
        elif act == 1:
            stream, flags = 2 * (more() % 16) + 1, more() % 2
            self.send(raw.data(stream, raw.message(b"%d %d" % (more() % 50, 50 * more())), flags))
        elif act == 2:
            self.send(raw.frame(more() % 12, more(), more() % 33, some()))
        elif act == 3:
            block = raw.fields(METHODS[more() % len(METHODS)]) + raw.literal(
                some(), some(), keep=bool(more() % 2)
            )
            self.send(raw.headers(2 * (more() % 16) + 1, block, more()))
        elif act == 4:
            self.send(raw.settings(window=more() * more()))
        elif act == 5:
            self.send(raw.window(more() % 33, more() * more() * more() * more()))
        elif act == 6:
            self.send(raw.reset(2 * (more() % 16) + 1, more() % 16))
        elif act == 7:
            self.is_paused = not self.is_paused
            socket = self.connection
            self.loop.turn(socket.pause_writing if self.is_paused else socket.resume_writing)
        elif act == 8:
            self.loop.now += more()
            self.loop.turn(lambda: self.connection.look(self.loop.now))
        else:
            ends: tuple[Callable[[], object], ...] = (
                self.connection.terminate, self.socket.lose,
                lambda: self.loop.create_task(self.connection.cut_off()),
            )  # fmt: skip
            self.loop.turn(ends[more() % len(ends)])

    def close(self) -> None:
        """Check what is kept, and that nothing is at the end."""
        if not self.socket.is_lost:
            session = self.connection.session
            assert session.unsent == sum(one.unsent for one in session._bodies.values())
            assert len(self.connection.calls) <= LIMITS.streams
            assert (
                len(self.connection.calls.tasks)
                <= 1 + LIMITS.streams + 10 * LIMITS.resets_per_second
            )
            held = [call._deframer.held for call in self.connection.calls._of.values()]
            assert sum(held) <= LIMITS.streams * (65_535 + LIMITS.message_bytes)
        super().close()


def attack(data: bytes) -> None:
    """Attack a connection as arbitrary bytes say. Raises AssertionError for anything but its end."""
    fault = Fault()
    logger = logging.getLogger("warmpath.h2grpc")
    logger.addHandler(fault)
    try:
        one = Attack()
        one.run(data)
        one.close()
    finally:
        logger.removeHandler(fault)
    assert fault.found == []
