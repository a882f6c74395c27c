"""Look-ups in real servers: in time, over broken and slow connections, and with a part of a cluster gone.

One file, since all tests look up in one stand.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from random import Random

import numpy as np
import pytest

from tests.conformance.reference_index import ReferenceIndex
from tests.indexer.followed import new_ingest
from tests.indexer.shared.asked_server import connected
from tests.indexer.shared.inside import check_remote
from tests.indexer.shared.written_pod import KEYSPACE, WrittenPod, prompt_of
from tests.router.pick.picker_parts import KeyedPrompt
from tests.servers.redis_cluster import RedisCluster
from tests.servers.redis_server import RedisServer
from tests.servers.relay import Relay
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.index.slot import Place
from warmpath.indexer.keys.key import pack_words
from warmpath.indexer.keys.segment import SEGMENT
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.query.index import RemoteIndex
from warmpath.indexer.shared.query.lookup import SegmentCache
from warmpath.indexer.shared.records.record_source import RemoteRank
from warmpath.indexer.shared.records.registry import Registry
from warmpath.indexer.trust import Level, Trust
from warmpath.router.config import schema as config
from warmpath.router.match.match import Scorer
from warmpath.router.pick.eligible import Wanted, field_of
from warmpath.router.pick.picking import Picking
from warmpath.router.pick.weigh import Ask, Choice
from warmpath.router.pods.table import Pod

ROOMY = 5.0
"""A deadline that nothing here is to miss, seconds."""
NARROW = 0.1
PATIENCE = 30.0

PROMPT = list(range(1000, 1000 + 3 * SEGMENT + 5))


@dataclass
class Stand:
    """One pod in Redis, and an index that asks for it."""

    remote: RemoteIndex
    rank: RemoteRank
    pod: WrittenPod
    doubt: Trust | None = None
    """About the last answer."""

    async def ask(self, keys: list[int]) -> list[tuple[Place, int, int]]:
        await self.remote.refresh([pack_words(keys)], ROOMY)
        found, self.doubt = self.remote.match(prompt_of(keys))
        return found

    async def held(self, keys: list[int]) -> int:
        """Return how many leading blocks the pod is said to hold."""
        return max((stop for _, start, stop in await self.ask(keys) if not start), default=0)

    async def until(self, condition: Callable[[], bool], keys: list[int] = PROMPT) -> None:
        """Ask again and again until something is so."""
        async with asyncio.timeout(PATIENCE):
            await self.ask(keys)
            while not condition():
                await asyncio.sleep(0.01)
                await self.ask(keys)

    @property
    def trust(self) -> Trust:
        """How far the last answer may be believed of the rank."""
        return self.rank.in_answer(self.doubt)

    @property
    def level(self) -> Level:
        return self.trust.level


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    """Have compiled what a router compiles at its start: until then no copy is fresh."""
    SegmentCache(1 << 20).match(np.zeros(1, np.uint64))


@asynccontextmanager
async def stand(
    url: str, prefix: str, *, writing: str = "", deadline: float = ROOMY, name: str = "p"
) -> AsyncIterator[Stand]:
    """Have a pod written over one connection, and read over another."""
    names = KeyNames(prefix)
    async with connected(writing or url) as writer, connected(url) as redis:
        pod = WrittenPod(writer, names, name, 4711)
        await pod.fence()
        await pod.tell()
        loop = asyncio.get_running_loop()
        remote = RemoteIndex(
            redis,
            names,
            Registry(redis, names, loop.time),
            deadline=deadline,
            stale_after=3600.0,
            clock=loop.time,
        )
        rank = remote.add(name, 0, keyspace=KEYSPACE, ranks=1)
        running = asyncio.create_task(remote.run())
        made = Stand(remote, rank, pod)
        try:
            await confirmed(made)
            yield made
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await remote.close()
            check_remote(remote)


async def confirmed(made: Stand) -> None:
    """Have the pod's writer audit until nothing is doubted any more."""
    async with asyncio.timeout(PATIENCE):
        registry = made.remote._registry
        while made.rank.recorded.level is not Level.EXACT or registry.is_disrupted:
            await made.pod.tell()
            await asyncio.sleep(0.05)


