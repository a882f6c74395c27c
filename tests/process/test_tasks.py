"""Tasks that run till the end begin again where they do not; the lag of their loop, and who watches the health."""

import asyncio
import logging
from pathlib import Path

import aiohttp
import pytest
from grpc_health.v1 import health_pb2 as pb

from tests.router.running_router import running_router
from warmpath.process.health import MOST_WATCHERS, HealthService, WatchersFullError
from warmpath.process.loop import PAUSE, watch_lag
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


def test_no_hold_of_more_than_100_ms_passes_unseen() -> None:
    assert PAUSE <= 0.1


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


SERVING, NOT_SERVING = pb.HealthCheckResponse.SERVING, pb.HealthCheckResponse.NOT_SERVING


def question() -> bytes:
    return pb.HealthCheckRequest().SerializeToString()


def status(answer: bytes) -> int:
    return pb.HealthCheckResponse.FromString(answer).status


class Process:
    """A process that is fit or not."""

    def __init__(self) -> None:
        self.is_fit = False
        self.health = HealthService(dict.fromkeys(("", "a.Service"), lambda: self.is_fit))


def test_what_is_no_question_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        Process().health.check(b"\xff")


async def test_a_change_that_only_a_watcher_saw_is_followed_by_the_next_one() -> None:
    process = Process()
    process.is_fit = True
    watching = process.health.watch(question())
    assert status(await anext(watching)) == SERVING
    process.is_fit = False
    notifying = asyncio.create_task(process.health.keep_notifying())
    assert status(await anext(watching)) == NOT_SERVING
    await watching.aclose()
    notifying.cancel()


async def test_no_more_clients_watch_than_may_and_one_that_goes_makes_room() -> None:
    health = Process().health
    watching = [health.watch(question()) for _ in range(MOST_WATCHERS)]
    for one in watching:
        await anext(one)
    with pytest.raises(WatchersFullError, match=str(MOST_WATCHERS)):
        await anext(health.watch(question()))
    await watching.pop().aclose()
    another = health.watch(question())
    assert status(await anext(another)) == NOT_SERVING
    for one in (*watching, another):
        await one.aclose()
