"""Runs a pod's writer: sends its requests to Redis, and wakes it when the journal has grown."""

import asyncio
import logging
from collections.abc import Sequence
from typing import NoReturn

from warmpath.indexer.shared.redis.command import Call, Command, Redis, Reply, UnreachableError
from warmpath.indexer.shared.writer.lease import LAST_PAUSE, Rest
from warmpath.indexer.shared.writer.machine import Writer

log = logging.getLogger(__name__)

PAUSE = 0.01
"""Seconds from the first news to a batch, so that the changes of one engine step are one batch."""
FAREWELL_SECONDS = 0.5


async def write(
    redis: Redis, writer: Writer, news: asyncio.Event, *, timeout: float, pause: float = PAUSE
) -> None:
    """Write until cancelled; `news` wakes the writer. `timeout` bounds one round trip, seconds."""
    try:
        while True:
            try:
                await _run(redis, writer, news, timeout, pause)
            except Exception:
                log.exception(
                    "the writer begins anew: a bug of ours, or a reply that no script of ours gives"
                )
                await asyncio.sleep(LAST_PAUSE)
    finally:
        await _replies(redis, writer.farewell(), FAREWELL_SECONDS)


async def _run(
    redis: Redis, writer: Writer, news: asyncio.Event, timeout: float, pause: float
) -> NoReturn:
    steps = writer.steps()
    step = next(steps)
    while True:
        if not isinstance(step, Rest):
            step = steps.send(await _replies(redis, step, timeout))
        elif step.until_news:
            try:
                async with asyncio.timeout(step.seconds):
                    await news.wait()
            except TimeoutError:
                pass
            else:
                news.clear()
                await asyncio.sleep(pause)
            step = steps.send(())
        else:
            await asyncio.sleep(step.seconds)
            step = steps.send(())


async def _replies(
    redis: Redis, asked: Sequence[Command | Call], timeout: float
) -> Sequence[Reply]:
    try:
        return await redis.run(asked, timeout=timeout)
    except Exception as error:
        # Whatever failed, the writer asks again, and the publisher's other work goes on.
        log.exception("the shared index could not be asked: a bug of ours")
        return [UnreachableError(str(error) or type(error).__name__)] * len(asked)
