"""What an engine says of itself decides whether its pod is ready."""

from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from indexer.engines import vllm
from indexer.ingest import Ingest
from indexer.memory import MemoryIndex
from indexer.rank_ingest import RankIngest
from indexer.rank_source import RankSource
from router.pods import Pod
from router.probe import Prober


class Engine:
    """/health, /metrics and /v1/models."""

    def __init__(self) -> None:
        self.health = 200
        self.models = b'{"object":"list","data":[{"id":"m","object":"model"},{"id":"tuned"}]}'
        self.metrics = (
            b'# HELP x\nvllm:cache_config_info{block_size="16",num_gpu_blocks="97"} 1.0\n'
        )

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/{path:.*}", self.answer)
        return app

    async def answer(self, request: web.Request) -> web.Response:
        if request.path == "/health":
            return web.Response(status=self.health)
        return web.Response(body=self.metrics if request.path == "/metrics" else self.models)


@pytest.fixture
async def engine() -> AsyncIterator[tuple[Engine, Pod, RankIngest]]:
    engine = Engine()
    runner = web.AppRunner(engine.app())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    ingest = Ingest(MemoryIndex(), hash_seed="", pending_bytes=1, stale_after=1, clock=lambda: 0.0)
    rank = ingest.add(RankSource("p", 0, "m", vllm.decode, has_replay=False))
    rank.connected()
    yield engine, Pod("p", f"127.0.0.1:{runner.addresses[0][1]}", "m", (rank,)), rank
    await runner.cleanup()


async def look(prober: Prober) -> None:
    async with aiohttp.ClientSession() as session:
        await prober.look(session)


async def test_an_engine_that_is_up_tells_its_models_and_the_size_of_its_cache(
    engine: tuple[Engine, Pod, RankIngest],
) -> None:
    _, pod, rank = engine
    assert pod.ready, "before it is asked, its events speak for it"
    await look(Prober(pod, interval=1, timeout=1))
    assert pod.ready
    assert list(pod.status.models) == ["m", "tuned"]
    assert rank.capacity == 96


async def test_one_failed_look_is_no_reason_two_are(engine: tuple[Engine, Pod, RankIngest]) -> None:
    server, pod, _ = engine
    prober = Prober(pod, interval=1, timeout=1)
    await look(prober)
    server.health = 503
    await look(prober)
    assert pod.ready
    await look(prober)
    assert not pod.ready
    assert pod.status.reason == "/health answers 503"
    server.health = 200
    await look(prober)
    assert pod.ready


async def test_an_engine_that_does_not_answer_is_down(free_port: int) -> None:
    pod = Pod("p", f"127.0.0.1:{free_port}", "m", ())
    await look(Prober(pod, interval=1, timeout=1))
    assert pod.status.healthy is False


async def test_what_it_says_of_its_models_may_be_nonsense(
    engine: tuple[Engine, Pod, RankIngest],
) -> None:
    server, pod, rank = engine
    server.models, server.metrics = b"nonsense", b"nothing here"
    await look(Prober(pod, interval=1, timeout=1))
    assert pod.ready
    assert not pod.status.models
    assert rank.capacity == 0
