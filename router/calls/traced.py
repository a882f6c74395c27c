"""Spans of calls: each has one while its handler runs, from before it waits for its turn.

A stream is one call, and has one span to its end, as OpenTelemetry's conventions for RPC have it; each
of its messages has a span in that one.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import grpc
import grpc.aio

from warmpath.router.tracing.tracer import CallSpan, Tracer
from warmpath.router.transport.call import AtOnceHandler, stands_before

Context = grpc.aio.ServicerContext[Any, Any]

MOST_MESSAGES = 128
"""The most messages of a stream, its first, that have spans: a stream may last for days, and a trace
is kept and shown whole. The SDK keeps as many events of a span."""

Given = TypeVar("Given")


class TracedCalls(grpc.GenericRpcHandler):
    """Handlers of asyncio whose calls have spans.

    All methods are registered as streams (`router.calls.intake`).
    """

    def __init__(self, behind: grpc.GenericRpcHandler, tracer: Tracer) -> None:
        self._behind = behind
        self._tracer = tracer
        self._begun: WeakKeyDictionary[Context, CallSpan] = WeakKeyDictionary()
        """The spans of calls that could not be answered at once, until they run."""

    def service(self, details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any] | None":
        """Return a method's handler, with a span around each call; None if there is no such method."""
        handler: Any = self._behind.service(details)
        name = str(details.method).removeprefix("/")
        if handler is None:
            return None
        run = partial(self._run, name, handler.stream_stream or handler.stream_unary)
        if isinstance(handler, AtOnceHandler):
            return AtOnceHandler(run, partial(self._at_once, name, handler))
        return stands_before(handler, run)

    def _span(self, name: str, context: Context) -> CallSpan:
        of_rpc = {"rpc.system.name": "grpc", "rpc.method": name}
        return self._tracer.call(name, context.invocation_metadata() or (), of_rpc)

    def _at_once(
        self, name: str, handler: AtOnceHandler, message: bytes, context: Context
    ) -> bytes | None:
        """Return an answer, as its handler does; a call that is sampled runs with its span instead."""
        span = self._span(name, context)
        if not span.is_sampled:
            answer = handler.at_once(message, context)
            if answer is not None:
                return answer
        self._begun[context] = span
        return None

    async def _run(self, name: str, answer: Any, requests: Any, context: Context) -> Any:
        # gRPC's own contexts cannot be looked up, and none of them is kept.
        begun = self._begun.pop(context, None) if self._begun else None
        with begun or self._span(name, context) as span:
            try:
                answered = await answer(requests, context)
            except grpc.aio.AbortError:
                span.ends_with(_name_of(context.code()))
                raise
            except asyncio.CancelledError:
                span.ends_with(grpc.StatusCode.CANCELLED.name)
                raise
            except Exception:
                span.ends_with(grpc.StatusCode.UNKNOWN.name)
                raise
            span.ends_with(grpc.StatusCode.OK.name)
            return answered


def traced_messages(
    answer: Callable[[Given], Awaitable[asyncio.Task[None] | None]], tracer: Tracer
) -> Callable[[Given], Awaitable[asyncio.Task[None] | None]]:
    """Return a function that answers a stream's messages as `answer` does, each with its span.

    `answer` returns the task that answers the message, if it is not answered yet.
    """
    count = 0

    async def traced(message: Given) -> asyncio.Task[None] | None:
        nonlocal count
        count += 1
        tracer.note({"warmpath.messages": count})
        span = tracer.message(is_told=count <= MOST_MESSAGES)
        task = None
        try:
            # A task begins in the context in which it is made.
            with span.active():
                task = await answer(message)
        finally:
            if task is None:
                span.end()
            else:
                task.add_done_callback(lambda _: span.end())
        return task

    return traced


def _name_of(code: Any) -> str:
    """Return the name of a status: gRPC's library gives its number, our own transport the status."""
    if isinstance(code, grpc.StatusCode):
        return code.name
    return next((one.name for one in grpc.StatusCode if one.value[0] == code), "UNKNOWN")
