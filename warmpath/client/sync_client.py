"""The client of a router for code that blocks: made of sync_client.py by `make client`."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Self, TypeVar, Unpack

import grpc
from google.protobuf.message import Message

from warmpath.client.background import Thread
from warmpath.client.calls import AnyPrompt, PodLoad, prompt_of_request
from warmpath.client.connection import (
    NOT_TAKEN,
    OPTIONS,
    Attempts,
    Connection,
    Requests,
    StreamAnswer,
    checked_timeout,
)
from warmpath.client.failure import CallError, failure_of
from warmpath.client.request import (
    PICK_SECONDS,
    UNREADABLE,
    ExplainOptions,
    PickOptions,
    Request,
    RequestOptions,
)
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.report_event import ReportEvent

Answer = TypeVar("Answer", bound=Message)


class Client(Connection):
    """Calls a router. A context manager; any number of threads may use one client.

    `target` is host:port, unix:/PATH, or a name with one of gRPC's schemes, such as dns:///NAME:PORT.
    `model` is that of prompts which name none. With `tls` the connection is encrypted; `token_file` has
    the token to send. Files are read again when they change. `timeout` bounds a call in seconds, retries
    included. Answers are the messages of `proto/warmpath/v1/router.proto`.

    Raises SettingError where a setting or a file cannot be used, or settings do not fit each other.
    Calls but reports raise CallError; all raise ValueError or TypeError for what cannot be sent.
    """

    def _new_background(self) -> Thread:
        return Thread(self._call)

    def _open(self, shown: grpc.ChannelCredentials | None) -> grpc.Channel:
        if shown is None:
            return grpc.insecure_channel(self._target, options=OPTIONS)
        return grpc.secure_channel(self._target, shown, options=OPTIONS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Send waiting reports, for at most `timeout` seconds; then close, which cancels other calls."""
        self._background.finish(self._timeout)
        self._reports.close()
        for channel in self._end():
            channel.close()

    def score(
        self,
        prompt: AnyPrompt,
        *,
        pods: Sequence[str] = (),
        strategy: str = "",
        explain: bool = False,
        timeout: float | None = None,
    ) -> pb.ScoreResponse:
        """Return how much of a prompt each pod holds; only of `pods`, unless it is empty.

        An empty `strategy` is longest-prefix. `explain` adds the text, the tokens and the steps' times.
        """
        return self._made(
            pb.ScoreResponse, timeout, prompt=prompt, pods=pods, strategy=strategy, explain=explain
        )

    def score_stream(
        self,
        prompts: Iterable[AnyPrompt],
        *,
        pods: Sequence[str] = (),
        strategy: str = "",
        timeout: float | None = None,
    ) -> Iterator[StreamAnswer]:
        """Score many prompts over one stream; yield each answer with its prompt's position.

        Answers come as they are ready, which may be in another order. `prompts` is read in a thread of
        gRPC's, as fast as the router takes them. The stream lasts until `prompts` has ended and all are
        answered, or for `timeout` seconds. If it breaks off, it is not resumed: raises CallError.
        """
        if timeout is not None:
            checked_timeout(timeout)
        requests = Requests(self._model, pods, strategy)
        with self._stub() as stub:
            replies: Any = stub.ScoreStream(
                requests.each(prompts), timeout=timeout, metadata=self._credentials.metadata
            )
            try:
                for reply in replies:
                    yield requests.answer_of(reply)
            except grpc.RpcError as error:
                raise requests.error or failure_of(error, self._credentials.hint) from error
            finally:
                replies.cancel()

    def pick(
        self,
        prompt: AnyPrompt,
        *,
        shadow: bool = False,
        booking_id: str = "",
        timeout: float | None = None,
        **options: Unpack[PickOptions],
    ) -> pb.PickResponse:
        """Return the pod for a request, and fall-backs; the work is booked until `report` ends it.

        The method `request` also reports, and goes on where no router answers. With a `booking_id` of
        the caller's, unique to the request, a pick is also repeated if its answer was lost, as the
        router may or may not have booked it. In the router's queue it may wait for up to nine tenths of
        `timeout`.
        """
        return self._made(
            pb.PickResponse, timeout, prompt=prompt, shadow=shadow, booking_id=booking_id, **options
        )

    def report(
        self,
        booking_id: str,
        event: ReportEvent,
        *,
        cached_tokens: int | None = None,
        prompt_tokens: int | None = None,
        output_tokens: int | None = None,
        pod: str = "",
        rank: int = 0,
        prompt: AnyPrompt | None = None,
        loads: Sequence[PodLoad] = (),
        timeout: float | None = None,
    ) -> bool:
        """Report the progress or the end of a picked request; return whether its booking is known.

        Reports that are made while a call of earlier ones is under way go together in the next call. One
        whose caller is cancelled goes, too.

        Raises no CallError: a lost report does no lasting harm. It is logged, and returns False. With
        "started" a router in shadow takes the `pod` and `prompt` of a request without a pick.
        """
        given = {
            "booking_id": booking_id, "event": event, "cached_tokens": cached_tokens,
            "prompt_tokens": prompt_tokens, "output_tokens": output_tokens, "pod": pod,
            "rank": rank, "loads": loads, **({} if prompt is None else {"prompt": prompt}),
        }  # fmt: skip
        self._background.catch_up()
        told = self._told(given, timeout, is_awaited=True)
        try:
            known: bool = self._background.wait(told)
        except TimeoutError:
            self._warn(NOT_TAKEN, "no answer came in time")
            known = False
        return known

    @contextmanager
    def request(
        self, prompt: AnyPrompt | None = None, **options: Unpack[RequestOptions]
    ) -> Iterator[Request]:
        """Pick a pod, and report the end of the block, however it is left; arguments as for `begin`."""
        with self.begin(prompt, **options) as begun:
            yield begun

    def begin(
        self,
        prompt: AnyPrompt | None = None,
        *,
        messages: Sequence[Mapping[str, Any]] | None = None,
        tokens: Sequence[int] | bytes | None = None,
        model: str = "",
        otherwise: Sequence[str] = (),
        timeout: float = PICK_SECONDS,
        **options: Unpack[PickOptions],
    ) -> Request:
        """Pick a pod for a request; the caller must call its `finish` or `fail`, which `request` does.

        At most one of `prompt`, `messages` (a chat's) and `tokens` is given; without any of them the
        pick goes by load. If no pick comes within `timeout` seconds, the request goes to one of
        `otherwise` (addresses, host:port), or of the pods of this client's last pick for the model.

        Raises CallError if none of these pods is known, or for the reasons NO_POD, QUEUE_FULL and
        UNKNOWN_MODEL; ValueError or TypeError for what cannot be sent.
        """
        self._background.catch_up(self._reports.latest)
        begun = Request(self._told)
        asked = prompt_of_request(prompt, messages, tokens, model, self._model)
        ask = partial(self._made, pb.PickResponse, timeout, booking_id=begun.booking_id, **options)
        try:
            try:
                answer = ask(prompt=asked)
            except CallError as error:
                if error.reason not in UNREADABLE:
                    raise
                begun.failure = error
                answer = ask(prompt=pb.Prompt(model=asked.model))
        except CallError as error:
            pods = options.get("pods", ())
            begun.go_on_without(error, self._known.without_pick(asked.model, otherwise, pods))
            self._warn("a request goes on without a pick", error)
        except BaseException:
            begun.fail()
            raise
        else:
            begun.picked(answer)
            self._known.remember(asked.model, answer.candidates)
        return begun

    def _call(self, *, is_alone: bool = False) -> bool:
        """Make a call of the reports that wait, or of the first one; return whether others wait then."""
        try:
            attempts = Attempts(*self._reports.next(is_alone=is_alone))
            try:
                answer: pb.ReportResponse = self._answered(attempts)
            except CallError as error:
                if self._reports.failed(error.code):
                    self._warn(NOT_TAKEN, error)
            else:
                self._reports.answered(answer)
        except BaseException as error:
            self._reports.stop()
            # The client is closed, or its channel: it has waited for its reports.
            if not isinstance(error, RuntimeError | ValueError):
                raise
            return False
        return self._reports.goes_on()

    def explain(
        self, prompt: AnyPrompt, *, timeout: float | None = None, **options: Unpack[ExplainOptions]
    ) -> pb.ExplainResponse:
        """Return each pod's cost for a prompt, and why the first one wins. Books nothing."""
        return self._made(pb.ExplainResponse, timeout, prompt=prompt, **options)

    def pods(self, model: str = "", *, timeout: float | None = None) -> pb.ListPodsResponse:
        """Return the pods that the router knows; only those of `model`, unless it is empty."""
        return self._made(pb.ListPodsResponse, timeout, model=model)

    def decisions(
        self,
        limit: int = 0,
        *,
        model: str = "",
        pod: str = "",
        session: str = "",
        timeout: float | None = None,
    ) -> pb.ListDecisionsResponse:
        """Return the last picks, newest first: at most `limit`, unless it is 0.

        An empty `model`, `pod` or `session` means any; else only the picks for it come. Those of a
        session's sub-agents are among its own.
        """
        return self._made(
            pb.ListDecisionsResponse, timeout, limit=limit, model=model, pod=pod, session=session
        )

    def diagnose(self, model: str = "", *, timeout: float | None = None) -> pb.DiagnoseResponse:
        """Return how good predictions and picks were, and likely faults; an empty `model` means all."""
        return self._made(pb.DiagnoseResponse, timeout, model=model)

    @contextmanager
    def _stub(self) -> Iterator[Any]:
        line = self._take()
        try:
            yield line.stub
        finally:
            for channel in self._give_back(line):
                channel.close()

    def _made(self, answer: type[Answer], timeout: float | None, **given: Any) -> Answer:
        made: Answer = self._answered(self._attempts(answer, timeout, given))
        return made

    def _answered(self, attempts: Attempts) -> Any:
        while True:
            try:
                with self._stub() as stub:
                    return self._asked(stub, attempts)
            except grpc.RpcError as error:
                pause = self._pause(attempts, error)
            time.sleep(pause)
