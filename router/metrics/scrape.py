"""The page /metrics: read in turns with other work, and written in another thread.

The metrics of two thousand pods have tens of thousands of samples. To read them takes the thread that
answers calls a tenth of a second, and to write them takes longer.
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator

from aiohttp import web
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

REST = 3.0
"""The rest before the next page is made, as a multiple of the time that the last one took: however many
ask, most of the time is for calls."""


class MetricsPage:
    """Makes the page of the metrics of `steps`, where other work may be done at each None."""

    def __init__(
        self, steps: Callable[[], Iterator[Metric | None]], *, clock: Callable[[], float]
    ) -> None:
        self._steps = steps
        self._clock = clock
        self._made: dict[str, tuple[float, bytes]] = {}
        """The last page in each form, by content type, with the time at which its reading began."""
        self._making = asyncio.Lock()
        self._rests_until = 0.0

    async def page(self, request: web.Request) -> web.Response:
        """Answer a scraper. Those who ask while a page is made get the next one, which is made once."""
        asked = self._clock()
        # OpenMetrics, which alone has exemplars, only for those who ask for it.
        encoder, kind = _encoder(request.headers.get("Accept", ""))
        async with self._making:
            begun, body = self._made.get(kind, (-math.inf, b""))
            if begun < asked:
                await asyncio.sleep(self._rests_until - self._clock())
                begun = self._clock()
                read = await self._read()
                body = await asyncio.to_thread(encoder, read)
                self._made[kind] = begun, body
                now = self._clock()
                self._rests_until = now + REST * (now - begun)
        return web.Response(body=body, headers={"Content-Type": kind})

    async def _read(self) -> "_Read":
        read = _Read()
        for metric in self._steps():
            if metric is None:
                await asyncio.sleep(0)
            else:
                read.append(metric)
        return read


class _Read(Collector, list[Metric]):
    """Metrics that were read."""

    def collect(self) -> Iterable[Metric]:
        return self


def _encoder(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    """Return what writes the metrics in a form that is accepted, and the form's content type."""
    try:
        return choose_encoder(accept)
    except (TypeError, ValueError):
        # The library compares versions that are no numbers.
        return choose_encoder("")
