"""Refuses calls of gRPC, before their message is read, to callers without the role.

It stands before any handlers and on any transport that offers `invocation_metadata`, `auth_context`,
`abort` and `read` of a call's context.
"""

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Protocol

import grpc
import grpc.aio

from warmpath.process.certificates import names
from warmpath.proto.errors import Reason, details
from warmpath.router.access.callers import Callers, RefusalKind
from warmpath.router.access.roles import is_open
from warmpath.router.transport.call import CheckedHandler, Refusal

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]

CODES = {
    RefusalKind.UNKNOWN: (grpc.StatusCode.UNAUTHENTICATED, Reason.UNKNOWN_CALLER),
    RefusalKind.ROLE: (grpc.StatusCode.PERMISSION_DENIED, Reason.NO_ROLE),
}
HEADER = "authorization"


class KeptOutMeter(Protocol):
    """Counts refusals."""

    def kept_out(self, asked: str, why: str) -> None:
        """Count one refusal of a method or path."""


class Guard(grpc.GenericRpcHandler):
    """Handlers behind a check of who calls. The handlers of a method are asyncio's, of any kind."""

    def __init__(
        self, behind: grpc.GenericRpcHandler, callers: Callers, counts: KeptOutMeter
    ) -> None:
        self._behind = behind
        self._callers = callers
        self._counts = counts

    def service(self, details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any] | None":
        """Return a method's handler with the check before it; None if there is no such method."""
        handler = self._behind.service(details)
        method = str(details.method)
        if handler is None or is_open(method):
            return handler
        answer: Any = _answering(handler)

        # Where a request is one message, gRPC's library would read it before it calls. On the wire it is
        # a stream of one message, which is read when the handler asks for it.
        async def checked(requests: AsyncIterator[Any], context: Context) -> Any:
            if (refusal := self._refusal(method, context)) is not None:
                await context.abort(refusal.code, refusal.text, refusal.metadata)
            return await answer(requests, context)

        return CheckedHandler(handler, partial(self._refusal, method), checked)

    def _refusal(self, method: str, context: Context) -> Refusal | None:
        """Return the status for a caller without the role, which is counted; None for others."""
        refusal = self._callers.refusal(method, *shown_by(context))
        if refusal is None:
            return None
        short = method.rpartition("/")[2]
        self._counts.kept_out(short, refusal.why.value)
        log.warning("%s: refused to %s: %s", short, context.peer(), refusal.text)
        code, reason = CODES[refusal.why]
        return Refusal.because(code, refusal.text, reason)


def shown_by(context: Context) -> tuple[list[str], Iterable[str]]:
    """Return a caller's authorization headers, and the names in its certificate."""
    shown = context.invocation_metadata() or ()
    headers = [str(value) for key, value in shown if key == HEADER]
    return headers, names(context.auth_context())


def _answering(
    handler: "grpc.RpcMethodHandler[Any, Any]",
) -> Callable[[AsyncIterator[Any], Context], Awaitable[Any]]:
    """Return a handler of any kind as one that takes a stream of requests."""
    kinds: Any = handler
    streams = kinds.stream_stream if handler.response_streaming else kinds.stream_unary
    takes_one = kinds.unary_stream if handler.response_streaming else kinds.unary_unary

    async def answer(requests: AsyncIterator[Any], context: Context) -> Any:
        if handler.request_streaming:
            return await _ended(streams(requests, context), context)
        request = await context.read()
        if request is grpc.aio.EOF:
            code, text = grpc.StatusCode.INVALID_ARGUMENT, "the call has no message"
            await context.abort(code, text, details(code, text, Reason.BAD_CALL))
        return await _ended(takes_one(request, context), context)

    return answer


async def _ended(answer: Any, context: Context) -> Any:
    """Return a handler's answer, or write the answers that it yields."""
    if not inspect.isasyncgen(answer):
        return await answer
    async for one in answer:
        await context.write(one)
    return None
