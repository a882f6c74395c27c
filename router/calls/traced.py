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
    calls = _TracedCalls(tracer)
    return {
        name: Method(
            partial(calls.run, name[1:], method.run),
            method.at_once and partial(calls.at_once, name[1:], method.at_once),
        )
        for name, method in methods.items()
    }


class _TracedCalls:
    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._begun: WeakKeyDictionary[Call, Span] = WeakKeyDictionary()
        """The spans of calls that could not be answered at once, until they run."""

    def _span(self, name: str, call: Call) -> Span:
        of_rpc = {"rpc.system.name": "grpc", "rpc.method": name}
        return self._tracer.call(name, call.metadata, of_rpc)

    def at_once(
        self, name: str, answer: Callable[[bytes, Call], bytes | None], message: bytes, call: Call
    ) -> bytes | None:
        """Return an answer at once; a call that is sampled runs with its span instead."""
        span = self._span(name, call)
        if not span.is_sampled:
            answered = answer(message, call)
            if answered is not None:
                return answered
        self._begun[call] = span
        return None

    async def run(self, name: str, run: Callable[[Call], Awaitable[None]], call: Call) -> None:
        """Run a call within its span."""
        with self._begun.pop(call, None) or self._span(name, call) as span:
            try:
                await run(call)
            except RefusedError as error:
                span.ends_with(error.refusal.code.name)
                raise
            except asyncio.CancelledError:
                span.ends_with(grpc.StatusCode.CANCELLED.name)
                raise
            except Exception:
                span.ends_with(grpc.StatusCode.UNKNOWN.name)
                raise
            span.ends_with(grpc.StatusCode.OK.name)
