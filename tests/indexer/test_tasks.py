"""Tasks that run till the end say so where they do not."""

import asyncio

import pytest

from indexer.tasks import cancel, watched


async def test_a_task_that_ends_with_what_it_waited_for_is_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    forever: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait() -> None:
        await forever

    task = watched(wait(), "waiting")
    await asyncio.sleep(0)
    forever.cancel()
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert [line.partition(" has ended")[0] for line in caplog.messages] == ["waiting"]


async def test_a_task_that_is_cancelled_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    task = watched(asyncio.sleep(3600), "sleeping")
    await asyncio.sleep(0)
    await cancel([task])
    await asyncio.sleep(0)
    assert not caplog.messages
