"""A router that ends: calls that have begun are answered, later ones get a status that says so."""

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest

from router.drain import Drain, EndingError
from router.pb.warmpath.v1 import router_pb2 as pb
from router.pb.warmpath.v1 import router_pb2_grpc
from tests.router.error_details import ErrorDetails, details_of
from tests.router.pick_stand import QUIET, pod, prompt
from tests.router.running_router import TRANSPORT

LATE = "the router is about to end; ask another one"
ENDING = ErrorDetails(grpc.StatusCode.UNAVAILABLE, "ENDING", {}, 0.0, None)


class Clock:
    """Goes on by what is slept."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock, sleep = Clock(), asyncio.sleep

    async def pass_time(seconds: float) -> None:
        clock.now += seconds
        await sleep(0)

    monkeypatch.setattr("router.drain.asyncio.sleep", pass_time)
    return clock


@contextmanager
def answering(drain: Drain) -> Iterator[None]:
    drain.begin()
    try:
        yield
    finally:
        drain.end()


async def test_a_router_ends_as_soon_as_no_call_has_come_for_a_tenth_of_its_time(
    clock: Clock,
) -> None:
    idle, drain = Drain(clock), Drain(clock)
    clock.now = 100.0
    await idle.run(10.0)
    assert clock.now == pytest.approx(100.0, abs=0.05)
    with answering(drain):
        pass
    await drain.run(10.0)
    assert clock.now == pytest.approx(101.0, abs=0.05)


async def test_calls_are_answered_first_and_refused_then(clock: Clock) -> None:
    drain = Drain(clock)
    with answering(drain):
        ending = asyncio.create_task(drain.run(10.0))
        while clock.now < 4.9:
            with answering(drain):
                await asyncio.sleep(0)
        while clock.now < 8.0:
            await asyncio.sleep(0)
        with pytest.raises(EndingError, match=LATE), answering(drain):
            pass
        assert not ending.done()
    await ending
    assert clock.now < 10.0


async def test_callers_that_stay_do_not_keep_it(clock: Clock) -> None:
    drain = Drain(clock)
    with answering(drain):
        await drain.run(10.0)
    assert clock.now == pytest.approx(10.0, abs=0.05)


async def test_a_stream_is_closed_between_two_requests_and_never_within_one(clock: Clock) -> None:
    drain = Drain(clock)
    taken: list[int] = []
    more = asyncio.Event()

    async def requests() -> AsyncIterator[int]:
        yield 1
        await more.wait()

    async def read(drain: Drain, held: asyncio.Event) -> None:
        async for one in drain.each(requests()):
            await held.wait()
            taken.append(one)

    busy, free = asyncio.Event(), asyncio.Event()
    free.set()
    within = asyncio.create_task(read(drain, busy))
    between = asyncio.create_task(read(drain, free))
    await asyncio.sleep(0)
    ending = asyncio.create_task(drain.run(10.0))
    with pytest.raises(EndingError):
        await between
    assert not within.done()
    busy.set()
    with pytest.raises(EndingError):
        await within
    await ending
    assert taken == [1, 1]
    assert clock.now < 1.1


async def test_a_stream_whose_caller_leaves_is_cancelled_as_ever(clock: Clock) -> None:
    async def nothing() -> AsyncIterator[int]:
        await asyncio.Event().wait()
        yield 0

    async def read() -> None:
        async for _ in Drain(clock).each(nothing()):
            pass

    reading = asyncio.create_task(read())
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


@pytest.mark.parametrize(
    "name",
    ["SIGTERM", *(pytest.param(name, marks=pytest.mark.deep) for name in ("SIGHUP", "SIGQUIT"))],
)
async def test_under_load_no_call_is_cut_off_and_the_state_is_saved(
    tmp_path: Path, name: str
) -> None:
    config = tmp_path / "router.toml"
    config.write_text(
        '[server]\nlisten = "127.0.0.1:0"\nmetrics-listen = ""\ndrain-seconds = 10.0\n'
        f'transport = "{TRANSPORT}"\n'
        f'[index]\nstate-file = "state"\n[[models]]\nname = "demo"\n{QUIET}{pod("a")}'
    )
    router = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "router", "serve", "--config", str(config), stdout=subprocess.PIPE
    )
    assert router.stdout is not None
    address = (await router.stdout.readline()).decode().split()[-1]
    told: Counter[str] = Counter()

    async def call(stub: router_pb2_grpc.RouterStub) -> None:
        while True:
            try:
                await stub.Score(pb.ScoreRequest(prompt=prompt(5000)))
            except grpc.aio.AioRpcError as error:
                told[f"{error.code().name}: {error.details()}"] += 1
                assert details_of(error) == ENDING  # noqa: PT017  in a task
                return

    async def hold_a_stream(stub: router_pb2_grpc.RouterStub) -> None:
        stream = stub.ScoreStream()
        await stream.write(pb.ScoreRequest(prompt=prompt(50)))
        assert (await stream.read()).response.prompt_tokens
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stream.read()
        assert raised.value.details() == LATE
        assert details_of(raised.value) == ENDING

    router.send_signal(signal.SIGUSR1)
    async with grpc.aio.insecure_channel(address) as channel:
        stub = router_pb2_grpc.RouterStub(channel)
        callers = [asyncio.create_task(call(stub)) for _ in range(8)]
        callers.append(asyncio.create_task(hold_a_stream(stub)))
        await stub.Score(pb.ScoreRequest(prompt=prompt(50)))
        router.send_signal(getattr(signal, name))
        await asyncio.gather(*callers)
        assert await router.wait() == 0
    assert told == {f"UNAVAILABLE: {LATE}": 8}
    assert (tmp_path / "state").stat().st_size
