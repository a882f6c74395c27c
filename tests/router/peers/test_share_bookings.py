"""Routers that share bookings through real servers: Redis 6.2, Valkey 9 and a cluster.

One file, since all share the same servers.
"""

import asyncio
import logging
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random

import grpc
import pytest

from tests.conformance.reference_index import ReferenceIndex
from tests.router.load.reports import new_bookings
from tests.router.pick_stand import QUIET, UNENDING, Stand, pod, prompt, standing
from tests.router.running_router import metrics_page
from tests.servers.redis_cluster import RedisCluster
from tests.servers.redis_server import RedisServer
from tests.waiting import until
from warmpath.indexer.believed import Believed
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.redis.command import Redis, Reply
from warmpath.indexer.shared.redis.connect import RedisSettings, connect
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.load.bookings import Work
from warmpath.router.load.table import LoadTable
from warmpath.router.peers import booking_id
from warmpath.router.peers.exchange import PeerBookings
from warmpath.router.peers.run import sharing


class Sharer:
    """A router as far as it shares bookings, on this loop's clock."""

    def __init__(self, prefix: str, hash_seed: str = "") -> None:
        self.name = booking_id.new_router()
        self.bookings = new_bookings(100)
        believed = Believed(ReferenceIndex(), max_blocks=100, assumed_seconds=60.0)
        self.peers = PeerBookings(
            self.name, KeyNames(prefix), self.bookings, believed, hash_seed=hash_seed
        )
        self.loads = LoadTable(self.bookings, stale_seconds=5.0, others=self.peers.received)
        self.reports: list[bytes] = []
        self.own: list[str] = []
        """The bookings' own ids."""

    @property
    def now(self) -> float:
        return time.monotonic()

    def book(self, pod: str = "p") -> str:
        """Book, and return the booking id that a caller knows."""
        booking = self.bookings.book(Work("m", pod, 0, 100, 28, 1.0), self.now)
        self.own.append(booking.id)
        return booking_id.new_id(self.name)

    def in_flight(self, pod: str = "p") -> int:
        return self.loads.load(pod, 0, self.now).in_flight

    @asynccontextmanager
    async def sharing(self, url: str) -> AsyncIterator[Redis]:
        redis = await connect(RedisSettings(url))
        try:
            async with sharing(
                self.peers,
                self.loads,
                redis,
                reported=self.reports.append,
                read=lambda: None,
                rng=Random(1),
            ):
                yield redis
        finally:
            await redis.close()


@pytest.fixture(params=["redis", "valkey", "cluster"])
def url(request: pytest.FixtureRequest) -> str:
    name = {"redis": "redis_server", "valkey": "valkey_server", "cluster": "redis_cluster"}
    server: RedisServer | RedisCluster = request.getfixturevalue(name[request.param])
    return server.url


