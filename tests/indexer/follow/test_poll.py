"""The poller against a server that answers as TensorRT-LLM does: each event once."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import zmq.asyncio
from aiohttp import web

from tests.indexer.followed import new_ingest, source
from tests.indexer.trtllm_answers import CREATED, answer, block, stored
from tests.until import until
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


async def stop(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def held_by(rank: RankIngest) -> set[int]:
    return set().union(*rank.state.held().values())


def poller(followed: dict[int, RankIngest], url: str, *, max_bytes: int = 1 << 20) -> Poller:
    patience = Patience(replay_seconds=5, max_frame_bytes=max_bytes)
    return Poller(followed, url, patience, interval=0.001)


async def test_what_is_fetched_is_followed_and_an_outage_loses_nothing(server: Engine) -> None:
    followed = ranks(1)
    server.answers.append(answer(CREATED, stored(None, block(1, 1, 2))))
    task = asyncio.create_task(poller(followed, server.url).run())
    await until(lambda: followed[0].trust.level is Level.EXACT)
    server.status = 503
    await until(lambda: not followed[0].is_connected)
    server.answers.append(answer(stored(1, block(2, 3, 4)), first=2))
    server.status = 200
    await until(lambda: followed[0].batches == 3)
    assert followed[0].trust.level is Level.EXACT
    await stop(task)


async def test_an_engine_that_restarts_and_says_the_same_again_holds_nothing_of_its_last_life(
    server: Engine,
) -> None:
    followed = ranks(1)
    same = CREATED, stored(None, block(1, 1, 2))
    server.answers.append(answer(*same, stored(1, block(2, 3, 4))))
    task = asyncio.create_task(poller(followed, server.url).run())
    await until(lambda: followed[0].batches == 3)
    server.answers.append(answer(*same))
    await until(lambda: followed[0].batches == 5)
    assert followed[0].trust.level is Level.EXACT
    assert len(held_by(followed[0])) == 1
    await stop(task)


async def test_a_rank_is_not_exact_while_an_answer_that_broke_off_may_have_had_events(
    server: Engine,
) -> None:
    followed = ranks(1)
    server.answers.append(answer(CREATED, stored(None, block(1, 1, 2))))
    task = asyncio.create_task(poller(followed, server.url).run())
    await until(lambda: followed[0].trust.level is Level.EXACT)
    server.loses = True
    await until(lambda: not followed[0].is_connected)
    server.loses = False
    await until(lambda: followed[0].is_connected)
    assert followed[0].trust.level is Level.DEGRADED
    server.answers.append(answer(stored(1, block(2, 3, 4)), first=2))
    await until(lambda: followed[0].batches == 3)
    assert followed[0].trust.level is Level.EXACT, (
        "the next event's number shows that none is missing"
    )
    await stop(task)


async def test_a_rank_is_not_exact_after_an_answer_past_the_bound(server: Engine) -> None:
    followed = ranks(1)
    server.answers.append(answer(CREATED))
    task = asyncio.create_task(poller(followed, server.url, max_bytes=1000).run())
    await until(lambda: followed[0].trust.level is Level.EXACT)
    server.answers.append(answer(*[stored(None, block(1, 1, 2))] * 9, first=1))
    await until(lambda: followed[0].trust.level is not Level.EXACT)
    calls = server.calls
    await until(lambda: server.calls >= calls + 3 and followed[0].is_connected)
    assert followed[0].trust.level is Level.DEGRADED
    assert followed[0].batches == 1
    await stop(task)


async def test_a_rank_is_not_saved_as_exact_while_an_answer_is_under_way(server: Engine) -> None:
    followed = ranks(1)
    server.answers.append(answer(CREATED))
    task = asyncio.create_task(poller(followed, server.url).run())
    await until(lambda: followed[0].trust.level is Level.EXACT)
    server.answers_wait = True
    await until(lambda: server.waiting == 1)
    await stop(task)
    server.go_on.set()
    assert followed[0].save().stream.level is Level.DEGRADED


async def test_each_event_goes_to_its_rank_and_those_of_others_are_counted_at_the_first(
    server: Engine,
) -> None:
    followed = ranks(2)
    server.answers.append(
        b'[{"event_id":0,"attention_dp_rank":9,"data":{"type":"removed","block_hashes":[]}},'
        b'{"event_id":0,"attention_dp_rank":1,"window_size":64,"data":'
        b'{"type":"created","num_blocks_per_cache_level":[4,0]}}]'
    )
    task = asyncio.create_task(poller(followed, server.url).run())
    await until(lambda: followed[1].batches == 1)
    assert followed[0].batches == 0
    assert followed[0].trust.level is Level.COLD
    assert [rank.counts()["skipped"] for rank in followed.values()] == [1, 0]
    await stop(task)


async def test_ranks_are_numbered_as_the_engine_numbers_them(server: Engine) -> None:
    followed = ranks(2)
    event = b'[{"event_id":0,"attention_dp_rank":5,"window_size":64,"data":'
    server.answers.append(event + b'{"type":"created","num_blocks_per_cache_level":[4,0]}}]')
    described = Described("p", "m", "trtllm", server.url, ranks=2, first_rank=4)
    patience = Patience(replay_seconds=5, reconnect_seconds=1, max_frame_bytes=1 << 20)
    with zmq.asyncio.Context() as context:
        [work] = connections(described, list(followed.values()), context, patience)
        task = asyncio.create_task(work.run())
        await until(lambda: followed[1].batches == 1)
        assert followed[0].batches == 0
        await stop(task)


async def test_an_answer_that_cannot_be_read_marks_every_rank(server: Engine) -> None:
    followed = ranks(2)
    server.answers.append(b"nonsense")
    task = asyncio.create_task(poller(followed, server.url).run())
    await until(lambda: all(rank.malformed for rank in followed.values()))
    assert all(rank.trust.level is Level.DEGRADED for rank in followed.values())
    await stop(task)


async def test_an_event_without_a_number_costs_itself_and_not_its_answer(server: Engine) -> None:
    followed = ranks(1)
    first, odd, second = json.loads(answer(CREATED, CREATED, stored(None, block(1, 1, 2))))
    server.answers.append(json.dumps([first, odd | {"event_id": "1"}, second]).encode())
    task = asyncio.create_task(poller(followed, server.url).run())
    await until(lambda: followed[0].batches == 2)
    assert followed[0].malformed == 1
    assert followed[0].trust.level is Level.DEGRADED
    assert "batches 1 to 1 are lost" in followed[0].trust.reason
    await stop(task)
