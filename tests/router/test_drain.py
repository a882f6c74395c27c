"""A router that ends, step by step."""

import asyncio
import logging
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest

from tests.clock import Clock
from tests.router.error_details import ErrorDetails, details_of
from tests.router.pick_stand import QUIET, pod, prompt
from tests.router.running_router import TRANSPORT, serving, started
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc
from warmpath.router.config.schema import ServerTable
from warmpath.router.ending import Drain, EndingError, end_router
from warmpath.router.readiness import LISTENING, Readiness

LATE = "the router is about to end; ask another one"
ENDING = ErrorDetails(grpc.StatusCode.UNAVAILABLE, "ENDING", {}, 0.0, None)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock, sleep = Clock(), asyncio.sleep

    async def pass_time(seconds: float) -> None:
        clock.now += seconds
        await sleep(0)

    monkeypatch.setattr("warmpath.router.ending.asyncio.sleep", pass_time)
    return clock


@contextmanager
def answering(drain: Drain) -> Iterator[None]:
    drain.begin()
    try:
        yield
    finally:
        drain.end()


class Steps:
    """A router that ends, and the steps that it took, each with its time."""

    def __init__(self, clock: Clock, *, is_ready: bool = True) -> None:
        self.clock = clock
        self.drain = Drain(clock)
        self.readiness = Readiness(["pods"])
        self.readiness.set("pods", holds=is_ready, reason="")
        self.readiness.set(LISTENING, holds=True, reason="")
        self.taken: list[tuple[str, float]] = []

    def _take(self, step: str) -> None:
        self.taken.append((step, self.clock.now))

    async def _sleep(self, seconds: float) -> None:
        for _ in range(100):
            await asyncio.sleep(seconds / 100)

    def _go_away(self) -> int:
        with pytest.raises(EndingError):
            self.drain.begin()
        self._take("GOAWAY")
        return 3

    def _tell(self) -> None:
        assert not self.readiness.ready()
        self._take("tell")

    async def run(self) -> None:
        await end_router(
            self.drain,
            self.readiness,
            ServerTable(drain_delay_seconds=4.0, drain_seconds=10.0),
            release=lambda: self._take("release"),
            tell=self._tell,
            go_away=self._go_away,
            sleep=self._sleep,
        )


async def test_for_the_whole_delay_a_router_is_not_ready_and_answers(clock: Clock) -> None:
    router = Steps(clock)
    ending = asyncio.create_task(router.run())
    while len(router.taken) < 2:
        with answering(router.drain):
            assert router.readiness.ready() is not bool(router.taken)
        await asyncio.sleep(0)
    await ending
    assert [step for step, _ in router.taken] == ["tell", "release", "GOAWAY"]
    assert router.taken[0][1] == 0.0
    assert router.taken[2][1] == pytest.approx(4.0, abs=0.01)


async def test_an_idle_router_ends_when_no_call_has_come_for_a_tenth_of_the_drain(
    clock: Clock,
) -> None:
    router = Steps(clock)
    clock.now = 100.0
    await router.run()
    # One call came, and was refused, after the delay.
    assert clock.now == pytest.approx(105.0, abs=0.05)


async def test_a_router_that_was_not_ready_has_no_delay(clock: Clock) -> None:
    router = Steps(clock, is_ready=False)
    await router.run()
    assert router.taken == [("tell", 0.0), ("release", 0.0), ("GOAWAY", 0.0)]


async def test_calls_in_progress_are_waited_for_and_callers_that_stay_are_cut_off(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    router = Steps(clock)
    with answering(router.drain), router.drain.streaming():
        ending = asyncio.create_task(router.run())
        await asyncio.sleep(0)
        with answering(router.drain):
            while len(router.taken) < 3:
                await asyncio.sleep(0)
        await ending
    assert clock.now == pytest.approx(14.0, abs=0.05)
    assert "\n".join(line.getMessage() for line in caplog.records) == (
        "the process was asked to end: it is not ready from now on; calls are answered for 4 s more,"
        " 1 calls and 1 streams are in progress\n"
        "new calls are refused; GOAWAY on 3 connections; 2 calls and 1 streams in progress have 10 s\n"
        "1 calls were refused since; 1 calls and 1 streams are cut off"
    )


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
    drain.refuse()
    ending = asyncio.create_task(drain.gone(10.0))
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


@pytest.mark.parametrize("name", ["SIGTERM", pytest.param("SIGQUIT", marks=pytest.mark.deep)])
async def test_under_load_no_call_is_cut_off_and_the_state_is_saved(
    tmp_path: Path, name: str
) -> None:
    text = (
        '[server]\nlisten = "127.0.0.1:0"\nmetrics-listen = ""\ndrain-seconds = 10.0\n'
        "drain-delay-seconds = 0.5\n"
        f'transport = "{TRANSPORT}"\n'
        f'[index]\nstate-file = "state"\n[[models]]\nname = "demo"\n{QUIET}{pod("a")}'
    )
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

    async with (
        serving(tmp_path / "router.toml", text) as router,
        grpc.aio.insecure_channel(router.address) as channel,
    ):
        router.process.send_signal(signal.SIGUSR1)
        stub = router_pb2_grpc.RouterStub(channel)
        callers = [asyncio.create_task(call(stub)) for _ in range(8)]
        callers.append(asyncio.create_task(hold_a_stream(stub)))
        await stub.Score(pb.ScoreRequest(prompt=prompt(50)))
        router.process.send_signal(getattr(signal, name))
        await asyncio.gather(*callers)
        assert await router.process.wait() == 0
    assert told == {f"UNAVAILABLE: {LATE}": 8}
    assert (tmp_path / "state").stat().st_size


@pytest.mark.deep
async def test_a_router_that_is_asked_to_end_while_it_compiles_ends_at_once(tmp_path: Path) -> None:
    text = (
        f'[server]\nlisten = "127.0.0.1:0"\nmetrics-listen = ""\n{QUIET}[[models]]\nname = "demo"\n'
    )
    # Nothing is compiled in this folder.
    process = await started(tmp_path / "router.toml", text, NUMBA_CACHE_DIR=str(tmp_path / "numba"))
    assert process.stderr is not None
    async for line in process.stderr:
        if b"compiling the index" in line:
            break
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    said, logged = await process.communicate()
    assert process.returncode == 0
    assert b"asked to end while it started" in logged
    assert b"Traceback" not in logged
    assert not said, "it never served"
