"""Faults of publishers: rival claims, delayed writes, restarts, wrong clocks, little processor time."""

import asyncio
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import zmq.asyncio

from tests.engine_sockets import EngineSockets
from tests.faults.pod import MODEL
from tests.faults.rig import BEHIND, DEFAULT_LEASE, Outcome, Rig, alone, rig
from tests.servers.redis_server import RedisServer
from tests.servers.relay import Relay
from tests.servers.wrong_clock import WrongClock
from tests.soak.watched_process import WatchedProcess
from warmpath.indexer.shared.writer.lease import Cause
from warmpath.indexer.shared.writer.machine import WriterState
from warmpath.process.tasks import cancel, watched

HOUR = 3600.0
STOPPED, RUNNING = 5.0, 0.3
"""Seconds for which publishers are stopped and run, in turn."""
END_SECONDS = 10.0
PERIOD = 0.1
"""Seconds for which a share of a core is given, as a container's limit does."""
LOOK_PAUSE = 0.002
"""Seconds between two looks at how much processor time was used."""


async def contended(prefix: str, hold: float) -> Outcome:
    """Let a second publisher claim a pod; the first claims it again when the second dies."""
    async with alone(prefix) as (made, _):
        pod = made.pods["a"]
        first = pod.publisher
        second = await made.publish(pod)
        await made.until(lambda: first.writer.state is WriterState.WAITING, "the first one stops")
        await made.until(lambda: second.is_current, "the second one has it")
        assert await made.owner("a") == second.owner
        await made.exact()
        await made.lasts(hold)
        await second.end(in_order=False)
        await made.until(lambda: first.is_current, "the first one has it back")
        outcome = await made.healed()
        assert outcome.rebuilds[Cause.FREE] == 1
        return outcome


async def zombie(prefix: str, hold: float) -> Outcome:
    """Delay a publisher's writes, and deliver them after another publisher has claimed the pod."""
    with RedisServer() as server, Relay(server.port) as held_up:
        async with rig(server.url, prefix, writers=held_up.url) as made:
            await made.begin()
            pod = made.pods["a"]
            first, b = pod.publisher, made.pods["b"].publisher
            held_up.pause()
            await made.until(lambda: not first.is_current and not b.is_current, "both are stuck")
            made.writers_url = server.url
            second = await made.publish(pod)
            await made.until(lambda: second.is_current, "the second one has it")
            await made.lasts(hold)
            held_up.resume()
            await made.until(
                lambda: first.writer.state is WriterState.WAITING, "the first one stops"
            )
            await made.goes_on()
            return await made.healed()


async def restarted(prefix: str, hold: float) -> Outcome:
    """Kill a publisher, which does not give up its claim, and start another before the lease ends."""
    async with alone(prefix) as (made, _):
        pod = made.pods["a"]
        await pod.publisher.end(in_order=False)
        await made.lasts(hold)
        second = await made.publish(pod)
        outcome = await made.healed()
        assert await made.owner("a") == second.owner
        return outcome


async def dead_when_time_goes_back(prefix: str, hold: float) -> Outcome:
    """Kill a publisher, and set the server's clock back by an hour, so that its lease seems to last."""
    with WrongClock() as clock, RedisServer(environment=clock.environment) as server:
        async with rig(server.url, prefix, lease=DEFAULT_LEASE) as made:
            await made.begin()
            pod = made.pods["a"]
            await pod.publisher.end(in_order=False)
            clock.set(-HOUR)
            await made.lasts(BEHIND + hold)
            assert server.ask("PTTL", made.names.record("a")) > 500 * HOUR
            await made.publish(pod)
            return await made.healed()


async def gone_for_good(prefix: str, hold: float) -> Outcome:
    """Stop a publisher in order, and start another one after its lease has ended."""
    async with alone(prefix) as (made, _):
        pod = made.pods["a"]
        await pod.publisher.end()
        while await made.record("a") is not None:
            await made.goes_on()
        await made.gone()
        await made.lasts(hold)
        await made.publish(pod)
        return await made.healed()


class Clock:
    """A clock with any start time and speed, which can jump ahead."""

    def __init__(self, begins: float, speed: float) -> None:
        self.begins = begins
        self._speed = speed
        self._start = time.monotonic()

    def __call__(self) -> float:
        return self.begins + (time.monotonic() - self._start) * self._speed


