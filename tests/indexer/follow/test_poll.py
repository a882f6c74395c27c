"""The poller against a server that answers as TensorRT-LLM does: each event once."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable

import pytest
import zmq.asyncio
from aiohttp import web

from tests.indexer.follow.conftest import Run
from tests.indexer.followed import new_ingest, source
from tests.indexer.trtllm_answers import CREATED, answer, block, stored
from tests.waiting import until
from warmpath.indexer.engines import trtllm
from warmpath.indexer.follow.connect import connections
from warmpath.indexer.follow.instance import Engine as Described
from warmpath.indexer.follow.instance import Patience
from warmpath.indexer.follow.poll import Poller
from warmpath.indexer.follow.stream_source import RankIngest
from warmpath.indexer.trust import Level


class Engine:
    """Answers each call with what was put since the last one."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: list[bytes] = []
        self.status = 200
        self.calls = 0
        self.loses = False
        """Whether the connection breaks before the answer."""
        self.answers_wait = False
        self.go_on = asyncio.Event()
        """Ends the wait of an answer."""
        self.waiting = 0

    async def serve(self, request: web.Request) -> web.Response:
        self.calls += 1
        if self.loses:
            assert request.transport is not None
            request.transport.close()
        if self.answers_wait:
            self.waiting += 1
            await self.go_on.wait()
        body = self.answers.pop(0) if self.answers and self.status == 200 else b"[]"
        return web.Response(status=self.status, body=body)


@pytest.fixture
async def server() -> AsyncIterator[Engine]:
    engine = Engine()
    app = web.Application()
    app.router.add_post("/kv_cache_events", engine.serve)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    engine.url = f"http://127.0.0.1:{runner.addresses[0][1]}/kv_cache_events"
    yield engine
    await runner.cleanup()


def ranks(count: int) -> dict[int, RankIngest]:
    ingest = new_ingest()
    return {
        n: ingest.add(source(rank=n, decode=trtllm.Codec(2), has_replay=False, is_queue=True))
        for n in range(count)
    }


def poller(followed: dict[int, RankIngest], url: str, max_bytes: int = 1 << 20) -> Poller:
    patience = Patience(replay_seconds=5, max_frame_bytes=max_bytes)
    return Poller(followed, url, patience, interval=0.001)


Polled = Callable[..., Iterable[RankIngest]]


@pytest.fixture
def polled(server: Engine, run: Run) -> Polled:
    """Poll the server for so many ranks from the next wait on."""

    def begin(count: int, **limits: int) -> Iterable[RankIngest]:
        followed = ranks(count)
        run(poller(followed, server.url, **limits).run())
        return followed.values()

    return begin


async def test_what_is_fetched_is_followed_and_an_outage_loses_nothing(
    server: Engine, polled: Polled
) -> None:
    [rank] = polled(1)
    server.answers.append(answer(CREATED, stored(None, block(1, 1, 2))))
    await until(lambda: rank.trust.level is Level.EXACT)
    server.status = 503
    await until(lambda: not rank.is_connected)
    server.answers.append(answer(stored(1, block(2, 3, 4)), first=2))
    server.status = 200
    await until(lambda: rank.batches == 3)
    assert rank.trust.level is Level.EXACT


async def test_an_engine_that_restarts_and_says_the_same_again_holds_nothing_of_its_last_life(
    server: Engine, polled: Polled
) -> None:
    [rank] = polled(1)
    same = CREATED, stored(None, block(1, 1, 2))
    server.answers.append(answer(*same, stored(1, block(2, 3, 4))))
    await until(lambda: rank.batches == 3)
    server.answers.append(answer(*same))
    await until(lambda: rank.batches == 5)
    assert rank.trust.level is Level.EXACT
    assert len(set().union(*rank.state.held().values())) == 1


