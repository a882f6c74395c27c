"""The HTTP connection to one TensorRT-LLM engine, whose events are fetched, since it publishes none.

Each event is in one answer only: events that another client has fetched are missing, which shows as a
gap in the event ids. Events in an answer that does not arrive are missing too; until the next event
shows whether there were any, the ranks are not exact. Under attention data parallelism one connection
brings the events of all of an engine's ranks.
"""

import asyncio
import logging
from collections.abc import Mapping

import aiohttp

from warmpath.indexer.follow.answer import take_answer
from warmpath.indexer.follow.instance import Patience
from warmpath.indexer.follow.stream_source import SILENT_SECONDS, RankIngest
from warmpath.process.command_line import in_words

SILENT = f"no answer for {SILENT_SECONDS:g} s: its events may be late"
"""The reason, and the subject, of a limit (`indexer.rank.Rank.limit`)."""

POLL_SECONDS = 0.05

log = logging.getLogger(__name__)


class AnswerError(Exception):
    """The engine answered, but not with events."""


class AnswerLengthError(Exception):
    """The engine's answer is longer than the most that is read."""


def problem_of(error: Exception) -> str:
    """Return the reason of a failed HTTP request to an engine."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"cannot connect to {error.host}:{error.port}: {in_words(error)}"
    return str(error) or "no answer in time"


class Poller:
    """Feeds the ranks of one engine until it is cancelled.

    `url` is the whole address of `/kv_cache_events`; `interval` the pause between two calls, in seconds.
    """

    def __init__(
        self,
        ranks: Mapping[int, RankIngest],
        url: str,
        patience: Patience,
        *,
        interval: float = POLL_SECONDS,
    ) -> None:
        self._ranks = ranks
        self._url = url
        self._interval = interval
        self._timeout = aiohttp.ClientTimeout(total=patience.replay_seconds)
        self._max_bytes = patience.max_frame_bytes
        self._tls = patience.tls
        self._problem = ""
        """What was logged last, since the engine last answered."""

    async def run(self) -> None:
        async with aiohttp.ClientSession(timeout=self._timeout) as session:
            while True:
                waiting = asyncio.get_running_loop().call_later(SILENT_SECONDS, self._limit, SILENT)
                try:
                    answer = await self._fetch(session)
                except (aiohttp.ClientConnectorError, AnswerError) as error:
                    self._lost(problem_of(error))
                except (aiohttp.ClientError, TimeoutError, AnswerLengthError) as error:
                    self._lost_answer(problem_of(error))
                    self._lost(problem_of(error))
                except asyncio.CancelledError:
                    self._lost_answer("this process ended")
                    raise
                else:
                    self._problem = ""
                    take_answer(self._ranks, answer)
                    self._limit("")
                finally:
                    waiting.cancel()
                await asyncio.sleep(self._interval)

    async def _fetch(self, session: aiohttp.ClientSession) -> bytes:
        # No redirects: an engine must not make the router send requests to other hosts.
        async with session.post(
            self._url,
            allow_redirects=False,
            ssl=self._tls.context if self._tls else True,
            server_hostname=self._tls.name if self._tls else None,
        ) as response:
            if response.status != 200:
                raise AnswerError(f"{self._url} answers {response.status}")
            answer = bytearray()
            async for chunk in response.content.iter_any():
                answer += chunk
                if len(answer) > self._max_bytes:
                    raise AnswerLengthError(f"an answer is longer than {self._max_bytes} bytes")
            return bytes(answer)

    def failed(self, reason: str) -> None:
        for rank in self._ranks.values():
            rank.failed(reason)

    def _limit(self, reason: str) -> None:
        for rank in self._ranks.values():
            rank.limit(reason, SILENT)

    def _lost_answer(self, reason: str) -> None:
        for rank in self._ranks.values():
            rank.answer_lost(reason)

    def _lost(self, reason: str) -> None:
        if reason != self._problem:
            self._problem = reason
            log.warning("%s: %s", self._url, reason)
        for rank in self._ranks.values():
            rank.disconnected()