async def clocks_lie(prefix: str, hold: float) -> Outcome:
    """Give each process a monotonic clock of its own, and let wall clocks jump by hours."""
    clocks = {
        "a": Clock(-5 * HOUR, 1.1),
        "b": Clock(90 * HOUR, 0.9),
        "Copying": Clock(-40 * HOUR, 1.1),
        "Looking": Clock(7 * HOUR, 0.9),
    }
    true = time.time
    jumps = [0.0]
    with pytest.MonkeyPatch.context() as monkeypatch, RedisServer() as server:
        monkeypatch.setattr(time, "time", lambda: true() + jumps[0])
        async with rig(server.url, prefix, clocks=clocks) as made:
            await made.begin()
            for wall in (-30 * HOUR, 30 * HOUR):
                jumps[0] = wall
                for clock in clocks.values():
                    # As after a machine's sleep.
                    clock.begins += 2 * HOUR
                    await made.goes_on()
                await made.lasts(hold)
            return await made.healed()


@asynccontextmanager
async def outside(prefix: str) -> AsyncIterator[tuple[Rig, list[WatchedProcess]]]:
    """Run a rig whose publishers are processes, until all is exact; yield them too."""
    context = zmq.asyncio.Context()
    folder = tempfile.TemporaryDirectory(prefix="faults-")
    with RedisServer() as server, folder as name:
        async with (
            AsyncExitStack() as stack,
            rig(server.url, prefix, lease=DEFAULT_LEASE, publishes=False) as made,
        ):
            stack.callback(context.term)
            publishers = []
            for pod in made.pods.values():
                engine = EngineSockets(context)
                await engine.start()
                stack.callback(engine.close)
                pod.follow(lambda message, _, of=engine: of.publish(*message))
                words = (
                    "warmpath.publisher.main", f"--pod={pod.name}", f"--model={MODEL}",
                    f"--events={engine.events}", f"--replay={engine.replay}",
                    "--listen=127.0.0.1:0", "--metrics-listen=", f"--redis={server.url}",
                    f"--redis-prefix={prefix}", f"--redis-lease-seconds={made.lease}",
                )  # fmt: skip
                process = WatchedProcess(f"publisher-{pod.name}", Path(name), words)
                line = await process.start()
                assert line, process.log.read_text()
                stack.push_async_callback(process.end, END_SECONDS)
                stack.callback(proceed, [process])
                publishers.append(process)
            await made.begin()
            yield made, publishers


def stop(processes: Sequence[WatchedProcess]) -> None:
    """Stop processes: they get no processor time, and their connections stay."""
    for one in processes:
        one.process.send_signal(signal.SIGSTOP)


def proceed(processes: Sequence[WatchedProcess]) -> None:
    for one in processes:
        if one.process.returncode is None:
            one.process.send_signal(signal.SIGCONT)


async def stopped_in_turn(prefix: str, hold: float) -> Outcome:
    """Stop publishers for most of the time, with their connections open."""
    async with outside(prefix) as (made, publishers):
        for _ in range(2 + round(hold / STOPPED)):
            stop(publishers)
            await made.lasts(STOPPED)
            proceed(publishers)
            await made.lasts(RUNNING)
        return await made.healed()


async def starved(prefix: str, hold: float, *, share: float) -> Outcome:
    """Give each publisher a share of a core; with 1.0 nothing is wrong."""
    async with outside(prefix) as (made, publishers):
        tasks = [watched(starve(one, share), f"starving {one.name}") for one in publishers]
        await made.lasts(BEHIND + hold)
        await cancel(tasks)
        proceed(publishers)
        return await made.healed()


async def starve(process: WatchedProcess, share: float) -> None:
    """Hold a process to a share of a core until cancelled, as a container's limit does."""
    clock_of_process = (~process.process.pid << 3) | 2  # clock_getcpuclockid(3), in Linux
    left = 0.0
    while True:
        ends = time.monotonic() + PERIOD
        left = min(left, 0.0) + share * PERIOD
        until = time.clock_gettime(clock_of_process) + left
        if left > 0:
            proceed([process])
        while (now := time.monotonic()) < ends:
            left = until - time.clock_gettime(clock_of_process)
            if left <= 0:
                stop([process])
            await asyncio.sleep(LOOK_PAUSE if left > 0 else ends - now)
