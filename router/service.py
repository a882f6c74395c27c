"""The gRPC service: answers at the edge of the network, and our errors as statuses."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from typing import Any, Protocol, TypeVar, cast

import grpc
import grpc.aio

from prefixstore.pool import PoolClosedError, PoolFullError
from router.answer import Answerer, NoPodError
from router.body import BadPromptError
from router.models import UnknownModelError
from router.pb.warmpath.v1 import router_pb2 as pb
from router.pb.warmpath.v1 import router_pb2_grpc

Reply = TypeVar("Reply")

STATUSES: dict[type[Exception], grpc.StatusCode] = {
    BadPromptError: grpc.StatusCode.INVALID_ARGUMENT,
    UnknownModelError: grpc.StatusCode.NOT_FOUND,
    NoPodError: grpc.StatusCode.UNAVAILABLE,
    PoolFullError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    PoolClosedError: grpc.StatusCode.UNAVAILABLE,
}

STREAM_WIDTH = 64
"""Requests of one stream that are worked on at once."""

REPLY_SECONDS = 0.01
"""What is left of the caller's deadline for everything but waiting for the tokenizer."""


class Meter(Protocol):
    """What the service measures."""

    def answered(self, method: str, code: str, seconds: float) -> None:
        """Take note of one answer."""

    def scored(self, prompt_tokens: int, matched_tokens: int) -> None:
        """Take note of one scored prompt and the most that any pod holds of it."""


class RouterService(router_pb2_grpc.RouterServicer):
    """Serves `warmpath.v1.Router`.

    `tokenize_seconds` bounds the wait for the tokenizer where the caller's deadline does not.
    """

    def __init__(self, answerer: Answerer, meter: Meter, *, tokenize_seconds: float) -> None:
        self._answerer = answerer
        self._meter = meter
        self._tokenize_seconds = tokenize_seconds

    async def Score(  # noqa: N802  the contract's name
        self, request: pb.ScoreRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.ScoreResponse:
        """Answer Score."""
        answer = self._score(request, self._timeout(context))
        return await self._answer("Score", answer, context)

    async def ScoreStream(  # noqa: N802  the contract's name
        self,
        request_iterator: AsyncIterator[pb.ScoreRequest],
        context: grpc.aio.ServicerContext[Any, Any],  # noqa: ARG002  gRPC passes it
    ) -> AsyncIterator[pb.ScoreStreamResponse]:
        """Answer a stream of Scores as each is done."""
        replies: asyncio.Queue[pb.ScoreStreamResponse | None] = asyncio.Queue()
        width = asyncio.Semaphore(STREAM_WIDTH)

        async def one(request: pb.ScoreRequest) -> None:
            replies.put_nowait(await self._stream_reply(request))

        async def read() -> None:
            try:
                async with asyncio.TaskGroup() as tasks:
                    async for request in request_iterator:
                        await width.acquire()
                        tasks.create_task(one(request))
            finally:
                replies.put_nowait(None)

        reading = asyncio.create_task(read())
        try:
            while (reply := await replies.get()) is not None:
                yield reply
                width.release()
            await reading
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _stream_reply(self, request: pb.ScoreRequest) -> pb.ScoreStreamResponse:
        begun = time.perf_counter()
        reply = pb.ScoreStreamResponse(request_id=request.request_id)
        code = grpc.StatusCode.OK
        try:
            reply.response.CopyFrom(await self._score(request, self._tokenize_seconds))
        except Exception as error:
            if type(error) not in STATUSES:
                raise
            code = STATUSES[type(error)]
            reply.error.CopyFrom(pb.RequestError(code=code.value[0], message=str(error)))
        self._meter.answered("ScoreStream", code.name, time.perf_counter() - begun)
        return reply

    async def Pick(  # noqa: N802  the contract's name
        self, request: pb.PickRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.PickResponse:
        """Answer Pick."""
        answer = self._answerer.pick(request, self._timeout(context))
        return await self._answer("Pick", answer, context)

    async def Report(  # noqa: N802  the contract's name
        self, request: pb.ReportRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.ReportResponse:
        """Answer Report."""

        async def answer() -> pb.ReportResponse:
            return self._answerer.report(request)

        return await self._answer("Report", answer(), context)

    async def Explain(  # noqa: N802  the contract's name
        self,
        request: pb.ExplainRequest,  # noqa: ARG002  not served yet
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> pb.ExplainResponse:
        """Refuse: Explain is not served yet."""
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Explain is not served yet")

    async def ListPods(  # noqa: N802  the contract's name
        self, request: pb.ListPodsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.ListPodsResponse:
        """Answer ListPods."""

        async def answer() -> pb.ListPodsResponse:
            return self._answerer.list_pods(request)

        return await self._answer("ListPods", answer(), context)

    async def _score(self, request: pb.ScoreRequest, timeout: float) -> pb.ScoreResponse:
        response = await self._answerer.score(request, timeout)
        most = max((score.matched_tokens for score in response.scores), default=0)
        self._meter.scored(response.prompt_tokens, most)
        return response

    async def _answer(
        self,
        method: str,
        answer: Awaitable[Reply],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> Reply:
        begun = time.perf_counter()
        try:
            reply = await answer
        except Exception as error:
            code = STATUSES.get(type(error))
            name = (code or grpc.StatusCode.INTERNAL).name
            self._meter.answered(method, name, time.perf_counter() - begun)
            if code is None:
                raise
            await context.abort(code, str(error))
        else:
            self._meter.answered(method, "OK", time.perf_counter() - begun)
            return reply

    def _timeout(self, context: grpc.aio.ServicerContext[Any, Any]) -> float:
        """Return how many seconds the tokenizer may take."""
        # Without a deadline there is none left; the stubs do not say so.
        left = cast("float | None", context.time_remaining())
        if left is None:
            return self._tokenize_seconds
        return max(0.0, min(self._tokenize_seconds, left - REPLY_SECONDS))
