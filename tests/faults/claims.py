"""Faults of publishers: rival claims of one pod, delayed writes, restarts, and wrong clocks."""

import time

import pytest

from tests.faults.refusals import BEHIND
from tests.faults.rig import DEFAULT_LEASE, Outcome, rig
from tests.servers.redis_server import RedisServer
from tests.servers.relay import Relay
from tests.servers.wrong_clock import WrongClock
from warmpath.indexer.shared.writer.lease import Cause
from warmpath.indexer.shared.writer.machine import WriterState

HOUR = 3600.0


async def contended(prefix: str, hold: float) -> Outcome:
    """Let a second publisher claim a pod; the first claims it again when the second dies."""
    with RedisServer() as server:
        async with rig(server.url, prefix) as made:
            await made.begin()
            pod = made.pods["a"]
            first = pod.publisher
            second = await made.publish(pod)
            await made.until(
                lambda: first.writer.state is WriterState.WAITING, "the first one stops"
            )
            await made.until(lambda: second.is_current, "the second one has it")
            record = await made.record("a")
            assert record is not None
            assert record.claim is not None
            assert record.claim.owner == second.owner
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
    with RedisServer() as server:
        async with rig(server.url, prefix) as made:
            await made.begin()
            pod = made.pods["a"]
            await pod.publisher.end(in_order=False)
            await made.lasts(hold)
            second = await made.publish(pod)
            outcome = await made.healed()
            record = await made.record("a")
            assert record is not None
            assert record.claim is not None
            assert record.claim.owner == second.owner
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
    with RedisServer() as server:
        async with rig(server.url, prefix) as made:
            await made.begin()
            pod = made.pods["a"]
            await pod.publisher.end()
            while await made.record("a") is not None:
                await made.goes_on()
            await made.until(
                lambda: all(
                    any("no publisher" in reason for reason in reader.reasons)
                    for reader in made.readers
                ),
                "the pod is gone",
            )
            await made.lasts(hold)
            await made.publish(pod)
            return await made.healed()


class Clock:
    """A clock with any start time and speed, which can jump ahead."""

    def __init__(self, begins: float, speed: float) -> None:
        self._begins = begins
        self._speed = speed
        self._start = time.monotonic()

    def __call__(self) -> float:
        return self._begins + (time.monotonic() - self._start) * self._speed

    def jump(self, seconds: float) -> None:
        """Jump ahead, as after a machine's sleep."""
        self._begins += seconds


async def clocks_lie(prefix: str, hold: float, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    """Give each process a monotonic clock of its own, and let wall clocks jump by hours."""
    clocks = {
        "a": Clock(-5 * HOUR, 1.1),
        "b": Clock(90 * HOUR, 0.9),
        "Copying": Clock(-40 * HOUR, 1.1),
        "Looking": Clock(7 * HOUR, 0.9),
    }
    true = time.time
    jumps = [0.0]
    monkeypatch.setattr(time, "time", lambda: true() + jumps[0])
    with RedisServer() as server:
        async with rig(server.url, prefix, clocks=clocks) as made:
            await made.begin()
            for wall in (-30 * HOUR, 30 * HOUR):
                jumps[0] = wall
                for clock in clocks.values():
                    clock.jump(2 * HOUR)
                    await made.goes_on()
                await made.lasts(hold)
            return await made.healed()
