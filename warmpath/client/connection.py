"""What both clients share: settings, channels, calls and retries.

gRPC's channels keep the credentials that they were made with, so calls after a change of certificates
get a new channel, and the old one ends when it is idle. No sockets here: the clients make channels and
close them.
"""

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from warmpath.client.calls import RouterCall, RouterCalls
from warmpath.client.credentials import Credentials, SettingError
from warmpath.client.failure import CallError, failure_of, tells_more
from warmpath.client.retry import Retry
from warmpath.process.tls import TlsPaths
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


@dataclass(eq=False, slots=True)
class Attempts:
    """A call, until it is answered or not made any more."""

    call: RouterCall
    end: float
    """The deadline of all attempts, by `time.monotonic`."""
    made: int = 0
    """The number of attempts that failed."""
    told: CallError | None = None
    """The failure to tell of."""

    def left(self) -> float:
        return max(0.0, self.end - time.monotonic())


class Connection:
    """A client's settings, and its channels. Any thread may use it."""

    def __init__(
        self,
        target: str,
        *,
        model: str = "",
        tls: TlsPaths | None = None,
        token_file: Path | str | None = None,
        timeout: float = DEFAULT_SECONDS,
        retry: Retry | None = None,
    ) -> None:
        self._target = target
        self._calls = RouterCalls(checked("model", model, str))
        self._timeout = checked_timeout(timeout)
        self._retry = checked("retry", retry, Retry) or Retry()
        self._rng = Random()  # noqa: S311  spreads retries, guards nothing
        self._credentials = Credentials(target, tls, token_file)
        self._lock = threading.Lock()
        self._newest: Line | None = None
        self._older: list[Line] = []
        """Channels that are to be closed, or still have calls."""
        self._is_closed = False

    def _open(self, shown: grpc.ChannelCredentials | None) -> Any:
        """Return a new channel."""
        raise NotImplementedError

    def _take(self) -> Line:
        """Return the channel for a call; `_give_back` it. Raises RuntimeError after `_end`."""
        self._credentials.look(time.monotonic())
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

    def _give_back(self, line: Line) -> list[Any]:
        """Record the end of a call; return the channels to close now."""
        with self._lock:
            line.calls -= 1
            idle = [one.channel for one in self._older if not one.calls]
            self._older = [one for one in self._older if one.calls]
            return idle

    def _end(self) -> list[Any]:
        """Carry no more calls; return the channels to close."""
        with self._lock:
            self._is_closed = True
            left = [*self._older, self._newest] if self._newest else self._older
            self._newest, self._older = None, []
            return [one.channel for one in left]

    def _attempts(self, answer: type[Message], timeout: float | None, given: Any) -> Attempts:
        """Return a call that was not made yet. Raises ValueError or TypeError."""
        call = self._calls.of(answer, **given)
        seconds = self._timeout if timeout is None else checked_timeout(timeout)
        return Attempts(call, time.monotonic() + seconds)

    def _asked(self, stub: Any, of: Attempts) -> Any:
        """Make a call; return its answer, or what a client of asyncio awaits."""
        ask = getattr(stub, of.call.method)
        return ask(of.call.request, timeout=of.left(), metadata=self._credentials.metadata)

    def _pause(self, of: Attempts, error: grpc.RpcError) -> float:
        """Return the seconds before the next attempt. Raises CallError if there is none."""
        of.made += 1
        failure = failure_of(error, self._credentials.hint)
        if of.told is None or not tells_more(of.told.message, failure.message):
            of.told = failure
        pause = self._retry.pause(
            failure, of.made, is_repeatable=of.call.is_repeatable, left=of.left(), rng=self._rng
        )
        if pause is None:
            raise of.told from error
        return pause
