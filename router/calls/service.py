"""The gRPC service: answers calls and maps errors to status codes."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.wire.v1 import score_request_pb2 as wire
from warmpath.router.admission.admission import Admission
from warmpath.router.admission.gate import AdmissionGate
from warmpath.router.calls.answering import AnswerCounts, Answering, log_fault
from warmpath.router.calls.failures import failure_of, reason_of, refusal_of, text_of
from warmpath.router.calls.intake import Intake, RefusedError, too_busy
from warmpath.router.calls.parse import parse
from warmpath.router.calls.pick import PickAnswerer
from warmpath.router.calls.score import Answerer
from warmpath.router.calls.score_reply import stream_reply
from warmpath.router.calls.traced import traced_messages
from warmpath.router.ending import Drain, EndingError
from warmpath.router.prompt.bad_request import BadRequestError
from warmpath.router.prompt.plain import cut_prompt
from warmpath.router.queue.request import Asker
from warmpath.router.tracing.steps import request_id_of
from warmpath.router.tracing.tracer import NO_TRACER, Tracer
from warmpath.router.transport.call import Gate

SERVICE = pb.DESCRIPTOR.services_by_name["Router"]

URGENT = frozenset({"Report"})
"""Methods that take microseconds, and without which later answers are worse."""

NOTHING_MORE = wire.ScoreRequest()
"""What most requests have beside their prompt."""
STREAM_WIDTH = 64
"""Most requests of one stream that are answered concurrently."""

Context = grpc.aio.ServicerContext[Any, Any]

REPLY_SECONDS = 0.01
"""Part of the caller's deadline that is reserved for computing and sending the answer."""


