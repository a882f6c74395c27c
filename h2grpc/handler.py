"""Finds the handler of a call and runs it: any of gRPC's four kinds, as a coroutine or an iterator."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from warmpath.h2grpc.call import Call
from warmpath.h2grpc.metadata import Metadata
from warmpath.proto.errors import Reason, details

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Details(grpc.HandlerCallDetails):
    """The method and metadata of the call, by which gRPC's handlers are found."""

    method: str
    invocation_metadata: Metadata


def find(handlers: Sequence[grpc.GenericRpcHandler], method: str, metadata: Metadata) -> Any:
    """Return the handler of a method; None if there is none."""
    details = Details(method, metadata)
    for handler in handlers:
        found = handler.service(details)
        if found is not None:
            return found
    return None


async def run(call: Call) -> None:
    """Run a call's handler to its end, and end the call with its status; raises nothing."""
    handler = call.handler
    if handler.response_serializer:
        call.serialize = handler.response_serializer
    if handler.request_deserializer:
        call.deserialize = handler.request_deserializer
    try:
        if handler.request_streaming:
            function = handler.stream_stream if handler.response_streaming else handler.stream_unary
            asked = call.messages()
        else:
            function = handler.unary_stream if handler.response_streaming else handler.unary_unary
            asked = await call.read()
            if asked is grpc.aio.EOF:
                code, text = grpc.StatusCode.INTERNAL, "the call has no message"
                await call.abort(code, text, details(code, text, Reason.BAD_CALL))
        answer = function(asked, call)
        if not handler.response_streaming:
            call.finish(call.serialize(await answer))
        elif hasattr(answer, "__aiter__"):
            async for message in answer:
                await call.write(message)
            call.end()
        else:
            await answer
            call.end()
    except grpc.aio.AbortError:
        # `abort` has ended the call.
        pass
    except asyncio.CancelledError:
        call.end(grpc.StatusCode.CANCELLED, "the call was cancelled")
    except Exception as error:
        if not call.cancelled():
            log.exception("%s: unexpected", call.method)
        # The same text as that of gRPC's own server.
        call.end(grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}")