async def until_exact(
    made: Stand, condition: Callable[[], bool] = lambda: True, keys: list[int] = PROMPT
) -> None:
    """Ask, with the pod's audits going on, until an answer is exact and a condition true.

    On a busy machine any read may be late, which audits have to make good again.
    """
    async with asyncio.timeout(PATIENCE):
        while True:
            await confirmed(made)
            await made.ask(keys)
            if made.level is Level.EXACT and condition():
                return
            # An answer from the copy waits for nothing: whatever mends the rest has its turn here.
            await asyncio.sleep(0.01)


async def test_what_a_publisher_wrote_is_found(server: RedisServer, prefix: str) -> None:
    async with stand(server.url, prefix) as made:
        await made.pod.hold(PROMPT[:130])
        await until_exact(made)
        assert await made.ask(PROMPT) == [(Place("p", 0, Tier.GPU, 0), 0, 130)]
        assert made.rank.is_connected
        assert made.rank.layout.block_size == 16
        assert made.rank.blocks() == {Tier.GPU: 1}


async def test_of_a_segment_where_many_prompts_part_each_is_found(
    server: RedisServer, prefix: str
) -> None:
    async with stand(server.url, prefix) as made:
        branches = list(range(2000, 2000 + 700))
        await made.pod.change({1000: ([1000], ())})
        await made.pod.change({1000: (branches[:350], ())})
        await made.pod.change({1000: (branches[350:], ())})
        for branch in (branches[0], branches[-1]):
            assert await made.held([1000, branch, 5]) == 2
        assert await made.held([1000, 6]) == 1
        await made.until(lambda: made.level is Level.EXACT, [1000, branches[9]])


async def test_those_who_ask_the_same_at_once_share_one_read(
    server: RedisServer, prefix: str
) -> None:
    async with stand(server.url, prefix) as made:
        await made.pod.hold(PROMPT)
        await asyncio.gather(*(made.ask(PROMPT) for _ in range(20)))
        assert made.remote.reads == 1
        assert made.remote.look_ups == 20
        # Only what lies behind where they part is read besides.
        await made.ask([*PROMPT[: 2 * SEGMENT], 5, 6])
        assert await made.held([*PROMPT[: 2 * SEGMENT], 5, 6]) == 2 * SEGMENT


async def test_a_cache_that_begins_anew_holds_nothing_and_has_another_life(
    server: RedisServer, prefix: str
) -> None:
    async with stand(server.url, prefix) as made:
        await made.pod.hold(PROMPT)
        assert await made.held(PROMPT) == len(PROMPT)
        life = made.remote.places.life("p", 0)
        await made.pod.empty()
        await made.until(lambda: made.remote.places.life("p", 0) == life + 1)
        assert await made.ask(PROMPT) == []
        await made.pod.hold(PROMPT[:SEGMENT])
        await made.until(lambda: made.remote.unknown_slots > 0)
        async with asyncio.timeout(PATIENCE):
            while await made.held(PROMPT) != SEGMENT:
                await asyncio.sleep(0.01)


async def test_a_pod_that_is_dropped_is_asked_for_no_longer(
    server: RedisServer, prefix: str
) -> None:
    async with stand(server.url, prefix) as made:
        await made.pod.hold(PROMPT)
        made.rank.close()
        await made.remote.poll()
        assert await made.ask(PROMPT) == []