class RouterService:
    """Serves `warmpath.v1.Router`.

    `tokenize_seconds` bounds the wait for the tokenizer, as does the caller's deadline. `drain` refuses
    calls while the router ends; `intake` decides when a call's message is read.
    """

    def __init__(
        self,
        answerer: Answerer,
        picks: PickAnswerer,
        meter: AnswerCounts,
        drain: Drain,
        intake: Intake,
        *,
        tokenize_seconds: float,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        self._answerer = answerer
        self._picks = picks
        self._meter = meter
        self._drain = drain
        self._intake = intake
        self.tokenize_seconds = tokenize_seconds
        self._tracer = tracer

    async def Score(  # noqa: N802  the contract's name
        self, request: bytes, context: grpc.aio.ServicerContext[Any, Any]
    ) -> bytes:
        """Answer Score; both messages are bytes (`proto/warmpath/wire`, `router.calls.score_reply`)."""
        with Answering("Score", self._drain, self._meter):
            left = _left(context)
            plain, rest = cut_prompt(request) or (None, request)
            asked = await parse(wire.ScoreRequest, rest) if rest else NOTHING_MORE
            if plain and asked.HasField("prompt"):
                # Protobuf merges the two.
                plain, asked = None, await parse(wire.ScoreRequest, request)
            timeout = min(self.tokenize_seconds, left)
            scored = await self._answerer.score(asked, timeout, left, plain)
            self._meter.scored(scored.prompt_tokens, scored.most)
            return scored.response

    def score_at_once(self, request: bytes) -> bytes | None:
        """Answer Score if nothing has to be awaited and it succeeds; the result is None otherwise."""
        found = self._scored_at_once("Score", request)
        return None if found is None else found[0]

    def _scored_at_once(self, method: str, request: bytes) -> tuple[bytes, int] | None:
        """Return a ScoreResponse and the id of its request, as `score_at_once` does."""
        begun = time.perf_counter()
        try:
            self._drain.begin()
        except EndingError:
            return None
        try:
            plain, rest = cut_prompt(request) or (None, b"")
            if plain is None:
                return None
            asked = wire.ScoreRequest.FromString(rest) if rest else NOTHING_MORE
            scored = self._answerer.score_at_once(asked, plain)
        except Exception:  # noqa: BLE001  the slower way fails, too, and answers with the error
            return None
        finally:
            self._drain.end()
        if scored is None:
            return None
        self._meter.scored(scored.prompt_tokens, scored.most)
        self._meter.answered(method, "OK", time.perf_counter() - begun)
        return scored.response, asked.request_id

    async def ScoreStream(  # noqa: N802  the contract's name
        self, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        """Answer each Score of a stream as soon as it is ready; all messages are bytes."""
        width = asyncio.Semaphore(STREAM_WIDTH)
        writing = asyncio.Lock()

        async def write(message: bytes) -> None:
            async with writing:
                await _write(context, message)

        async def reply(request: wire.ScoreRequest) -> None:
            await write(await self._stream_reply(request))

        async def task_of(raw: bytes) -> asyncio.Task[None] | None:
            """Answer a message, or return the task that does."""
            found = self._scored_at_once("ScoreStream", raw)
            if found is not None:
                response, request_id = found
                await write(stream_reply(request_id, response))
                return None
            try:
                request = await parse(wire.ScoreRequest, raw)
            except BadRequestError as error:
                await write(self._refusal(0, error, 0.0))
                return None
            if not self._answerer.waits(request):
                await reply(request)
                return None
            await width.acquire()
            task = tasks.create_task(reply(request))
            # The task cannot do this: if it is cancelled before it begins, none of its code runs.
            task.add_done_callback(lambda _: width.release())
            return task

        answer = traced_messages(task_of, self._tracer) if self._tracer.is_on else task_of
        ending: Exception | None = None
        async with (
            asyncio.TaskGroup() as tasks,
            aclosing(self._intake.messages(context)) as messages,
        ):
            try:
                async for raw, done in self._drain.each(messages):
                    task = None
                    try:
                        task = await answer(raw)
                    finally:
                        if task is None:
                            done()
                        else:
                            task.add_done_callback(partial(_call, done))
            except EndingError as error:
                ending = RefusedError(refusal_of(error))
            except (RefusedError, grpc.aio.AbortError) as error:
                # A group of tasks would hide it in a group of errors.
                ending = error
        if ending is not None:
            raise ending

    async def Pick(  # noqa: N802  the contract's name
        self, request: bytes, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        """Answer Pick; both messages are bytes.

        Pick is registered as a stream of one message, the same on the wire, because gRPC's library
        reports only for streams whether a message could be written.
        """
        with Answering("Pick", self._drain, self._meter):
            left = _left(context)
            timeout = min(self.tokenize_seconds, left)
            asked = await parse(pb.PickRequest, request)
            named = request_id_of(context.invocation_metadata() or ())
            asker = Asker(context.peer(), context, named)
            made = await self._picks.pick(asked, timeout, left, asker=asker)
            with self._picks.telling(made, context):
                response = await self._picks.response(made)
                await _write(context, response.SerializeToString())

    async def _stream_reply(self, request: wire.ScoreRequest) -> bytes:
        begun = time.perf_counter()
        try:
            scored = await self._answerer.score(request, self.tokenize_seconds)
        except Exception as error:  # noqa: BLE001  the request's error, not the stream's
            log_fault("ScoreStream", error)
            return self._refusal(request.request_id, error, time.perf_counter() - begun)
        self._meter.scored(scored.prompt_tokens, scored.most)
        self._meter.answered("ScoreStream", "OK", time.perf_counter() - begun)
        return stream_reply(request.request_id, scored.response)

    def _refusal(self, request_id: int, error: Exception, seconds: float) -> bytes:
        code, reason, _ = failure_of(error)
        self._meter.answered("ScoreStream", code.name, seconds, reason_of(error))
        self._tracer.ends_with(code.name)
        refused = pb.RequestError(code=code.value[0], message=text_of(error), reason=reason)
        return pb.ScoreStreamResponse(request_id=request_id, error=refused).SerializeToString()

    def unary(
        self,
        method: MethodDescriptor,
        answer: Callable[[Any, float, float], Awaitable[Message] | Message],
    ) -> "grpc.RpcMethodHandler[bytes, bytes]":
        """Return the handler of a unary method, of this service or of one beside it.

        `answer` takes the request, the seconds for the tokenizer, and the seconds for all waits.
        """
        asked = GetMessageClass(method.input_type)

        async def reply(request: bytes, timeout: float, patience: float) -> bytes:
            answered = answer(await parse(asked, request), timeout, patience)
            return (
                answered if isinstance(answered, Message) else await answered
            ).SerializeToString()

        return self.raw(method.name, reply)

    def raw(
        self, name: str, answer: Callable[[bytes, float, float], Awaitable[bytes]]
    ) -> "grpc.RpcMethodHandler[bytes, bytes]":
        """Return the handler of a unary call whose messages are bytes; `answer` is as for `unary`."""

        async def handle(request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
            with Answering(name, self._drain, self._meter):
                left = _left(context)
                return await answer(request, min(self.tokenize_seconds, left), left)

        return self._intake.unary(name, handle, is_urgent=name in URGENT)

    def _unary(
        self, name: str, answer: Callable[[Any, float, float], Awaitable[Message] | Message]
    ) -> "grpc.RpcMethodHandler[bytes, bytes]":
        return self.unary(SERVICE.methods_by_name[name], answer)

    def gate(self, admission: Admission, *beside: ServiceDescriptor) -> Gate:
        """Return the gate of this service and those `beside` it."""
        return AdmissionGate(
            admission,
            (SERVICE, *beside),
            URGENT,
            too_busy,
            self._meter,
            drain=self._drain,
            at_end=refusal_of(EndingError()),
        )

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the handlers of all methods; requests and answers are bytes."""
        return grpc.method_handlers_generic_handler(SERVICE.full_name, self.methods())

    def methods(self) -> dict[str, Any]:
        """Return the handler of each method by name."""
        picks = self._picks
        return {
            "Score": self._intake.unary("Score", self.Score, at_once=self.score_at_once),
            "ScoreStream": self._intake.streams(self.ScoreStream),
            "Pick": self._intake.written("Pick", self.Pick),
            "Report": self._unary("Report", lambda request, *_: picks.reports.report(request)),
            "Explain": self._unary("Explain", picks.explain),
            "ListDecisions": self._unary(
                "ListDecisions", lambda request, *_: picks.list_decisions(request)
            ),
            "Diagnose": self._unary("Diagnose", lambda request, *_: picks.diagnose(request)),
            "ListPods": self._unary(
                "ListPods", lambda request, *_: self._answerer.list_pods(request)
            ),
        }


def _call(done: Callable[[], None], _: object) -> None:
    done()


async def _write(context: Context, message: bytes) -> None:
    """Write a message. Raises CancelledError if the call has ended."""
    try:
        await context.write(message)
    except grpc.aio.InternalError as error:
        raise asyncio.CancelledError("the call has ended") from error


def _left(context: Context) -> float:
    """Return how many seconds an answer may wait for a tokenizer or Redis."""
    # Without a deadline gRPC returns None, which the stubs do not declare.
    left: float | None = context.time_remaining()
    return math.inf if left is None else max(0.0, left - REPLY_SECONDS)
