"""Spans of calls: each has one while its handler runs, from before it waits for its turn.

A stream is one call, and has one span to its end, as OpenTelemetry's conventions for RPC have it; each
of its messages has a span in that one (`router.calls.service`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from weakref import WeakKeyDictionary

import grpc

from warmpath.h2grpc.method import Method, RefusedError
from warmpath.router.tracing.tracer import Span, Tracer
from warmpath.router.transport.call import Call


def traced_methods(methods: Mapping[str, Method], tracer: Tracer) -> dict[str, Method]:
    """Return methods, by their names /SERVICE/METHOD, whose calls have spans."""
    begun: WeakKeyDictionary[Call, Span] = WeakKeyDictionary()
    """The spans of calls that could not be answered at once, until they run."""

    def span_of(name: str, call: Call) -> Span:
        of_rpc = {"rpc.system.name": "grpc", "rpc.method": name}
        return tracer.call(name, call.metadata, of_rpc)

    def at_once(
        name: str, answer: Callable[[bytes, Call], bytes | None], message: bytes, call: Call
    ) -> bytes | None:
        """Return an answer at once; a call that is sampled runs with its span instead."""
        span = span_of(name, call)
        if not span.is_sampled:
            answered = answer(message, call)
            if answered is not None:
                return answered
        begun[call] = span
        return None

    async def traced(name: str, run: Callable[[Call], Awaitable[None]], call: Call) -> None:
        with begun.pop(call, None) or span_of(name, call) as span:
            code = grpc.StatusCode.UNKNOWN
            try:
                await run(call)
                code = grpc.StatusCode.OK
            except RefusedError as error:
                code = error.refusal.code
                raise
            except asyncio.CancelledError:
                code = grpc.StatusCode.CANCELLED
                raise
            finally:
                span.ends_with(code.name)

    return {
        name: Method(
            partial(traced, name[1:], method.run),
            method.at_once and partial(at_once, name[1:], method.at_once),
        )
        for name, method in methods.items()
    }
