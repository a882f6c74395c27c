"""A router that looks everything up in Redis, beside a publisher that writes it: also while Redis is away."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.indexer.consistent import check
from tests.indexer.shared.inside import check_remote
from tests.publisher.published_pod import FULL, IDS, Pod
from tests.router.shared_stand import router, seen
from tests.router.tracing.recorded_spans import Recorded, parent
from tests.servers.redis_server import RedisServer
from tests.servers.relay import Relay
from warmpath.indexer.keys.key import pack_tokens
from warmpath.lab.local.cluster import MODEL
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc
from warmpath.router.tracing.steps import NO_TRACER, Tracer

pytestmark = pytest.mark.deep

PATIENCE = 60.0
LEASE = 2
PROMPT, OTHERS = (
    pb.Prompt(model=MODEL, token_ids_packed=pack_tokens(ids)) for ids in (IDS, range(5000, 5160))
)


class Asker:
    """A client of a router. No call of it fails."""

    def __init__(self, stub: router_pb2_grpc.RouterStub) -> None:
        self.stub = stub
        self.answers: list[pb.PodScore] = []

    async def score(self) -> pb.PodScore:
        request = pb.ScoreRequest(prompt=PROMPT)
        response = await self.stub.Score(request, timeout=PATIENCE)
        self.answers += response.scores
        return response.scores[0]

    async def until(self, ready: Callable[[pb.PodScore], bool]) -> pb.PodScore:
        async with asyncio.timeout(PATIENCE):
            while not ready(score := await self.score()):
                await asyncio.sleep(0.01)
            return score

    async def until_warm(self) -> pb.PodScore:
        return await self.until(
            lambda score: score.trust.level == pb.Trust.EXACT and score.matched_tokens == FULL
        )


@dataclass
class Fleet:
    """A pod, its publisher, and routers that know it through Redis alone."""

    pod: Pod
    prefix: str
    folder: Path

    async def publish(self, server: RedisServer) -> None:
        """Start the publisher, and let the pod hold IDS."""
        options = f"--redis-prefix={self.prefix}", f"--redis-lease-seconds={LEASE}"
        await self.pod.publish(f"--redis={server.url}", *options)
        await self.pod.generate(IDS)

    @asynccontextmanager
    async def asking(
        self, url: str, deadline: float = 0.5, tracer: Tracer = NO_TRACER
    ) -> AsyncIterator[Asker]:
        more = f'mode = "shared"\ndeadline-seconds = {deadline}\nstale-seconds = 3\n'
        pods = seen(self.pod.worker, "p")
        async with router(self.folder, url, self.prefix, pods, more, tracer=tracer) as one:
            yield Asker(one.stub)
            assert one.running.ingest.remote is not None
            check_remote(one.running.ingest.remote)
            check(one.running.ingest)


@pytest.fixture
async def fleet(tmp_path: Path, prefix: str) -> AsyncIterator[Fleet]:
    async with Pod(tmp_path) as pod:
        yield Fleet(pod, prefix, tmp_path)


async def test_what_one_publisher_writes_every_call_of_the_router_knows(
    fleet: Fleet, redis_server: RedisServer
) -> None:
    await fleet.publish(redis_server)
    recorded = Recorded()
    async with fleet.asking(redis_server.url, tracer=recorded.tracer) as asker:
        score = await asker.until_warm()
        assert score.ready
        recorded.exporter.clear()
        assert await fleet.pod.generate(IDS) == FULL
        picked = await asker.stub.Pick(pb.PickRequest(prompt=PROMPT), timeout=PATIENCE)
        assert picked.candidates[0].matched_tokens == FULL
        spans = recorded.taken()
        own = spans["warmpath.v1.Router/Pick"].context.span_id
        assert parent(spans["look-up"]) == f"{own:016x}"
        explained = await asker.stub.Explain(pb.ExplainRequest(prompt=PROMPT), timeout=PATIENCE)
        assert explained.candidates[0].trust.level == pb.Trust.EXACT
        listed = await asker.stub.ListPods(pb.ListPodsRequest(), timeout=PATIENCE)
        [rank] = listed.pods[0].ranks
        assert (rank.block_size, rank.trust.level) == (16, pb.Trust.EXACT)
        assert rank.tiers[0].blocks >= FULL // 16


async def test_no_call_fails_while_redis_is_killed_and_comes_back_with_nothing(
    fleet: Fleet, redis_server: RedisServer
) -> None:
    await fleet.publish(redis_server)
    async with fleet.asking(redis_server.url) as asker:
        await asker.until_warm()
        asker.answers.clear()
        redis_server.kill()
        old = await asker.until(lambda score: "a copy" in score.trust.reason)
        assert old.trust.level == pb.Trust.DEGRADED
        assert old.matched_tokens == FULL
        await asker.until(lambda score: score.trust.level == pb.Trust.STALE)
        assert all(score.ready for score in asker.answers)
        picked = await asker.stub.Pick(pb.PickRequest(prompt=OTHERS), timeout=PATIENCE)
        report = pb.ReportRequest(booking_id=picked.booking_id, event=pb.ReportRequest.FINISHED)
        await asker.stub.Report(report, timeout=PATIENCE)
        explained = await asker.stub.Explain(pb.ExplainRequest(prompt=OTHERS), timeout=PATIENCE)
        # What was sent there is believed, where nobody can tell.
        assert explained.candidates[0].details.assumed_tokens == FULL
        redis_server.restart()
        await asker.until_warm()
        levels = {score.trust.level for score in asker.answers}
        assert pb.Trust.STALE in levels
        held = [score.matched_tokens for score in asker.answers]
        assert set(held) <= {0, FULL}


async def test_a_publisher_that_dies_holds_nothing_when_its_lease_is_over(
    fleet: Fleet, redis_server: RedisServer
) -> None:
    await fleet.publish(redis_server)
    async with fleet.asking(redis_server.url) as asker:
        await asker.until_warm()
        fleet.pod.publisher.kill()
        gone = await asker.until(lambda score: score.trust.level == pb.Trust.COLD)
        assert gone.matched_tokens == 0
        assert not gone.ready
        await fleet.pod.publisher.stop()
        await fleet.publish(redis_server)
        await asker.until_warm()


async def test_what_waits_for_redis_holds_up_nothing_else_of_a_stream(
    fleet: Fleet, redis_server: RedisServer
) -> None:
    await fleet.publish(redis_server)
    with Relay(redis_server.port) as relay:
        async with fleet.asking(relay.url, deadline=10.0) as asker:
            await asker.until_warm()
            stream = asker.stub.ScoreStream(timeout=PATIENCE)
            relay.pause()
            await stream.write(pb.ScoreRequest(prompt=OTHERS, request_id=1))
            await stream.write(pb.ScoreRequest(prompt=pb.Prompt(model="?"), request_id=2))
            first = await stream.read()
            assert first.HasField("error")
            relay.resume()
            second = await stream.read()
            assert (second.request_id, second.HasField("response")) == (1, True)
            await stream.done_writing()
