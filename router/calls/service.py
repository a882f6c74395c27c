"""The gRPC service: answers calls and maps errors to status codes."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from warmpath.h2grpc.method import Method, Refusal, RefusedError
from warmpath.process.loop import turn_after
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.wire.v1 import score_request_pb2 as wire
from warmpath.router.admission.admission import Admission
from warmpath.router.calls.failures import (
    Answering,
    counted_refusal,
    failure_of,
    log_fault,
    reason_of,
    refusal_of,
    text_of,
)
from warmpath.router.calls.intake import Intake, too_busy
from warmpath.router.calls.parse import parse, parsed
from warmpath.router.calls.pick import PickAnswerer
from warmpath.router.calls.replies import stream_reply
from warmpath.router.calls.score import Answerer, Scored
from warmpath.router.ending import Drain, EndingError
from warmpath.router.metrics.calls import Metrics
from warmpath.router.pick.eligible import NoPodError
from warmpath.router.prompt.limits import BadRequestError
from warmpath.router.prompt.plain import PlainPrompt, cut_prompt
from warmpath.router.queue.request import Asker
from warmpath.router.tracing.steps import NO_SPAN, NO_TRACER, Span, Tracer, request_id_of
from warmpath.router.transport.call import Call

SERVICE = pb.DESCRIPTOR.services_by_name["Router"]

URGENT = frozenset({"Report"})
"""Methods that take microseconds, and without which later answers are worse."""

MOST_PICK_BYTES = 16 << 10
"""Bytes of a client's window that the answer to a pick surely leaves unused."""
MOST_REPORT_BYTES = 1024
"""Most bytes of a Report that is answered at once: it has no prompt, and some twenty reports."""
STREAM_WIDTH = 64
"""Most requests of one stream that are answered concurrently."""
MOST_MESSAGES = 128
"""The most messages of a stream, its first, that have spans: a stream may last for days, and a trace
is kept and shown whole. The SDK keeps as many events of a span."""

Asked = TypeVar("Asked", wire.ScoreRequest, pb.PickRequest)

Answer = Callable[[bytes, float], Awaitable[bytes]]
"""Answers a message, given the seconds until the caller's deadline. Raises RefusedError."""

