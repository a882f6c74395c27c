"""The subscriber on real sockets, against a publisher that speaks both forms of replay.

One file: all tests follow one publisher.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import msgspec
import pytest
import zmq
import zmq.asyncio

from tests.indexer.engine_model import EngineModel
from tests.indexer.follow.conftest import Follow
from tests.waiting import until
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.follow.dial import END
from warmpath.indexer.follow.endpoint import is_exposed, rank_endpoint
from warmpath.indexer.follow.stream_source import RankIngest
from warmpath.indexer.stream.machine import StreamState
from warmpath.indexer.trust import BEHIND, Level


class Publisher:
    """An engine's two sockets; `with_topic` is the replay's form since vLLM 0.26."""

    def __init__(self, context: zmq.asyncio.Context, follow: Follow, *, with_topic: bool) -> None:
        self._follow = follow
        self.engine = EngineModel(buffer_steps=100)
        self.with_topic = with_topic
        self.answers = True
        self.breaks_off = 0
        """Replays that end after two messages, without their end."""
        self.asked = 0
        self.starts: list[int] = []
        self.live = context.socket(zmq.PUB)
        self.replay = context.socket(zmq.ROUTER)
        # It leaves out what a connection has no room for, so there is room for all of its buffer.
        self.replay.setsockopt(zmq.SNDHWM, 0)
        self.events = f"tcp://127.0.0.1:{self.live.bind_to_random_port('tcp://127.0.0.1')}"
        self.replays = f"tcp://127.0.0.1:{self.replay.bind_to_random_port('tcp://127.0.0.1')}"
        self.task = asyncio.create_task(self.serve())

    def followed(self, *, replay_seconds: float = 0.5, **changes: object) -> RankIngest:
        """Return a rank that follows the engine from now on."""
        return self._follow(self.events, self.replays, replay_seconds=replay_seconds, **changes)

    async def publish(self, message: tuple[int, bytes], topic: bytes = b"kv") -> None:
        await self.live.send_multipart([topic, message[0].to_bytes(8, "big"), message[1]])

    async def serve(self) -> None:
        while True:
            identity, empty, start = await self.replay.recv_multipart()
            self.asked += 1
            self.starts.append(int.from_bytes(start, "big"))
            if not self.answers:
                continue
            told = 0
            topic = [b"kv"] if self.with_topic else []
            for sequence, payload in self.engine.buffer:
                if sequence >= self.starts[-1]:
                    told += 1
                    if self.breaks_off and told > 2:
                        break
                    frames = [identity, empty, *topic, sequence.to_bytes(8, "big"), payload]
                    await self.replay.send_multipart(frames)
            if self.breaks_off:
                self.breaks_off -= 1
                continue
            last = [b""] if self.with_topic else []
            await self.replay.send_multipart([identity, empty, *last, END, b""])

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        self.live.close(linger=0)
        self.replay.close(linger=0)


@pytest.fixture(params=[True, False], ids=["0.26-replay", "0.25-replay"])
async def publisher(
    request: pytest.FixtureRequest, context: zmq.asyncio.Context, follow: Follow
) -> AsyncIterator[Publisher]:
    publisher = Publisher(context, follow, with_topic=request.param)
    yield publisher
    await publisher.close()


@contextlib.contextmanager
def endless(publisher: Publisher) -> Iterator[zmq.Socket[bytes]]:
    """Let a publisher send from a thread of its own, so that nothing makes it wait for the subscriber."""
    with zmq.Context() as own, own.socket(zmq.PUB) as live:
        live.setsockopt(zmq.SNDHWM, 0)
        live.setsockopt(zmq.LINGER, 0)
        publisher.events = f"tcp://127.0.0.1:{live.bind_to_random_port('tcp://127.0.0.1')}"
        yield live


@pytest.mark.deep
async def test_events_that_come_faster_than_they_are_followed_are_let_go_and_asked_for_again(
    publisher: Publisher, caplog: pytest.LogCaptureFixture
) -> None:
    engine = publisher.engine = EngineModel(buffer_steps=1 << 20)
    caplog.set_level("INFO")
    with endless(publisher) as live:
        rank = publisher.followed(replay_seconds=10, pending_bytes=10_000)
        await until(lambda: rank.trust.level is Level.EXACT)
        frames = [engine.store((number % 7, number % 5, 1)) for number in range(2500)]

        def send() -> None:
            for sequence, payload in frames:
                live.send_multipart([b"kv", sequence.to_bytes(8, "big"), payload])

        sending = asyncio.create_task(asyncio.to_thread(send))
        await until(lambda: rank.counts()["overflows"] > 0)
        await sending
        await until(lambda: rank.trust.level is Level.EXACT and rank.sequence == engine.sequence)
        assert rank.state.held()[Tier.GPU, 0] == engine.held()
    assert rank.lag_batches == 0
    assert rank.counts()["gaps"] >= 1
    assert rank.counts()["restarts"] == 0
    said = [record.getMessage() for record in caplog.records]
    overflow = next(at for at, line in enumerate(said) if "come faster than they are" in line)
    assert ", was exact: " in said[overflow + 1], "before any other work has its turn"


async def test_a_socket_of_which_no_end_is_found_is_closed_and_opened_anew(
    publisher: Publisher, caplog: pytest.LogCaptureFixture
) -> None:
    with endless(publisher) as live:
        rank = publisher.followed(pending_bytes=20_000)
        await until(lambda: rank.trust.level is Level.EXACT)
        payload = msgspec.msgpack.encode([1.0, [], 0, b"." * 400_000])
        asked, sequence = publisher.asked, 0
        while "connecting again" not in caplog.text:
            # In the loop's own thread: nothing is read meanwhile, as on a machine that is too slow.
            for _ in range(64):
                sequence += 256
                live.send_multipart([b"kv", sequence.to_bytes(8, "big"), payload])
            await asyncio.sleep(0)
        await until(lambda: publisher.asked > asked and rank.is_connected)
        assert len(caplog.text) < 50_000
        await until(lambda: rank.trust.level is not Level.DEGRADED)


async def test_a_replays_answer_past_its_bytes_is_cut_off_and_resumed_until_it_is_whole(
    publisher: Publisher,
) -> None:
    engine = publisher.engine = EngineModel(buffer_steps=1000)
    for number in range(1000):
        engine.store((number % 7, number % 5, 1))
    rank = publisher.followed(replay_seconds=10, pending_bytes=20_000)
    reasons = []
    fail = rank.replay_failed

    def failed(ticket: int, reason: str) -> None:
        fail(ticket, reason)
        reasons.append(rank.trust.reason)

    rank.replay_failed = failed  # type: ignore[method-assign]
    await until(lambda: rank.trust.level is Level.EXACT)
    assert rank.state.held()[Tier.GPU, 0] == engine.held()
    assert reasons
    assert all("more than 20000 bytes of the answer" in reason for reason in reasons)
    assert publisher.starts == sorted(publisher.starts)


async def test_batches_that_are_followed_late_make_a_rank_degraded_until_it_has_caught_up(
    publisher: Publisher,
) -> None:
    now = 100.0
    rank = publisher.followed(stale_after=1e9, clock=lambda: now)
    await until(lambda: rank.trust.level is Level.EXACT)
    for late, level in ((0.0, Level.EXACT), (30.0, Level.DEGRADED), (0.5, Level.EXACT)):
        number = publisher.engine.sequence + 1
        publisher.engine.sequence = number
        payload = msgspec.msgpack.encode([1.7e9 + now, [], 0])
        publisher.engine.buffer.append((number, payload))
        now += late
        await publisher.publish((number, payload))
        await until(lambda number=number: rank.sequence == number and rank.lag_batches == 0)
        await until(lambda level=level: rank.trust.level is level)
        assert (BEHIND in rank.trust.reason) is (level is Level.DEGRADED)
        assert rank.lag.seconds == late
        now += 1.0


async def test_nonsense_on_the_socket_is_dropped_and_the_subscriber_lives_on(
    publisher: Publisher,
) -> None:
    rank = publisher.followed()
    await until(lambda: rank.trust.level is Level.EXACT)
    await publisher.live.send_multipart([b"kv"])
    await publisher.live.send_multipart([b"kv", b"short", b"payload"])
    await until(lambda: rank.malformed == 2)
    assert rank.trust.level is Level.DEGRADED
    await publisher.publish(publisher.engine.clear())
    await until(lambda: rank.trust.level is Level.EXACT)


@pytest.mark.deep
async def test_a_replay_that_is_never_answered_degrades_and_live_goes_on(
    publisher: Publisher,
) -> None:
    publisher.answers = False
    publisher.engine.store((0, 0))
    rank = publisher.followed()
    await until(lambda: publisher.asked == 1)
    await publisher.publish(publisher.engine.store((1, 1)))
    await until(lambda: rank.trust.level is Level.DEGRADED)
    await until(lambda: rank.stream.sequence == 1)
    assert "no answer within" in rank.trust.reason


async def test_a_replay_that_hangs_holds_up_none_that_is_asked_for_later(
    context: zmq.asyncio.Context, publisher: Publisher
) -> None:
    publisher.answers = False
    publisher.engine.store((0, 1, 2, 3))
    rank = publisher.followed(replay_seconds=1000.0)
    await until(lambda: publisher.asked == 1)
    publisher.answers = True
    publisher.live.close(linger=0)
    publisher.live = context.socket(zmq.PUB)
    await until(lambda: bound(publisher.live, publisher.events))
    await until(lambda: rank.trust.level is Level.EXACT)
    assert rank.state.held()[Tier.GPU, 0] == publisher.engine.held()


async def test_a_replay_that_breaks_off_is_resumed_until_it_is_whole(publisher: Publisher) -> None:
    engine = publisher.engine
    for number in range(6):
        engine.store((number, number))
    publisher.breaks_off = 3
    rank = publisher.followed(replay_seconds=0.2)
    await until(lambda: rank.trust.level is Level.EXACT)
    assert rank.state.held()[Tier.GPU, 0] == engine.held()
    # From the last batch that came, each time; where the machine is busy, none came in time perhaps.
    assert len(publisher.starts) >= 4
    assert publisher.starts == sorted(publisher.starts)


async def test_a_publisher_that_goes_and_comes_back_empty_is_a_new_life(
    context: zmq.asyncio.Context, publisher: Publisher, held_port: int
) -> None:
    publisher.events = f"tcp://127.0.0.1:{held_port}"
    publisher.live.bind(publisher.events)
    publisher.engine.store((0, 1, 2, 3))
    rank = publisher.followed()
    await until(lambda: rank.trust.level is Level.EXACT)
    publisher.live.close(linger=0)
    await until(lambda: not rank.is_connected)
    publisher.engine.restart()
    publisher.live = context.socket(zmq.PUB)
    publisher.live.bind(publisher.events)
    await until(lambda: rank.stream.counts.restarts == 1)
    await until(lambda: rank.trust.level is Level.EXACT)
    assert rank.state.held() == {}


async def test_a_replayed_number_that_no_batch_has_is_no_batch(publisher: Publisher) -> None:
    publisher.engine.store((0, 1, 2, 3))
    for number in (1 << 63, (1 << 64) - 2):
        publisher.engine.buffer.append((number, b"\x92\xcb" + bytes(8) + b"\x90"))
    rank = publisher.followed()
    await until(lambda: rank.counts()["malformed"] == 2)
    await until(lambda: rank.stream.state is StreamState.FOLLOWING)
    assert rank.sequence == 0
    assert rank.state.held()[Tier.GPU, 0] == publisher.engine.held()
    for _ in range(2):
        publisher.engine.buffer.pop()
    await publisher.publish(publisher.engine.store((0, 1, 2, 3, 4)))
    await until(lambda: rank.trust.level is Level.EXACT)
    assert rank.sequence == 1


async def test_a_batch_published_before_the_subscription_is_in_force_is_asked_for(
    context: zmq.asyncio.Context, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warmpath.indexer.stream.machine.CHECKS", (0.05, 0.05))
    publisher.live.close(linger=0)
    # It takes a subscription only when it is told to.
    publisher.live = context.socket(zmq.XPUB)
    publisher.live.setsockopt(zmq.XPUB_MANUAL, 1)
    publisher.live.setsockopt(zmq.SNDHWM, 0)
    await until(lambda: bound(publisher.live, publisher.events))
    rank = publisher.followed()
    assert await publisher.live.recv_multipart() == [b"\x01kv"]
    await until(lambda: rank.trust.level is Level.EXACT)
    await publisher.publish(publisher.engine.store((0, 1, 2, 3)))
    await until(lambda: rank.sequence == 0)
    assert rank.state.held()[Tier.GPU, 0] == publisher.engine.held()
    assert rank.trust.level is Level.EXACT
    assert rank.counts()["gaps"] == 0
    publisher.live.setsockopt(zmq.SUBSCRIBE, b"kv")
    await publisher.publish(publisher.engine.store((0, 1, 2, 3, 4)))
    await until(lambda: rank.sequence == 1)


@pytest.mark.parametrize("offset", [0, 1, 3])
def test_a_ranks_port_is_higher_by_the_rank(offset: int) -> None:
    assert rank_endpoint("tcp://[::1]:5557", offset) == f"tcp://[::1]:{5557 + offset}"


@pytest.mark.parametrize(
    ("endpoint", "exposed"),
    [
        ("tcp://10.0.0.1:5557", True),
        ("tcp://engine.svc:5557", True),
        ("tcp://[2001:db8::1]:5557", True),
        ("http://10.0.0.1:8000/kv_cache_events", True),
        ("https://10.0.0.1:8000/kv_cache_events", False),
        ("tcp://127.0.0.2:5557", False),
        ("tcp://localhost:5557", False),
        ("tcp://[::1]:5557", False),
        ("ipc:///run/events", False),
        ("inproc://events", False),
        ("", False),
    ],
)
def test_events_from_another_machine_are_in_the_open(endpoint: str, *, exposed: bool) -> None:
    assert is_exposed(endpoint) is exposed


async def test_an_endpoint_that_cannot_be_connected_to_is_tried_again_and_ends_cleanly(
    follow: Follow, caplog: pytest.LogCaptureFixture
) -> None:
    follow("tcp://*:1", "")
    await until(lambda: "events: " in caplog.text)


async def test_a_replay_endpoint_that_cannot_be_connected_to_is_a_failed_replay(
    follow: Follow, publisher: Publisher
) -> None:
    rank = follow(publisher.events, "tcp://*:1")
    await until(lambda: "replay failed" in rank.trust.reason)


async def test_an_engine_that_comes_and_goes_is_no_error(
    context: zmq.asyncio.Context, publisher: Publisher, caplog: pytest.LogCaptureFixture
) -> None:
    rank = publisher.followed()
    for _ in range(20):
        await until(lambda: rank.is_connected)
        publisher.live.close(linger=0)
        await until(lambda: not rank.is_connected)
        publisher.live = context.socket(zmq.PUB)
        await until(lambda: bound(publisher.live, publisher.events))
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def bound(socket: "zmq.asyncio.Socket", address: str) -> bool:
    """Bind a socket; False where the address is not free again yet."""
    try:
        socket.bind(address)
    except zmq.ZMQError:
        return False
    return True
