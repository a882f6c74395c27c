"""Limits of an HTTP/2 connection, and the count of frames that carry no request.

Frames that libnghttp2 reports are counted one by one, frames that it ignores by their bytes. Calls and
messages earn more than they cost. Sources of the attacks: CVE-2019-9511 to 9518 (floods of PING,
SETTINGS, empty DATA, WINDOW_UPDATE, tiny windows), CVE-2023-44487 (resets), CVE-2024-28182
(CONTINUATION), CVE-2025-8671 (frames for which the server resets streams).
"""

from dataclasses import dataclass

from warmpath.h2grpc.http2.events import flood

BURST_SECONDS = 10.0
"""A client may send the control frames of this many seconds at once."""
FRAMES_A_MESSAGE = 5
"""Frames that each DATA frame in either direction allows: the frame itself, and the client's answers to
it (WINDOW_UPDATE for the stream and for the connection, and perhaps a PING that measures the line)."""
FRAMES_A_CALL = 2
"""Frames that each call allows: its headers, and an end without data."""
SMALL_BYTES = 8
"""Bytes of data that allow one frame, up to FRAMES_A_MESSAGE for a DATA frame."""
IGNORED_BYTES = 16 << 10
"""Bytes of ignored frames that count as one frame. libnghttp2 ignores frames of unknown types, and data
of calls that have ended; much of that may be under way when a call is refused."""


@dataclass(frozen=True, slots=True)
class Http2Limits:
    """The limits of one server; times are in seconds."""

    connections: int = 1024
    """Most connections; further ones are closed at once."""
    streams: int = 256
    """Most calls in progress on one connection; HTTP/2 lets a client see this limit."""
    message_bytes: int = 4 << 20
    """Longest message, after decompression."""
    header_bytes: int = 16 << 10
    """Most bytes of a call's headers; each counts 32 more than its name and value (RFC 9113, 6.5.2)."""
    unsent_bytes: int = 8 << 20
    """Bytes of answers that a connection may leave unread; until it has read them, its new calls are
    refused."""
    received_bytes: int = 256 << 20
    """Bytes of all connections' calls that have arrived and wait to be read; beyond it calls end."""
    handshake_seconds: float = 10.0
    """Longest time for TLS, for the HTTP/2 preface, and for the headers of a call."""
    message_seconds: float = 2.0
    """Longest time from a call's headers to its first message, or to the length of one that is longer
    than a stream's window."""
    stall_seconds: float = 20.0
    """Longest time in which a client reads nothing of the bytes that wait for it."""
    ping_seconds: float = 10.0
    """Silence after which a client is pinged; one that does not answer as long again is gone."""
    idle_seconds: float = 300.0
    """Longest life of a connection without calls."""
    resets_per_second: int = 100
    """Streams a second that a client may reset before their answer begins, or break; ten seconds' worth
    at once."""
    control_frames_per_second: int = 100
    """Frames a second without request or message that a client may send; ten seconds' worth at once."""


class FrameBudget:
    """Counts what one client sends beside messages: a bucket that time, calls and messages fill."""

    __slots__ = ("_at", "_left", "_most", "_rate")

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._most = rate * BURST_SECONDS
        self._left = self._most
        self._at = now

    def earn(self, frames: float) -> None:
        """Allow further frames."""
        self._left = min(self._left + frames, self._most)

    def spend(self, now: float, frames: float = 1.0) -> bool:
        """Count frames; return whether the client may go on."""
        self._left = min(self._left + (now - self._at) * self._rate, self._most) - frames
        self._at = now
        return self._left >= 0


class Allowance:
    """What one client may still send beside calls and messages. Its methods raise EndedError."""

    def __init__(self, limits: Http2Limits, now: float) -> None:
        self._limits = limits
        self._frames = FrameBudget(limits.control_frames_per_second, now)
        self._resets = FrameBudget(limits.resets_per_second, now)
        self._ignored = 0
        """Bytes of frames of which libnghttp2 does not tell, and that are not counted yet."""
        self.now = now

    def count(self, frames: float, ignored: int) -> None:
        """Count frames, less those that were earned, and bytes of frames that libnghttp2 ignores."""
        self._ignored += ignored
        if self._ignored >= IGNORED_BYTES:
            more, self._ignored = divmod(self._ignored, IGNORED_BYTES)
            frames += more
        if frames < 0:
            self._frames.earn(-frames)
        elif not self._frames.spend(self.now, frames):
            rate = self._limits.control_frames_per_second
            raise flood("control frames", f"{rate} control frames per second")

    def count_reset(self) -> None:
        """Count the reset of a call."""
        if not self._resets.spend(self.now):
            rate = self._limits.resets_per_second
            raise flood("resets of calls", f"{rate} resets per second")
