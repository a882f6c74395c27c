"""A router whose answers and refusals a test writes down, and both clients in one form."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Self

import grpc
import grpc.aio
from google.protobuf.message import Message

from warmpath.client.async_client import AsyncClient
from warmpath.client.connection import StreamAnswer
from warmpath.client.sync_client import Client
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.wire.v1 import status_details_pb2 as wire

SERVICE = pb.DESCRIPTOR.services_by_name["Router"]


@dataclass(frozen=True)
class Refuse:
    """A status that ends a call."""

    code: grpc.StatusCode
    text: str = "refused"
    trailing: tuple[tuple[str, str | bytes], ...] = ()


def with_reason(code: grpc.StatusCode, reason: str) -> Refuse:
    info = wire.ErrorInfo(reason=reason, domain="warmpath")
    detail = wire.Detail(
        type_url="type.googleapis.com/google.rpc.ErrorInfo", value=info.SerializeToString()
    )
    status = wire.Status(code=code.value[0], details=[detail])
    return Refuse(code, trailing=(("grpc-status-details-bin", status.SerializeToString()),))


@dataclass
class ScriptedRouter:
    """Ends each call as the next line of its script says; where it has none left, an empty answer."""

    script: deque[Message | Refuse] = field(default_factory=deque)
    asked: list[tuple[str, Any]] = field(default_factory=list)
    metadata: list[dict[str, Any]] = field(default_factory=list)
    address: str = ""
    hangs: bool = False
    gate: asyncio.Event | None = None
    """Calls wait for it, if there is one."""
    only: str = ""
    """The method that the script is for; empty: all of them."""
    is_old: bool = False
    """Whether it is of a version that passes over further reports of a call."""

    @property
    def methods(self) -> list[str]:
        return [method for method, _ in self.asked]

    def handlers(self) -> grpc.GenericRpcHandler:
        made: dict[str, Any] = {}
        for method in SERVICE.methods:
            request = getattr(pb, method.input_type.name)
            kind = grpc.unary_unary_rpc_method_handler
            answer: Callable[..., Any] = self._answering(
                method.name, getattr(pb, method.output_type.name)
            )
            if method.client_streaming:
                kind, answer = grpc.stream_stream_rpc_method_handler, self._stream
            made[method.name] = kind(
                answer, request.FromString, lambda one: one.SerializeToString()
            )
        return grpc.method_handlers_generic_handler(SERVICE.full_name, made)

    def _answering(self, name: str, reply: type[Message]) -> Callable[..., Any]:
        async def answer(request: Message, context: grpc.aio.ServicerContext[Any, Any]) -> Message:
            self.asked.append((name, request))
            self.metadata.append(dict(context.invocation_metadata() or ()))
            if self.hangs:
                await asyncio.Event().wait()
            if self.gate is not None:
                await self.gate.wait()
            is_scripted = self.script and self.only in ("", name)
            line = self.script.popleft() if is_scripted else reply()
            if isinstance(line, Refuse):
                await context.abort(line.code, line.text, line.trailing)
            assert isinstance(line, Message)
            if isinstance(line, pb.ReportResponse) and not self.is_old:
                also = len(request.also)  # type: ignore[attr-defined]
                return pb.ReportResponse(known=line.known, also_known=[line.known] * also)
            return line

        return answer

    def reports(self) -> list[pb.Report]:
        """Return the reports that it has carried out, the repeated ones of a call's attempts once."""
        calls = [request for method, request in self.asked if method == "Report"]
        return [
            pb.Report.FromString(one.SerializeToString())
            for call, _ in groupby(calls)
            for one in (
                pb.ReportRequest(
                    **{
                        field.name: value
                        for field, value in call.ListFields()
                        if field.name != "also"
                    }
                ),
                *(() if self.is_old else call.also),
            )
        ]

    async def _stream(
        self, requests: AsyncIterator[pb.ScoreRequest], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.ScoreStreamResponse]:
        """StreamAnswer pairs of requests, the later one first."""
        self.metadata.append(dict(context.invocation_metadata() or ()))
        waiting: list[pb.ScoreRequest] = []
        async for request in requests:
            self.asked.append(("ScoreStream", request))
            if self.script:
                line = self.script.popleft()
                assert isinstance(line, Refuse)
                await context.abort(line.code, line.text, line.trailing)
            waiting.append(request)
            if len(waiting) == 2:
                for one in waiting[::-1]:
                    yield _streamed(one)
                waiting.clear()
        for one in waiting:
            yield _streamed(one)


def _streamed(request: pb.ScoreRequest) -> pb.ScoreStreamResponse:
    if not request.prompt.token_ids_packed:
        error = pb.RequestError(
            code=grpc.StatusCode.INVALID_ARGUMENT.value[0],
            message="no ids",
            reason=pb.RequestError.BAD_REQUEST,
        )
        return pb.ScoreStreamResponse(request_id=request.request_id, error=error)
    tokens = len(request.prompt.token_ids_packed) // 4
    response = pb.ScoreResponse(prompt_tokens=tokens, request_id=request.request_id)
    return pb.ScoreStreamResponse(request_id=request.request_id, response=response)


@asynccontextmanager
async def scripted() -> AsyncIterator[ScriptedRouter]:
    router = ScriptedRouter()
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((router.handlers(),))
    router.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield router
    finally:
        await server.stop(None)


class Threaded:
    """The blocking client in a thread, so that a test can await it like the other one."""

    def __init__(self, target: str, **settings: Any) -> None:
        self.client = Client(target, **settings)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.client, name)

        async def call(*args: Any, **more: Any) -> Any:
            return await asyncio.to_thread(method, *args, **more)

        return call

    async def score_stream(self, *args: Any, **more: Any) -> AsyncIterator[StreamAnswer]:
        replies = self.client.score_stream(*args, **more)
        while (answer := await asyncio.to_thread(next, replies, None)) is not None:
            yield answer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.client.close()


CLIENTS: dict[str, type[Any]] = {"blocking": Threaded, "asyncio": AsyncClient}