async def test_where_answers_take_too_long_they_come_from_the_copy_and_say_so(
    relay: Relay, redis_server: RedisServer, prefix: str
) -> None:
    made_of = stand(relay.url, prefix, writing=redis_server.url, deadline=NARROW)
    async with made_of as made:
        await made.pod.hold(PROMPT)
        await made.until(lambda: made.level is Level.EXACT)
        relay.latency = 0.5
        await made.until(lambda: made.level is not Level.EXACT)
        await made.until(lambda: "did not answer in 100 ms: a copy" in made.trust.reason)
        assert made.level is Level.DEGRADED
        assert await made.held(PROMPT) == len(PROMPT)
        unread = [*PROMPT[:SEGMENT], *range(5000, 5000 + SEGMENT)]
        assert await made.held(unread) == SEGMENT
        assert "nothing is known of 64 blocks" in made.trust.reason
        await made.until(lambda: made.remote.reach.open_buckets == 64)
        relay.latency = 0.0
        await until_exact(made, lambda: made.remote.reach.open_buckets == 0)


async def test_what_does_not_answer_is_left_alone_and_asked_again_when_it_does(
    relay: Relay, redis_server: RedisServer, prefix: str
) -> None:
    made_of = stand(relay.url, prefix, writing=redis_server.url, deadline=NARROW)
    async with made_of as made:
        await made.pod.hold(PROMPT)
        await made.until(lambda: made.level is Level.EXACT)
        relay.pause()
        await made.until(lambda: made.remote.reach.open_buckets == 64)
        reads, late = made.remote.reads, made.remote.late
        for _ in range(100):
            assert await made.held(PROMPT) == len(PROMPT)
            assert made.level is Level.DEGRADED
        assert (made.remote.reads, made.remote.late) == (reads, late)
        assert "64 of 64 buckets are left alone" in made.rank.trust.reason
        assert made.remote.timeouts
        relay.resume()
        await until_exact(made)
        assert made.remote.reach.openings >= 64


async def test_a_connection_that_breaks_in_the_middle_is_made_again(
    relay: Relay, redis_server: RedisServer, prefix: str
) -> None:
    async with stand(relay.url, prefix, writing=redis_server.url) as made:
        await made.pod.hold(PROMPT)
        for _ in range(5):
            relay.latency = 0.02
            asking = asyncio.create_task(made.ask(PROMPT))
            await asyncio.sleep(0)
            relay.cut()
            await asking
            relay.latency = 0.0
            await until_exact(made)
            assert await made.held(PROMPT) == len(PROMPT)


async def test_who_has_no_time_left_is_answered_from_the_copy(
    relay: Relay, redis_server: RedisServer, prefix: str
) -> None:
    async with stand(relay.url, prefix, writing=redis_server.url) as made:
        await made.pod.hold(PROMPT)
        relay.latency = 0.05
        await made.remote.refresh([pack_words(PROMPT)], 0.0)
        found, doubt = made.remote.match(prompt_of(PROMPT))
        assert found == []
        assert made.rank.in_answer(doubt).reason == (
            f"there was no time to ask the shared index: nothing is known of {len(PROMPT)} blocks"
        )
        assert made.rank.trust.level is Level.EXACT, "that was one answer's, not the rank's"
        assert made.remote.late == 1
        # The read goes on for those who come next.
        await made.until(lambda: made.level is Level.EXACT)
        assert made.remote.reach.open_buckets == 0


async def test_a_server_that_comes_back_empty_is_no_reason_to_believe_what_was_read(
    server: RedisServer, prefix: str
) -> None:
    async with stand(server.url, prefix) as made:
        await made.pod.hold(PROMPT)
        assert await made.held(PROMPT) == len(PROMPT)
        server.kill()
        await made.until(lambda: made.level is not Level.EXACT)
        assert await made.held(PROMPT) == len(PROMPT)
        server.restart()
        await made.until(lambda: made.level is Level.COLD)
        assert await made.ask(PROMPT) == []


