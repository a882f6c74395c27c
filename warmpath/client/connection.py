"""Chooses the channel of each call: a new one after certificates changed; the old one ends when idle.

gRPC's channels keep the credentials that they were made with. No sockets here: the clients make channels
and close them.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import grpc

from warmpath.client.credentials import Credentials, SettingError

T = TypeVar("T")
Line = TypeVar("Line")
"""A channel, with the stub that calls on it."""

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
class Used(Generic[Line]):
    """A channel, and how many calls are on it."""

    line: Line
    credentials: grpc.ChannelCredentials | None
    calls: int = 0


class ClientConnection(Generic[Line]):
    """The channels of one client. Any thread may use it."""

    def __init__(
        self,
        credentials: Credentials,
        open_line: Callable[[grpc.ChannelCredentials | None], Line],
    ) -> None:
        self._credentials = credentials
        self._open = open_line
        self._lock = threading.Lock()
        self._newest: Used[Line] | None = None
        self._is_closed = False

    def take(self, now: float) -> tuple[Used[Line], Line | None]:
        """Return the channel for a call, and one to close now, if any. `give_back` the former.

        Raises RuntimeError after `close`.
        """
        self._credentials.look(now)
        shown = self._credentials.of_channel
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the client is closed")
            before = self._newest
            if before is None or before.credentials is not shown:
                self._newest = Used(self._open(shown), shown)
            used = self._newest
            assert used is not None
            used.calls += 1
            is_idle = before is not None and before is not used and not before.calls
            return used, before.line if is_idle and before is not None else None

    def give_back(self, used: Used[Line]) -> Line | None:
        """Record the end of a call; return its channel if it is to be closed now."""
        with self._lock:
            used.calls -= 1
            is_over = used is not self._newest and not used.calls
            return used.line if is_over else None

    def close(self) -> Line | None:
        """Carry no more calls; return the channel to close, if there is one."""
        with self._lock:
            self._is_closed = True
            newest, self._newest = self._newest, None
            return newest.line if newest else None
