"""Chooses the channel of each call: a new one after certificates changed; the old one ends when idle.

gRPC's channels keep the credentials that they were made with. No sockets here: the clients make channels
and close them.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc

from warmpath.client.credentials import Credentials, SettingError
from warmpath.proto.pb.warmpath.v1.router_pb2_grpc import RouterStub

T = TypeVar("T")

OPTIONS = (
    # A vanished host sends no FIN; pings find that the connection is dead.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # A router that starts again is found again while its callers still retry.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)

DEFAULT_SECONDS = 10.0
"""The most seconds of a call, retries included."""
MOST_SECONDS = 1e9
"""The longest timeout, 31 years. Past some 230 years gRPC's library takes the deadline for over."""


def checked(argument: str, value: T, kind: type) -> T:
    """Return a setting. Raises SettingError unless it is of a type, or None."""
    if value is not None and not isinstance(value, kind):
        raise SettingError(argument, f"is of type {type(value).__name__}, not {kind.__name__}")
    return value


def checked_timeout(seconds: float) -> float:
    """Return a timeout. Raises SettingError unless it is a number of seconds above 0, at most 1e9."""
    try:
        is_possible = 0 < seconds <= MOST_SECONDS
    except TypeError:
        is_possible = False
    if not is_possible:
        limits = f"it must be a number of seconds above 0, at most {MOST_SECONDS:g}"
        raise SettingError("timeout", f"is {seconds!r}; {limits}")
    return seconds


@dataclass(eq=False, slots=True)
class Line:
    """A channel, and how many calls are on it."""

    channel: Any
    stub: Any
    credentials: grpc.ChannelCredentials | None
    calls: int = 0


class ClientConnection:
    """The channels of one client, blocking or not. Any thread may use it."""

    def __init__(
        self,
        credentials: Credentials,
        open_channel: Callable[[grpc.ChannelCredentials | None], Any],
    ) -> None:
        self._credentials = credentials
        self._open = open_channel
        self._lock = threading.Lock()
        self._newest: Line | None = None
        self._older: list[Line] = []
        """Channels that are to be closed, or still have calls."""
        self._is_closed = False

    def take(self, now: float) -> Line:
        """Return the channel for a call; `give_back` it. Raises RuntimeError after `close`."""
        self._credentials.look(now)
        shown = self._credentials.of_channel
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the client is closed")
            if self._newest is None or self._newest.credentials is not shown:
                if self._newest is not None:
                    self._older.append(self._newest)
                channel = self._open(shown)
                self._newest = Line(channel, RouterStub(channel), shown)
            self._newest.calls += 1
            return self._newest

    def give_back(self, line: Line) -> list[Any]:
        """Record the end of a call; return the channels to close now."""
        with self._lock:
            line.calls -= 1
            idle = [one.channel for one in self._older if not one.calls]
            self._older = [one for one in self._older if one.calls]
            return idle

    def close(self) -> list[Any]:
        """Carry no more calls; return the channels to close."""
        with self._lock:
            self._is_closed = True
            left = [*self._older, self._newest] if self._newest else self._older
            self._newest, self._older = None, []
            return [one.channel for one in left]