AtOnce = Callable[[bytes, Call], bytes | None]
"""Answers a call's only message; the result is None if anything has to be awaited."""

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
        meter: Metrics,
        drain: Drain,
        intake: Intake,
        *,
        tokenize_seconds: float,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        self.answerer = answerer
        self.picks = picks
        self._meter = meter
        self.drain = drain
        self.intake = intake
        self.tokenize_seconds = tokenize_seconds
        self._tracer = tracer

    async def _score(self, request: bytes, timeout: float, patience: float) -> bytes:
        """Answer Score; both messages are bytes (`proto/warmpath/wire`, `router.calls.replies`)."""
        cut = _cut(wire.ScoreRequest, request)
        asked, plain = cut or (await parse(wire.ScoreRequest, request), None)
        return self._counted(await self.answerer.score(asked, timeout, patience, plain))

    def _counted(self, scored: Scored) -> bytes:
        self._meter.scored(scored.prompt_tokens, scored.most)
        return scored.response

    def score_at_once(self, request: bytes, call: Call) -> bytes | None:  # noqa: ARG002
        """Answer Score; the result is None if anything has to be awaited."""
        cut = _cut(wire.ScoreRequest, request)
        scored = None if cut is None else self.answerer.score_at_once(*cut)
        return None if scored is None else self._counted(scored)

    def pick_at_once(self, request: bytes, call: Call) -> bytes | None:
        """Answer Pick; the result is None if anything has to be awaited, and nothing is booked then."""
        # Whether the answer to a client that does not take it now is ever sent must be awaited.
        cut = _cut(pb.PickRequest, request) if call.window >= MOST_PICK_BYTES else None
        if cut is None:
            return None
        pick = self.picks.pick_at_once(*cut, request_id_of(call.metadata))
        if pick is None:
            return None
        with self.picks.telling(pick, call):
            return self.picks.response(pick)

    def report_at_once(self, request: bytes, call: Call) -> bytes | None:  # noqa: ARG002
        """Answer Report; the result is None if it has loads or a prompt."""
        if len(request) > MOST_REPORT_BYTES:
            return None
        asked = parsed(pb.ReportRequest, request)
        answer = self.picks.reports.report_at_once(asked)
        if answer is not None:
            self._meter.reported(len(asked.also))
        return answer

    async def _report(
        self, request: pb.ReportRequest, timeout: float, patience: float
    ) -> pb.ReportResponse:
        answer = await self.picks.report(request, timeout, patience)
        self._meter.reported(len(request.also))
        return answer

    async def score_stream(self, call: Call) -> None:
        """Answer each Score of a stream as soon as it is ready; all messages are bytes."""
        count, width = 0, asyncio.Semaphore(STREAM_WIDTH)
        writing = asyncio.Lock()

        async def write(message: bytes) -> None:
            async with writing:
                await call.write(message)

        async def reply(asked: wire.ScoreRequest, plain: PlainPrompt | None) -> None:
            await write(await self._stream_reply(asked, plain))

        async def task_of(raw: bytes) -> asyncio.Task[None] | None:
            """Answer a message, or return the task that does."""
            try:
                cut = _cut(wire.ScoreRequest, raw)
                asked, plain = cut or (await parse(wire.ScoreRequest, raw), None)
            except BadRequestError as error:
                await write(self._refusal(0, error, 0.0))
                return None
            if not self.answerer.waits(asked, plain):
                await reply(asked, plain)
                return None
            await width.acquire()
            task = tasks.create_task(reply(asked, plain))
            # The task cannot do this: if it is cancelled before it begins, none of its code runs.
            task.add_done_callback(lambda _: width.release())
            return task

        ending: Exception | None = None
        async with asyncio.TaskGroup() as tasks, aclosing(self.intake.messages(call)) as messages:
            try:
                async for raw, done in self.drain.each(messages):
                    span, task = NO_SPAN, None
                    if self._tracer.is_on:
                        count += 1
                        self._tracer.note({"warmpath.messages": count})
                        span = self._tracer.message(is_told=count <= MOST_MESSAGES)
                    try:
                        # A task begins in the context in which it is made.
                        with span.active():
                            task = await task_of(raw)
                    finally:
                        if task is None:
                            _end(span, done)
                        else:
                            task.add_done_callback(partial(_end, span, done))
            except EndingError as error:
                ending = RefusedError(refusal_of(error))
            except RefusedError as error:
                # A group of tasks would hide it in a group of errors.
                ending = error
        if ending is not None:
            raise ending

    async def pick(self, request: bytes, call: Call) -> None:
        """Answer Pick; both messages are bytes. A pick whose answer cannot be sent is withdrawn."""
        with Answering("Pick", self.drain, self._meter):
            left = _left(call.seconds_left)
            timeout = min(self.tokenize_seconds, left)
            asked = await parse(pb.PickRequest, request)
            asker = Asker(call.peer, call, request_id_of(call.metadata))
            pick = partial(self.picks.pick, asked, asker=asker)
            try:
                made = await pick(timeout, left)
            except NoPodError as error:
                waiting = time.perf_counter()
                await self.picks.for_a_pod(error, asked, asker, left)
                left = max(0.0, left - (time.perf_counter() - waiting))
                made = await pick(min(timeout, left), left)
            with self.picks.telling(made, call):
                await turn_after(len(made.choice.options))
                await call.write(self.picks.response(made))

    async def _stream_reply(self, request: wire.ScoreRequest, plain: PlainPrompt | None) -> bytes:
        begun = time.perf_counter()
        try:
            scored = self.answerer.score_at_once(request, plain)
            if scored is None:
                scored = await self.answerer.score(request, self.tokenize_seconds, plain=plain)
        except Exception as error:  # noqa: BLE001  the request's error, not the stream's
            log_fault("ScoreStream", error)
            return self._refusal(request.request_id, error, time.perf_counter() - begun)
        self._meter.answered("ScoreStream", "OK", time.perf_counter() - begun)
        return stream_reply(request.request_id, self._counted(scored))

    def _refusal(self, request_id: int, error: Exception, seconds: float) -> bytes:
        code, reason, _ = failure_of(error)
        self._meter.answered("ScoreStream", code.name, seconds, reason_of(error))
        self._tracer.ends_with(code.name)
        refused = pb.RequestError(code=code.value[0], message=text_of(error), reason=reason)
        return pb.ScoreStreamResponse(request_id=request_id, error=refused).SerializeToString()

    def answer(
        self, method: MethodDescriptor, answer: Callable[[Any, float, float], Awaitable[Message]]
    ) -> Answer:
        """Return a function that answers a method's messages, of this service or of one beside it.

        `answer` takes the request, the seconds for the tokenizer, and the seconds for all waits.
        """
        asked = GetMessageClass(method.input_type)

        async def reply(request: bytes, timeout: float, patience: float) -> bytes:
            answered = await answer(await parse(asked, request), timeout, patience)
            return answered.SerializeToString()

        return self.answer_bytes(method.name, reply)

    def answer_bytes(
        self, name: str, answer: Callable[[bytes, float, float], Awaitable[bytes]]
    ) -> Answer:
        """Return a function that answers messages that are bytes; arguments are as for `self.answer`."""

        async def counted(request: bytes, seconds_left: float) -> bytes:
            with Answering(name, self.drain, self._meter):
                left = _left(seconds_left)
                return await answer(request, min(self.tokenize_seconds, left), left)

        return counted

    def method(self, name: str, answer: Answer, at_once: AtOnce | None = None) -> Method:
        """Return a method with one message and one answer; `at_once` is as in `Intake.method`."""

        async def put(message: bytes, call: Call) -> None:
            call.put(await answer(message, call.seconds_left))

        quick = at_once and self._at_once(name, at_once)
        return self.intake.method(name, put, is_urgent=name in URGENT, at_once=quick)

    def _at_once(self, name: str, answer: AtOnce) -> AtOnce:
        """Return a function that answers a method's messages at once, and counts the answers."""

        def counted(request: bytes, call: Call) -> bytes | None:
            # Not Answering: its three calls take longer than some of the steps between them.
            begun = time.perf_counter()
            try:
                self.drain.begin()
                try:
                    answered = answer(request, call)
                finally:
                    self.drain.end()
            except Exception as error:
                raise counted_refusal(name, error, begun, self._meter) from error
            if answered is not None:
                self._meter.answered(name, "OK", time.perf_counter() - begun)
            return answered

        return counted

    def answers(self) -> dict[str, Answer]:
        """Return, by name, what answers each method with one message and one answer, except Pick."""
        picks = self.picks
        answers: dict[str, Callable[[Any, float, float], Awaitable[Message]]] = {
            "Report": self._report,
            "Explain": picks.explain,
            "ListDecisions": lambda request, *_: picks.list_decisions(request),
            "Diagnose": lambda request, *_: picks.diagnose(request),
            "ListPods": lambda request, *_: self.answerer.list_pods(request),
        }
        return {
            "Score": self.answer_bytes("Score", self._score),
            **{
                name: self.answer(SERVICE.methods_by_name[name], answer)
                for name, answer in answers.items()
            },
        }

    def methods(self) -> dict[str, Method]:
        at_once = {"Score": self.score_at_once, "Report": self.report_at_once}
        methods = {
            **{
                name: self.method(name, answer, at_once.get(name))
                for name, answer in self.answers().items()
            },
            "ScoreStream": Method(self.score_stream),
            "Pick": self.intake.method(
                "Pick", self.pick, writes=True, at_once=self._at_once("Pick", self.pick_at_once)
            ),
        }
        return named(SERVICE, methods)


