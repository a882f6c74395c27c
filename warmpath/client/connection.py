"""What both clients share: settings, channels, calls, streams, and when a failed call is made again.

gRPC's channels keep their credentials: after a change of certificates calls get a new channel, and the
old one ends when it is idle. No sockets here: the clients make channels and close them.

gRPC's library has retries of its own (gRFC A6), whose rules know only methods and status codes. Whether
a Pick may be made again depends on the request, too: one without a name of the caller's may have booked
work already, and then only a refusal of the router itself shows that it has not.
"""

import logging
import threading
import time
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypeVar

import grpc
from google.protobuf.message import Message

from warmpath.client.calls import AnyPrompt, check_arguments, check_numbers, prompt_of, request_of
from warmpath.client.credentials import Credentials, SettingError
from warmpath.client.failure import CallError, failure_of
from warmpath.client.reports import Reports, Told
from warmpath.client.request import KnownPods
from warmpath.client.unanswered import tells_more
from warmpath.process.tls import TlsPaths
from warmpath.proto.errors import Reason
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1.router_pb2_grpc import RouterStub

MOST_ATTEMPTS = 10
NOT_TAKEN = "the router took no report on a request"

LASTING = frozenset({Reason.Name(Reason.NO_POD)})
"""Reasons that outlast the pauses between attempts; a caller that learns of them at once can act."""


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how soon a call is made again; `Retry(attempts=1)`: never.

    The pause before a retry is random, at most `first_seconds` before the first one and twice as long
    before each further one, up to `most_seconds`, and at least the time that the router names; that of a
    busy router is kept exactly. Raises ValueError or TypeError for an impossible value.
    """

    attempts: int = 3
    """The most times that a call is made in all, 1 to 10."""
    first_seconds: float = 0.1
    most_seconds: float = 1.0

    def __post_init__(self) -> None:
        check_numbers(Integral, attempts=self.attempts)
        check_numbers(first_seconds=self.first_seconds, most_seconds=self.most_seconds)
        if not 1 <= self.attempts <= MOST_ATTEMPTS:
            raise ValueError(f"attempts is {self.attempts}; it must be 1 to {MOST_ATTEMPTS}")
        if not 0 <= self.first_seconds <= self.most_seconds <= 60:
            pauses = f"{self.first_seconds} and {self.most_seconds}"
            raise ValueError(
                f"first_seconds and most_seconds are {pauses}; they must be 0 to 60, in this order"
            )

    def pause(
        self, failure: CallError, made: int, *, is_repeatable: bool, left: float, rng: Random
    ) -> float | None:
        """Return the seconds to wait before the next attempt; None: there is no other.

        `made` attempts have failed, `left` seconds remain; a call that `is_repeatable` may run twice.
        """
        if made >= self.attempts or not failure.may_repeat or failure.reason in LASTING:
            return None
        # A call that the router itself has refused was not carried out.
        is_refused = failure.reason is not None or failure.retry_after is not None
        if failure.code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            # The router refused to begin. If it names no time, the message itself may be too large,
            # and a retry would fail in the same way.
            pause = failure.retry_after
        elif failure.code is grpc.StatusCode.UNAVAILABLE and (is_repeatable or is_refused):
            bound = min(self.most_seconds, self.first_seconds * 2 ** (made - 1))
            # A router that ends asks for a retry at once at another router; that may be the same one,
            # started again, so the random pause remains.
            pause = max(failure.retry_after or 0.0, rng.uniform(0.0, bound))
        else:
            return None
        return pause if pause is not None and pause < left else None


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
    """Return a setting. Raises SettingError, which names `argument`, unless it is of `kind` or None."""
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
    """The attempts of one call, until it is answered or given up."""

    request: Any
    end: float
    """The deadline of all attempts, by `time.monotonic`."""
    made: int = 0
    """The number of attempts that failed."""
    told: CallError | None = None
    """The failure to raise if there is no further attempt."""

    @property
    def method(self) -> str:
        return type(self.request).__name__.removesuffix("Request")

    def left(self) -> float:
        return max(0.0, self.end - time.monotonic())


log = logging.getLogger("warmpath.client")
LOG_SECONDS = 60.0
"""The least time between two lines of a client's log that say the same."""


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
        self._model = checked("model", model, str) or ""
        check_arguments(model=model)
        self._timeout = checked_timeout(timeout)
        self._retry = checked("retry", retry, Retry) or Retry()
        self._rng = Random()  # noqa: S311  spreads retries, guards nothing
        self._credentials = Credentials(target, tls, token_file)
        self._lock = threading.Lock()
        self._newest: Line | None = None
        self._older: list[Line] = []
        """Channels that are to be closed, or still have calls."""
        self._is_closed = False
        self._known = KnownPods(self._rng)
        self._said_at: dict[str, float] = {}
        self._reports = Reports()
        self._background: Any = self._new_background()

    def _new_background(self) -> Any:
        """Return what makes the calls of the reports that wait; None: nothing does."""
        return None

    def _told(self, given: Any, timeout: float | None = None, **kind: Any) -> Told:
        """Let a report wait for its call. Raises RuntimeError once the client is closed."""
        attempts = self._attempts(pb.ReportResponse, timeout, given)
        told = Told(attempts.request, attempts.end, **kind)
        if self._reports.add(told):
            self._background.start(is_awaited=told.is_awaited)
        return told

    def _warn(self, said: str, error: object) -> None:
        """Log `said` with the error, at most once in LOG_SECONDS."""
        now = time.monotonic()
        if now - self._said_at.get(said, -LOG_SECONDS) >= LOG_SECONDS:
            self._said_at[said] = now
            log.warning("%s: %s", said, error)

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
        seconds = self._timeout if timeout is None else checked_timeout(timeout)
        return Attempts(request_of(answer, self._model, given), time.monotonic() + seconds)

    def _asked(self, stub: Any, of: Attempts) -> Any:
        """Make a call; return its answer, or what a client of asyncio awaits."""
        ask = getattr(stub, of.method)
        return ask(of.request, timeout=of.left(), metadata=self._credentials.metadata)

    def _pause(self, of: Attempts, error: grpc.RpcError) -> float:
        """Return the seconds before the next attempt. Raises CallError if there is none."""
        of.made += 1
        failure = failure_of(error, self._credentials.hint)
        if of.told is None or not tells_more(of.told.message, failure.message):
            of.told = failure
        # A repeated Pick with the caller's own booking id replaces the earlier one.
        is_repeatable = of.method != "Pick" or bool(of.request.booking_id)
        pause = self._retry.pause(
            failure, of.made, is_repeatable=is_repeatable, left=of.left(), rng=self._rng
        )
        if pause is None:
            raise of.told from error
        return pause