async def test_a_rank_is_not_exact_while_an_answer_that_broke_off_may_have_had_events(
    server: Engine, polled: Polled
) -> None:
    [rank] = polled(1)
    server.answers.append(answer(CREATED, stored(None, block(1, 1, 2))))
    await until(lambda: rank.trust.level is Level.EXACT)
    server.loses = True
    await until(lambda: not rank.is_connected)
    server.loses = False
    await until(lambda: rank.is_connected)
    assert rank.trust.level is Level.DEGRADED
    server.answers.append(answer(stored(1, block(2, 3, 4)), first=2))
    await until(lambda: rank.batches == 3)
    assert rank.trust.level is Level.EXACT, "the next event's number shows that none is missing"


async def test_a_rank_is_not_exact_after_an_answer_past_the_bound(
    server: Engine, polled: Polled
) -> None:
    [rank] = polled(1, max_bytes=1000)
    server.answers.append(answer(CREATED))
    await until(lambda: rank.trust.level is Level.EXACT)
    server.answers.append(answer(*[stored(None, block(1, 1, 2))] * 9, first=1))
    await until(lambda: rank.trust.level is not Level.EXACT)
    calls = server.calls
    await until(lambda: server.calls >= calls + 3 and rank.is_connected)
    assert rank.trust.level is Level.DEGRADED
    assert rank.batches == 1


async def test_a_rank_is_not_saved_as_exact_while_an_answer_is_under_way(
    server: Engine, run: Run
) -> None:
    followed = ranks(1)
    server.answers.append(answer(CREATED))
    task = run(poller(followed, server.url).run())
    await until(lambda: followed[0].trust.level is Level.EXACT)
    server.answers_wait = True
    await until(lambda: server.waiting == 1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    server.go_on.set()
    assert followed[0].save().stream.level is Level.DEGRADED


async def test_each_event_goes_to_its_rank_and_those_of_others_are_counted_at_the_first(
    server: Engine, polled: Polled
) -> None:
    first, second = polled(2)
    server.answers.append(
        b'[{"event_id":0,"attention_dp_rank":9,"data":{"type":"removed","block_hashes":[]}},'
        b'{"event_id":0,"attention_dp_rank":1,"window_size":64,"data":'
        b'{"type":"created","num_blocks_per_cache_level":[4,0]}}]'
    )
    await until(lambda: second.batches == 1)
    assert first.batches == 0
    assert first.trust.level is Level.COLD
    assert [rank.counts()["skipped"] for rank in (first, second)] == [1, 0]


async def test_ranks_are_numbered_as_the_engine_numbers_them(
    context: zmq.asyncio.Context, server: Engine, run: Run
) -> None:
    followed = ranks(2)
    event = b'[{"event_id":0,"attention_dp_rank":5,"window_size":64,"data":'
    server.answers.append(event + b'{"type":"created","num_blocks_per_cache_level":[4,0]}}]')
    described = Described("p", "m", "trtllm", server.url, ranks=2, first_rank=4)
    patience = Patience(replay_seconds=5, reconnect_seconds=1, max_frame_bytes=1 << 20)
    [work] = connections(described, list(followed.values()), context, patience)
    run(work.run())
    await until(lambda: followed[1].batches == 1)
    assert followed[0].batches == 0


async def test_an_answer_that_cannot_be_read_marks_every_rank(
    server: Engine, polled: Polled
) -> None:
    first, second = polled(2)
    server.answers.append(b"nonsense")
    await until(lambda: all(rank.malformed for rank in (first, second)))
    assert all(rank.trust.level is Level.DEGRADED for rank in (first, second))


async def test_an_event_without_a_number_costs_itself_and_not_its_answer(
    server: Engine, polled: Polled
) -> None:
    [rank] = polled(1)
    first, odd, second = json.loads(answer(CREATED, CREATED, stored(None, block(1, 1, 2))))
    server.answers.append(json.dumps([first, odd | {"event_id": "1"}, second]).encode())
    await until(lambda: rank.batches == 2)
    assert rank.malformed == 1
    assert rank.trust.level is Level.DEGRADED
    assert "batches 1 to 1 are lost" in rank.trust.reason
