"""The seam between services and transports: a server that takes gRPC's handlers and listens."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

import grpc

from warmpath.process.tls import ServerTls
from warmpath.proto.errors import Metadata, Reason, details


@dataclass(frozen=True, slots=True)
class Refusal:
    """The status of a call that is refused, with metadata that follow it."""

    code: grpc.StatusCode
    text: str
    metadata: Metadata = ()
    reason: str = ""
    """The name of the reason for programs."""

    @classmethod
    def because(
        cls,
        code: grpc.StatusCode,
        text: str,
        reason: "Reason.ValueType",
        *,
        retry_seconds: float | None = None,
        **facts: str,
    ) -> Self:
        """Return a refusal with its reason for programs (`proto.errors.details`)."""
        trailing = details(code, text, reason, retry_seconds=retry_seconds, **facts)
        return cls(code, text, trailing, Reason.Name(reason))


class Gate(Protocol):
    """Refuses calls that would wait too long, before anything but their headers is read."""

    methods: Mapping[str, bool]
    """The methods that it may refuse, /SERVICE/METHOD, and whether each of them is urgent."""

    @property
    def refusal(self) -> Refusal:
        """The status of the calls that it refuses now; mostly the same object."""

    def rooms(self, client: str) -> tuple[int, int] | None:
        """Return how many calls of a client may begin now; None: any number.

        The first number is for methods that are not urgent, the second for those that are.
        """

    @property
    def holds_back(self) -> bool:
        """Whether clients should send a call's message only once the call has passed."""

    def defer(self, answer: Callable[[], None]) -> bool:
        """Return whether `answer` will be called once the sockets were read, instead of now."""

    def passed(self, method: str, client: str) -> Callable[[], None] | None:
        """Count a call that has passed.

        Return what is to be called, if anything, once its message has come or it has ended without.
        """

    def ending(self, method: str) -> Refusal | None:
        """Return the status of a call that may not begin, since the server ends; None: it may."""

    def ended(self, method: str, refusal: Refusal, seconds: float) -> None:
        """Count a call that was ended `seconds` after its headers, since its message had not come."""

    def refused(self, method: str, client: str, count: int) -> None:
        """Count calls that were refused."""


class CheckedHandler(grpc.RpcMethodHandler):  # type: ignore[type-arg]  # it takes none when it runs
    """A handler `behind` a check of who calls.

    `refusal(context)` returns the status for a caller that may not call; None for others. nghttp2 asks
    it with a call's headers. gRPC's own server runs this handler, which checks when it is run.
    """

    def __init__(
        self,
        behind: Any,
        refusal: Callable[[Any], Refusal | None],
        checked: Callable[[Any, Any], Any],
    ) -> None:
        self.behind = behind
        self.refusal = refusal
        self.request_streaming = True
        self.response_streaming = behind.response_streaming
        self.request_deserializer = behind.request_deserializer
        self.response_serializer = behind.response_serializer
        self.unary_unary = self.unary_stream = None
        self.stream_unary = None if behind.response_streaming else checked
        self.stream_stream = checked if behind.response_streaming else None


class AtOnceHandler(grpc.RpcMethodHandler):  # type: ignore[type-arg]  # it takes none when it runs
    """The handler of a call with one message and one answer, which may need no coroutine.

    `at_once(message, context)` returns the answer; None if it would have to wait for anything, or fails.
    Then `run` is called, as it is by gRPC's own server for all calls. Both messages are bytes. A task
    and its coroutines cost more than most answers.
    """

    request_streaming = True
    response_streaming = False
    request_deserializer = response_serializer = None
    unary_unary = unary_stream = stream_stream = None

    def __init__(
        self,
        run: Callable[[Any, Any], Awaitable[bytes]],
        at_once: Callable[[bytes, Any], bytes | None],
    ) -> None:
        self.stream_unary = run
        self.at_once = at_once


def stands_before(
    handler: "grpc.RpcMethodHandler[Any, Any]", run: Callable[[Any, Any], Any]
) -> "grpc.RpcMethodHandler[Any, Any]":
    """Return `run`, which takes a stream of requests, with the answers and the coding of a handler."""
    kind: Any = grpc.stream_unary_rpc_method_handler
    if handler.response_streaming:
        kind = grpc.stream_stream_rpc_method_handler
    made: grpc.RpcMethodHandler[Any, Any] = kind(
        run, handler.request_deserializer, handler.response_serializer
    )
    return made


class Server(Protocol):
    """A gRPC server: `h2grpc.server`, or gRPC's own in `grpcio_server`.

    Handlers are asynchronous: coroutines, or asynchronous iterators.
    """

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Serve these methods, too; called before `start`."""

    async def start(self, address: str, tls: ServerTls | None = None) -> str:
        """Listen at host:port or unix:PATH; return the address with the port that was bound.

        Raises OSError if the address cannot be bound.
        """

    def go_away(self) -> int:
        """Tell clients to call no more on their connections (GOAWAY); return the number of those told.

        Calls in progress go on, and calls that come all the same are answered.
        """

    async def stop(self, grace: float) -> None:
        """Take no more calls; cut off those that have not ended after `grace` seconds."""
