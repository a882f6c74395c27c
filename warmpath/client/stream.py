"""The requests and answers of a ScoreStream."""

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sequence
from typing import NamedTuple

import grpc

from warmpath.client.calls import RouterCalls
from warmpath.client.checks import check_arguments
from warmpath.client.failure import CallError
from warmpath.client.prompt import AnyPrompt
from warmpath.proto.errors import Reason
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb

CODES = {code.value[0]: code for code in grpc.StatusCode}


class StreamAnswer(NamedTuple):
    """The answer to one prompt of a stream: exactly one of `scores` and `error` is set."""

    position: int
    """The prompt's position among those that were sent, from 0."""
    scores: pb.ScoreResponse | None
    error: CallError | None
    """Why this prompt was refused; the stream goes on."""


class Requests:
    """The requests of a stream, numbered; gRPC iterates them, and hides an error of the iteration.

    In the place of a prompt that cannot be sent an empty one goes out. The router refuses it, and its
    reply carries our own error: so the stream, which is gRPC's, has an answer in that prompt's turn.
    """

    def __init__(self, calls: RouterCalls, pods: Sequence[str], strategy: str) -> None:
        check_arguments(pods=pods, strategy=strategy)
        self._calls = calls
        self._pods = pods
        self._strategy = strategy
        self.error: Exception | None = None
        """The error with which the prompts ended; None if they did not."""
        self._unsent: dict[int, CallError] = {}
        """The error of each prompt that could not be sent, until it is answered; by position."""

    def answer_of(self, reply: pb.ScoreStreamResponse) -> StreamAnswer:
        error = self._unsent.pop(reply.request_id, None)
        if error is None and reply.WhichOneof("result") == "response":
            return StreamAnswer(reply.request_id, reply.response, None)
        if error is None:
            said = reply.error
            is_known = said.reason and said.reason in Reason.values()
            error = CallError(
                CODES.get(said.code, grpc.StatusCode.UNKNOWN),
                said.message,
                reason=Reason.Name(said.reason) if is_known else None,
            )
        return StreamAnswer(reply.request_id, None, error)

    def each(self, prompts: Iterable[AnyPrompt]) -> Iterator[pb.ScoreRequest]:
        try:
            if not isinstance(prompts, Iterable):
                raise TypeError(f"prompts is of type {type(prompts).__name__}, not a list")  # noqa: TRY301
            for position, prompt in enumerate(prompts):
                yield self._request(position, prompt)
        except Exception as error:
            self.error = error
            raise

    async def each_async(
        self, prompts: AsyncIterable[AnyPrompt] | Iterable[AnyPrompt]
    ) -> AsyncIterator[pb.ScoreRequest]:
        if not isinstance(prompts, AsyncIterable):
            for request in self.each(prompts):
                yield request
            return
        position = 0
        try:
            async for prompt in prompts:
                yield self._request(position, prompt)
                position += 1
        except Exception as error:
            self.error = error
            raise

    def _request(self, position: int, prompt: AnyPrompt) -> pb.ScoreRequest:
        try:
            message = self._calls.prompt(prompt)
        except (ValueError, TypeError) as error:
            self._unsent[position] = CallError(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            message = pb.Prompt()
        return pb.ScoreRequest(
            prompt=message, pods=self._pods, strategy=self._strategy, request_id=position
        )
