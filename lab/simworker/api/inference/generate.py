"""Generates the samples of a request's prompts, and answers, whole or streamed."""

import contextlib
import time
from collections.abc import Sequence

from aiohttp import web

from warmpath.lab.simworker.api.errors import ApiError, json_response
from warmpath.lab.simworker.api.inference.answer import Answer, encoded
from warmpath.lab.simworker.api.inference.request_options import RequestOptions
from warmpath.lab.simworker.api.inference.token_stream import TokenStream
from warmpath.lab.simworker.engine import Generation, RequestRefusedError
from warmpath.lab.simworker.server.flight import Flight
from warmpath.lab.simworker.server.worker import DrainingError, NoSuchRankError, Worker

MOST_CHOICES = 16384
"""The most choices of one request: prompts times samples."""
MOST_TOKENS = 1 << 31
"""The stream interval, in tokens, of an answer that is not streamed: more than any answer has."""


async def generate(
    request: web.Request,
    worker: Worker,
    options: RequestOptions,
    prompts: Sequence[list[int]],
    new_answer: type[Answer],
) -> web.StreamResponse:
    """Answer with the samples of some prompts. Raises ApiError if the worker refuses one."""
    asks = [options.ask(prompt, worker.identity) for prompt in prompts]
    choices = len(asks) * options.samples
    if choices > MOST_CHOICES:
        raise ApiError(
            f"n: {len(asks)} prompts of {options.samples} samples are over {MOST_CHOICES}"
        )
    tokens = TokenStream(choices, options.stream_interval if options.stream else MOST_TOKENS)
    flights: list[Flight] = []
    try:
        for choice in range(choices):
            ask = asks[choice // options.samples]
            flights.append(_submit(worker, ask, tokens, choice, options))
        answer = new_answer(options, flights, worker.text, int(time.time()))
        if options.stream:
            return await _stream(request, tokens, answer)
        pieces = await tokens.whole()
        for flight in flights:
            if flight.error:
                # The engine refused it when the worker woke up.
                raise ApiError(flight.error)
        return json_response(answer.whole(pieces))
    finally:
        # A request that is still under way here has lost its client.
        for flight in flights:
            worker.abort(flight)


def _submit(
    worker: Worker, ask: Generation, tokens: TokenStream, choice: int, options: RequestOptions
) -> Flight:
    try:
        return worker.submit(ask, tokens.sink(choice), options.rank)
    except RequestRefusedError as error:
        raise ApiError(str(error)) from error
    except NoSuchRankError as error:
        raise ApiError(str(error), field="X-data-parallel-rank") from error
    except DrainingError as error:
        raise ApiError(str(error), status=503) from error


async def _stream(request: web.Request, tokens: TokenStream, answer: Answer) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    # A client that leaves is not an error; its request is aborted.
    with contextlib.suppress(ConnectionResetError):
        await response.prepare(request)
        if opening := encoded(answer.opening()):
            await response.write(opening)
        async for piece in tokens.pieces():
            await response.write(encoded(answer.chunks(piece)))
        await response.write(encoded(answer.closing()) + answer.last)
    return response