@pytest.mark.deep
async def test_three_routers_tell_each_other_and_hand_reports_on(
    url: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A server that is late on a busy machine is no failure here.
    monkeypatch.setattr("warmpath.router.peers.run.TIMEOUT_SECONDS", 60.0)
    routers = [Sharer(prefix) for _ in range(3)]
    async with AsyncExitStack() as stack:
        for router in routers:
            await stack.enter_async_context(router.sharing(url))
        names = [router.book() for router in routers for _ in range(2)]
        await until(lambda: all(router.in_flight() == 6 for router in routers))
        assert routers[0].peers.hand_on(names[-1], b"first", routers[0].now)
        assert routers[0].peers.hand_on(names[-1], b"second", routers[0].now)
        await until(lambda: len(routers[2].reports) == 2)
        assert routers[2].reports == [b"first", b"second"]
        assert not routers[1].reports
        routers[2].bookings.end(routers[2].own[-1], routers[2].now)
        await until(lambda: all(router.in_flight() == 5 for router in routers))
        assert all(not router.peers.failures for router in routers)


async def test_a_router_that_ends_leaves_nothing_and_one_that_is_killed_only_what_expires(
    redis_server: RedisServer, prefix: str
) -> None:
    names = KeyNames(prefix)
    killed, other = Sharer(prefix), Sharer(prefix)
    async with other.sharing(redis_server.url) as redis:
        await redis.run(killed.peers.ask(killed.now), timeout=5.0)
        killed_key = names.load(killed.name)
        async with Sharer(prefix).sharing(redis_server.url):
            await until(lambda: len(other.peers.received.alive(other.now)) == 2)
        await until(lambda: len(other.peers.received.alive(other.now)) < 2)
        assert other.peers.hand_on(booking_id.new_id(killed.name), b"report", other.now)
        await until(lambda: other.peers.relay.handed_on)
        with redis_server.client() as client:
            for key in (killed_key, names.load(other.name)):
                assert 0 < client.pttl(key) <= 3_000, key
            assert 0 < client.pttl(names.reports(killed.name)) <= 600_000
            assert client.pttl(names.routers) > 0
    with redis_server.client() as client:
        keys = {key.decode() for key in client.keys(f"{prefix}:*")}
        for key in keys - {names.routers, names.reports(killed.name)}:
            assert client.pttl(key) <= 3_000, key
        assert client.hkeys(names.routers) == [killed.name.encode()]


async def test_a_router_that_ends_first_hands_on_the_reports_for_others(
    redis_server: RedisServer, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ending, other = Sharer(prefix), Sharer(prefix)
    async with other.sharing(redis_server.url):
        booked = other.book()
        async with ending.sharing(redis_server.url):
            ending.book()
            await until(lambda: ending.in_flight() == 2)
            assert ending.peers.hand_on(booked, b"report", ending.now)
        await until(lambda: other.reports == [b"report"])
        await until(lambda: other.in_flight() == 1)
    told = next(line for line in caplog.messages if "handed on" in line)
    assert told == (
        "1 reports were handed on to other routers, which count the 1 bookings of this router that have"
        " not ended for 3 s more at most"
    )


async def test_reports_wait_until_redis_is_back(
    prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    owner, other = Sharer(prefix), Sharer(prefix)
    with RedisServer() as server:
        async with owner.sharing(server.url), other.sharing(server.url):
            booked = owner.book()
            await until(lambda: len(other.peers.received.alive(other.now)))
            server.kill()
            assert other.peers.hand_on(booked, b"at once", other.now)
            await until(lambda: not len(other.peers.received.alive(other.now)))
            assert other.peers.hand_on(booked, b"later", other.now)
            assert other.peers.hand_on("call-1", b"by a name", other.now)
            assert other.peers.relay.waiting == 3
            server.restart()
            await until(lambda: len(owner.reports) >= 3)
            assert set(owner.reports) == {b"at once", b"later", b"by a name"}
            await until(lambda: owner.peers.is_connected and other.peers.is_connected)
            await until(lambda: "shared with other routers again" in caplog.text)
    assert "not shared with other routers: " in caplog.text


async def test_reports_that_redis_did_not_take_before_the_end_are_named(
    prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    owner, other = Sharer(prefix), Sharer(prefix)
    with RedisServer() as server:
        async with owner.sharing(server.url), other.sharing(server.url):
            await until(lambda: len(other.peers.received.alive(other.now)))
            server.kill()
            assert other.peers.hand_on(owner.book(), b"report", other.now)
    assert "1 reports for other routers are lost: Redis did not take them" in caplog.messages


async def test_after_a_bug_bookings_are_shared_again(
    redis_server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = Sharer(prefix), Sharer(prefix)
    answer, bugs = one.peers.answer, [RuntimeError("a bug")]

    def buggy(replies: Sequence[Reply], now: float) -> list[bytes]:
        if bugs:
            raise bugs.pop()
        return answer(replies, now)

    monkeypatch.setattr(one.peers, "answer", buggy)
    async with one.sharing(redis_server.url), other.sharing(redis_server.url):
        other.book()
        await until(lambda: one.in_flight() == 1)
    assert not bugs


async def test_routers_that_were_not_heard_of_for_long_are_forgotten(
    redis_server: RedisServer, prefix: str
) -> None:
    names = KeyNames(prefix)
    gone, resting = booking_id.new_router(), booking_id.new_router()
    with redis_server.client() as client:
        seconds, _ = client.time()
        for name, ago in ((gone, 61), (resting, 30)):
            client.hset(names.routers, name, str((seconds - ago) * 1000))
        one = Sharer(prefix)
        async with one.sharing(redis_server.url):
            await until(lambda: one.peers.writes)
            assert set(client.hkeys(names.routers)) == {resting.encode(), one.name.encode()}
            assert len(one.peers.received.alive(one.now)) == 0


# Whole routers

PODS = "abcdefgh"
EIGHT = QUIET + UNENDING + "".join(pod(name) for name in PODS)
ROUND = 10
"""Picks that each router gets before the two are let tell each other."""


def shared_index(url: str, prefix: str) -> str:
    return f'[shared-index]\nurl = "{url}"\nprefix = "{prefix}"\nshare-bookings = true\n'


@asynccontextmanager
async def two_routers(folder: Path, url: str, prefix: str) -> AsyncIterator[tuple[Stand, Stand]]:
    tables = EIGHT + shared_index(url, prefix)
    async with (
        standing(folder, tables, metrics="127.0.0.1:0") as one,
        standing(folder, tables, metrics="127.0.0.1:0") as other,
    ):
        yield one, other


async def in_flight(stand: Stand) -> int:
    told = (await stand.explain(prompt(10, first=7))).candidates
    return sum(one.details.in_flight for one in told)


async def until_booked(stands: Sequence[Stand], requests: int) -> None:
    """Wait until each router counts so many requests in flight, whichever has picked for them."""
    for stand in stands:
        while await in_flight(stand) != requests:
            await asyncio.sleep(0.01)


async def metric(stand: Stand, name: str) -> float:
    page = await metrics_page(stand.http_address)
    found = re.search(rf"^warmpath_shared_bookings_{name} (\S+)$", page, re.MULTILINE)
    assert found, page
    return float(found[1])


async def test_a_router_whose_redis_is_gone_says_so_until_it_is_back(
    tmp_path: Path, prefix: str
) -> None:
    async def findings(stand: Stand) -> list[str]:
        found = await stand.diagnose()
        return [one.text for one in found.findings if one.kind == "source"]

    with RedisServer() as server:
        tables = EIGHT + shared_index(server.url, prefix)
        async with standing(tmp_path, tables) as stand:
            assert await findings(stand) == []
            server.kill()
            told = await until(lambda: findings(stand))
            assert told[0].startswith("bookings of other routers cannot be asked for ")
            assert "shared-index.url" in told[0]
            server.restart()
            while await findings(stand):
                await asyncio.sleep(0.05)


async def test_a_router_that_redis_refuses_is_not_advised_to_look_whether_redis_runs(
    tmp_path: Path, prefix: str
) -> None:
    with RedisServer(users=("user default on >secret ~* +@all",)) as server:
        async with standing(tmp_path, EIGHT + shared_index(server.url, prefix)) as stand:
            while not (
                found := [one for one in (await stand.diagnose()).findings if one.kind == "source"]
            ):
                await asyncio.sleep(0.05)
            assert "wants a password: give it in shared-index.password-file" in found[0].text
            assert "whether Redis runs" not in found[0].text


async def test_routers_whose_hash_seeds_differ_say_so(
    tmp_path: Path, redis_server: RedisServer, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def seeds(stand: Stand) -> list[str]:
        found = await stand.diagnose()
        return [one.text for one in found.findings if one.kind == "hash-seed"]

    said = "index.hash-seed is another at 1 of the routers that share bookings"
    tables = EIGHT + shared_index(redis_server.url, prefix)
    async with (
        standing(tmp_path, tables, metrics="127.0.0.1:0") as stand,
        Sharer(prefix).sharing(redis_server.url),
    ):
        await until(lambda: metric(stand, "routers"))
        assert await seeds(stand) == []
        async with Sharer(prefix, hash_seed="another").sharing(redis_server.url):
            told = await until(lambda: seeds(stand))
            assert told[0].startswith(said)
            assert told[0].endswith("give all routers one index.hash-seed")
            await until(lambda: any(one.startswith(said) for one in caplog.messages))
        while await seeds(stand):
            await asyncio.sleep(0.05)


async def burst(stands: Sequence[Stand]) -> list[str]:
    """Let each pick for the same new prompt, all at once; return the pods."""
    same = prompt(8000)
    picked = [stand.pick(same) for stand in stands for _ in range(ROUND)]
    return [answer.candidates[0].pod for answer in await asyncio.gather(*picked)]


@pytest.mark.deep
async def test_picks_go_on_when_redis_is_killed_in_the_middle_and_metrics_say_so(
    tmp_path: Path, prefix: str
) -> None:
    counts: Counter[str] = Counter()
    with RedisServer() as server:
        async with two_routers(tmp_path, server.url, prefix) as stands:
            counts.update(await burst(stands))
            await until_booked(stands, 20)
            server.kill()
            for _ in range(5):
                counts.update(await burst(stands))
            assert counts.total() == 120, "none failed"

            async def is_alone() -> bool:
                told = [await metric(stand, "connected") for stand in stands]
                told += [await metric(stand, "routers") for stand in stands]
                return not any(told)

            await until(is_alone)
            assert [await in_flight(stand) for stand in stands] == [60, 60]
            server.restart()
            await until_booked(stands, 120)

            await until(lambda: metric(stands[0], "connected"))


async def test_picks_do_not_wait_for_a_redis_that_hangs(tmp_path: Path, prefix: str) -> None:
    with RedisServer() as server:
        async with two_routers(tmp_path, server.url, prefix) as stands:
            server.pause()
            try:
                assert len(await burst(stands)) == 2 * ROUND
                answer = await stands[0].pick(prompt(100))
                assert await stands[0].report(answer.booking_id, "FINISHED")
                while await metric(stands[0], "connected"):
                    await asyncio.sleep(0.01)
            finally:
                server.resume()


async def test_reports_may_go_to_either_router(
    tmp_path: Path, redis_server: RedisServer, prefix: str
) -> None:
    async with two_routers(tmp_path, redis_server.url, prefix) as (one, other):
        answer = await one.pick(prompt())
        name, elsewhere = answer.booking_id, answer.candidates[1].pod
        await until_booked([other], 1)
        code, said = await other.refused(other.report(name, "STARTED", pod="x"))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "the router knows no such pod" in said
        assert await other.report(name, "STARTED", pod=elsewhere)
        assert await other.report(name, "FIRST_TOKEN")
        counts = {"cached_tokens": 0, "prompt_tokens": 100, "output_tokens": 7}
        assert await other.report(name, "FINISHED", **counts)

        async def is_over() -> bool:
            [decision] = await one.decisions()
            return decision.state == pb.Decision.FINISHED

        await until(is_over)
        [decision] = await one.decisions()
        assert (decision.pod, decision.cached_tokens) == (elsewhere, 0)
        assert await metric(one, "reports_received_total") == 3
        assert not await one.report(name, "FINISHED")
        assert not await other.report("0" * 12 + "-" + "0" * 16, "FINISHED")


async def test_a_callers_name_ends_its_picks_at_every_router(
    tmp_path: Path, redis_server: RedisServer, prefix: str
) -> None:
    async with two_routers(tmp_path, redis_server.url, prefix) as (one, other):
        answer = await one.pick(prompt(), booking_id="call-1")
        assert answer.booking_id == "call-1"
        await until_booked((one, other), 1)
        assert await other.report("call-1", "FAILED"), "of a pick whose answer its caller never saw"
        await until_booked((one, other), 0)
        await one.pick(prompt(), booking_id="call-2")
        await other.pick(prompt(), booking_id="call-2")
        await until_booked((one, other), 2)
        assert await other.report("call-2", "FINISHED", cached_tokens=0, prompt_tokens=100)
        await until_booked((one, other), 0)
        states = [decision.state for decision in await one.decisions()]
        assert states == [pb.Decision.FAILED, pb.Decision.FAILED]
        [decision] = await other.decisions()
        assert decision.state == pb.Decision.FINISHED