class AdmissionGate:
    """The `h2grpc.method.Gate` of some services. Streams pass: their messages wait.

    Once the `drain` refuses calls, it refuses those of all services except gRPC's own.
    """

    def __init__(
        self,
        admission: Admission,
        services: Iterable[ServiceDescriptor],
        counts: Metrics,
        drain: Drain,
    ) -> None:
        self._admission = admission
        self._drain = drain
        self._at_end = refusal_of(EndingError())
        self.methods: Mapping[str, bool] = {
            f"/{service.full_name}/{method.name}": method.name in URGENT
            for service in services
            for method in service.methods
            if not method.client_streaming
        }
        self._counts = counts

    @property
    def refusal(self) -> Refusal:
        seconds = self._admission.wait_seconds
        return too_busy(seconds, seconds)

    def rooms(self, client: str) -> tuple[int, int] | None:
        admission = self._admission
        if not admission.waiting:
            return None
        return admission.room(client), admission.room(client, is_urgent=True)

    def ending(self, method: str) -> Refusal | None:
        # Health is asked to the end.
        if method.startswith("/grpc.") or not self._drain.turns_away():
            return None
        return self._at_end

    def ended(self, method: str, refusal: Refusal, seconds: float) -> None:
        short = method.rpartition("/")[2]
        self._counts.answered(short, refusal.code.name, seconds, refusal.reason)

    def refused(self, method: str, count: int) -> None:
        self._admission.refused += count
        self._counts.refused(method.rpartition("/")[2], self.refusal.code.name, count)


def _cut(kind: type[Asked], request: bytes) -> tuple[Asked, PlainPrompt] | None:
    """Return a request's plain prompt and the rest of it; None if it has no such prompt.

    Raises BadRequestError.
    """
    cut = cut_prompt(request)
    if cut is None:
        return None
    plain, rest = cut
    asked = parsed(kind, rest) if rest else kind()
    # Protobuf would merge a second prompt with the first one.
    return None if asked.HasField("prompt") else (asked, plain)


def named(service: ServiceDescriptor, methods: dict[str, Method]) -> dict[str, Method]:
    """Return a service's methods by their full names."""
    return {f"/{service.full_name}/{name}": method for name, method in methods.items()}


def _end(span: Span, done: Callable[[], None], _: object = None) -> None:
    span.end()
    done()


def _left(seconds: float) -> float:
    """Return how many seconds an answer may wait for a tokenizer or Redis."""
    return max(0.0, seconds - REPLY_SECONDS)