async def test_a_loss_while_nobody_asked_is_over_for_the_next_who_asks_when_it_was_made_good(
    server: RedisServer, prefix: str
) -> None:
    async with stand(server.url, prefix) as made:
        names = KeyNames(prefix)
        server.ask("DEL", *(names.bucket(number) for number in range(names.buckets)))
        made.pod.claim_anew()
        await made.pod.fence()
        await made.pod.hold(PROMPT)
        await made.pod.tell()
        for _ in range(2):
            # The new claim, then what tells of the loss.
            await made.remote.poll()
        await confirmed(made)
        assert await made.held(PROMPT) == len(PROMPT)
        assert made.level is Level.EXACT


@dataclass
class Part:
    """One master of a cluster, blocks that lie there and elsewhere, and a pod whose record lies elsewhere."""

    master: RedisServer
    there: list[int]
    here: list[int]
    pod: str


def part_of(cluster: RedisCluster, prefix: str) -> Part:
    names = KeyNames(prefix)
    master = cluster.master_of(names.bucket(0))
    part = Part(master, [], [], "")
    part.pod = next(
        name
        for name in (f"pod-{number}" for number in range(100))
        if cluster.master_of(names.record(name)) is not master
    )
    for key in range(7000, 7064):
        on = cluster.master_of(names.bucket(names.bucket_of(key)))
        (part.there if on is master else part.here).append(key)
    return part


@pytest.mark.deep
async def test_prompts_that_are_asked_for_at_once_are_each_judged_by_their_own_look_up(
    redis_cluster: RedisCluster, prefix: str
) -> None:
    part = part_of(redis_cluster, prefix)
    clock = asyncio.get_running_loop().time
    async with stand(redis_cluster.url, prefix, deadline=0.5, name=part.pod) as made:
        ingest = new_ingest(ReferenceIndex, stale_after=3600.0, clock=clock, remote=made.remote)
        made.rank = rank = ingest.add_shared(part.pod, 0, keyspace=KEYSPACE, ranks=1)
        picker = Picking(
            config.PickTable(),
            config.BookingTable(),
            config.QueueTable(),
            index=ReferenceIndex(),
            scorer=partial(Scorer, ingest, ""),
            new_id=str,
            rng=Random(0),
        ).picker
        pods = [Pod(part.pod, "here:80", "m", (rank,))]

        async def weighed(key: int) -> Choice:
            ask = Ask(KeyedPrompt([key]), field_of(pods), Wanted("m"))
            await picker.refresh(ask, ROOMY)
            return picker.weigh(ask, clock())

        for key in (part.here[0], part.there[0]):
            await made.pod.hold([key])
        # Every node is connected to, and confirmed, before one of them hangs.
        await made.ask([part.here[1]])
        await made.ask([part.there[1]])
        await confirmed(made)
        part.master.pause()
        try:
            choices = await asyncio.gather(weighed(part.there[0]), weighed(part.here[0]))
            lost, fine = (choice.options[0] for choice in choices)
        finally:
            part.master.resume()
    assert (lost.match.matched_tokens, lost.trust.level) == (0, Level.DEGRADED)
    assert "nothing is known of 1 blocks" in lost.trust.reason
    assert (fine.match.matched_tokens, fine.trust.level) == (16, Level.EXACT)


@pytest.mark.deep
async def test_of_a_cluster_without_one_master_the_others_part_is_fresh(
    redis_cluster: RedisCluster, prefix: str
) -> None:
    part = part_of(redis_cluster, prefix)
    gone, here, there = part.master, part.here, part.there
    async with stand(redis_cluster.url, prefix, deadline=0.5, name=part.pod) as made:
        for key in (here[0], there[0]):
            await made.pod.hold([key])
        assert [await made.held([key]) for key in (here[0], there[0])] == [1, 1]
        gone.pause()
        try:
            await made.until(lambda: "copy" in made.trust.reason, [there[0]])
            assert await made.held([there[0]]) == 1
            await made.pod.change({here[1]: ([here[1]], ())})
            await made.until(lambda: "copy" not in made.trust.reason, [here[1]])
            assert await made.held([here[1]]) == 1
        finally:
            gone.resume()
        await until_exact(made, keys=[there[0]])