CODES = {code.value[0]: code for code in grpc.StatusCode}


class StreamAnswer(NamedTuple):
    """The answer to one prompt of a stream: exactly one of `scores` and `error` is set."""

    position: int
    """The prompt's position among those that were sent, from 0."""
    scores: pb.ScoreResponse | None
    error: CallError | None
    """Why this prompt was refused; the stream goes on."""


class Requests:
    """The requests of a stream, numbered; gRPC iterates them, and hides an error of the iteration.

    In the place of a prompt that cannot be sent an empty one goes out. The router refuses it, and its
    reply carries our own error: so the stream, which is gRPC's, has an answer in that prompt's turn.
    """

    def __init__(self, model: str, pods: Sequence[str], strategy: str) -> None:
        check_arguments(pods=pods, strategy=strategy)
        self._model = model
        self._pods = pods
        self._strategy = strategy
        self.error: Exception | None = None
        """The error with which the prompts ended; None if they did not."""
        self._unsent: dict[int, CallError] = {}
        """The error of each prompt that could not be sent, until it is answered; by position."""

    def answer_of(self, reply: pb.ScoreStreamResponse) -> StreamAnswer:
        error = self._unsent.pop(reply.request_id, None)
        if error is None and reply.WhichOneof("result") == "response":
            return StreamAnswer(reply.request_id, reply.response, None)
        if error is None:
            said = reply.error
            is_known = said.reason and said.reason in Reason.values()
            error = CallError(
                CODES.get(said.code, grpc.StatusCode.UNKNOWN),
                said.message,
                reason=Reason.Name(said.reason) if is_known else None,
            )
        return StreamAnswer(reply.request_id, None, error)

    def each(self, prompts: Iterable[AnyPrompt]) -> Iterator[pb.ScoreRequest]:
        try:
            if not isinstance(prompts, Iterable):
                raise TypeError(f"prompts is of type {type(prompts).__name__}, not a list")  # noqa: TRY301
            for position, prompt in enumerate(prompts):
                yield self._request(position, prompt)
        except Exception as error:
            self.error = error
            raise

    async def each_async(
        self, prompts: AsyncIterable[AnyPrompt] | Iterable[AnyPrompt]
    ) -> AsyncIterator[pb.ScoreRequest]:
        if not isinstance(prompts, AsyncIterable):
            for request in self.each(prompts):
                yield request
            return
        position = 0
        try:
            async for prompt in prompts:
                yield self._request(position, prompt)
                position += 1
        except Exception as error:
            self.error = error
            raise

    def _request(self, position: int, prompt: AnyPrompt) -> pb.ScoreRequest:
        try:
            message = prompt_of(prompt).message(self._model)
        except (ValueError, TypeError) as error:
            self._unsent[position] = CallError(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            message = pb.Prompt()
        return pb.ScoreRequest(
            prompt=message, pods=self._pods, strategy=self._strategy, request_id=position
        )
