"""A scrape leaves the thread to calls, and many scrapes at once cost as much as a few."""

import asyncio
import time
from collections.abc import Iterator

import aiohttp
from aiohttp import web
from prometheus_client.core import GaugeMetricFamily, Metric

from warmpath.process.listen import http_listener
from warmpath.router.metrics.scrape import REST, MetricsPage

STEPS = 50


class Clock:
    """Counts its readings as seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


class Stand:
    """A page, the readings of its parts, and the turns that another task had meanwhile."""

    def __init__(self) -> None:
        self.read = self.turns = self.turns_of_first = 0
        self.page = MetricsPage(self.steps, clock=Clock())

    def steps(self) -> Iterator[Metric | None]:
        self.read += 1
        before = self.turns
        for _ in range(STEPS):
            yield None
        if self.read == 1:
            self.turns_of_first = self.turns - before
        yield GaugeMetricFamily("readings", "Of the parts.", self.read)

    async def work(self) -> None:
        while True:
            self.turns += 1
            await asyncio.sleep(0)


async def test_other_tasks_have_a_turn_at_each_step_and_scrapers_who_wait_share_a_page() -> None:
    stand = Stand()
    app = web.Application()
    app.router.add_get("/metrics", stand.page.page)

    async def scraped(http: aiohttp.ClientSession, address: str, accept: str) -> str:
        headers = {"Accept": accept}
        async with http.get(f"http://{address}/metrics", headers=headers) as answer:
            assert answer.status == 200
            return await answer.text()

    async with (
        http_listener(app, "127.0.0.1:0", named="here") as address,
        aiohttp.ClientSession() as http,
        asyncio.TaskGroup() as tasks,
    ):
        working = tasks.create_task(stand.work())
        asked = (scraped(http, address, "text/plain") for _ in range(40))
        texts = await asyncio.gather(*asked)
        assert stand.read < 10
        assert stand.turns_of_first >= STEPS
        assert all("readings" in text for text in texts)
        newest = await scraped(http, address, "text/plain")
        assert f"readings {stand.read}.0" in newest
        assert "# EOF" in await scraped(http, address, "application/openmetrics-text")
        working.cancel()


async def test_a_page_is_read_after_it_was_asked_for_and_the_next_one_after_a_rest() -> None:
    begun: list[float] = []
    ended: list[float] = []

    def steps() -> Iterator[Metric | None]:
        begun.append(time.monotonic())
        yield None
        ended.append(time.monotonic())

    page = MetricsPage(steps, clock=time.monotonic)
    app = web.Application()
    app.router.add_get("/metrics", page.page)
    async with (
        http_listener(app, "127.0.0.1:0", named="here") as address,
        aiohttp.ClientSession(f"http://{address}") as http,
    ):
        for number in range(1, 4):
            async with http.get("/metrics") as answer:
                assert answer.status == 200
            assert len(begun) == number
    for after, before, at in zip(begun[1:], begun, ended, strict=False):
        assert after - before >= REST * (at - before)
