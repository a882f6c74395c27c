"""Tasks that run till the end say so where they do not, and begin again."""

import asyncio
import logging

import pytest

from warmpath.process.tasks import Work, cancel, kept, watched


class Failing:
    """Work that fails in one of two places, or ends; it goes on once there is nothing left to do."""

    def __init__(self, *faults: str) -> None:
        self.faults = list(faults)
        self.reasons: list[str] = []
        self.goes_on = asyncio.Event()

    async def run(self) -> None:
        if not self.faults:
            self.goes_on.set()
            await asyncio.Event().wait()
        fault = self.faults.pop(0)
        if fault == "value":
            raise ValueError(fault)
        if fault == "group":
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._fail())
        if fault == "cancelled":
            forever: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            forever.cancel()
            await forever

    async def _fail(self) -> None:
        raise OverflowError

    def failed(self, reason: str) -> None:
        self.reasons.append(reason)
        raise RuntimeError("what is to be doubted is in pieces itself")


async def test_work_that_ends_in_any_way_is_doubted_and_begins_again() -> None:
    work = Failing("value", "group", "ends", "cancelled")
    task = kept(Work("working", work.run, work.failed), pause=0.0)
    await work.goes_on.wait()
    assert work.reasons == [
        f"a bug of ours: {kind}"
        for kind in ("ValueError", "OverflowError", "it ended", "CancelledError")
    ]
    assert not task.done()
    await cancel([task])
    assert task.cancelled()


async def test_a_fault_is_logged_once_however_often_it_comes_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    work = Failing(*["value"] * 50, "ends", *["value"] * 50)
    task = kept(Work("working", work.run), pause=0.0)
    await work.goes_on.wait()
    await cancel([task])
    said = [one for one in caplog.records if one.levelno == logging.CRITICAL]
    assert [one.getMessage() for one in said] == [
        "working has ended: a bug of ours; it begins again"
    ] * 2
    assert said[0].exc_info
    assert said[0].exc_info[0] is ValueError


async def test_work_that_is_cancelled_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    work = Failing()
    task = kept(Work("working", work.run, work.failed))
    await work.goes_on.wait()
    await cancel([task])
    assert not caplog.messages
    assert not work.reasons


async def test_a_task_that_fails_before_its_end_is_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail() -> None:
        raise ValueError

    task = watched(fail(), "loading")
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert caplog.messages == ["loading has failed: a bug of ours"]
