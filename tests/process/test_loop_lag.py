"""The lag of the loop is measured, and exported."""

import asyncio
from pathlib import Path

import aiohttp
import pytest

from tests.router.running_router import running_router
from warmpath.process.loop import PAUSE, watch_lag

MODEL = '[[models]]\nname = "m"\n'


async def test_the_lag_is_what_a_sleep_takes_too_long() -> None:
    now = 1000.0
    holds = [0.0, 0.25, -0.001]
    seen: list[float] = []

    async def sleep(seconds: float) -> None:
        nonlocal now
        if not holds:
            raise asyncio.CancelledError
        now += seconds + holds.pop(0)

    with pytest.raises(asyncio.CancelledError):
        await watch_lag(seen.append, lambda: now, sleep)
    # A timer may fire early by its resolution.
    assert seen == pytest.approx([0.0, 0.25, 0.0])


def test_no_hold_that_is_too_long_passes_unseen() -> None:
    assert PAUSE < 0.01


async def test_a_router_tells_the_lag_of_its_loop(tmp_path: Path) -> None:
    async with running_router(tmp_path, MODEL) as (router, _), aiohttp.ClientSession() as http:
        count = 0.0
        async with asyncio.timeout(20):
            while not count:
                await asyncio.sleep(PAUSE)
                async with http.get(f"http://{router.http_address}/metrics") as answer:
                    lines = (await answer.text()).splitlines()
                told = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
                count = float(told["warmpath_loop_lag_seconds_count"])
        assert 'warmpath_loop_lag_seconds_bucket{le="0.01"}' in told
