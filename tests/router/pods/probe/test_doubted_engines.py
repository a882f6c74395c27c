"""An engine that may have restarted, or serves another model, is doubted; one that goes on is not."""

import asyncio

import pytest

from tests.indexer.engine_model import EngineModel
from tests.indexer.followed import new_ingest, source
from tests.indexer.memory_index import MemoryIndex
from tests.lab.simworker.local_worker import LocalWorker
from tests.router.pods.engine import Engine
from tests.waiting import until
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.follow.instance import Patience
from warmpath.indexer.follow.subscribe import Subscriber
from warmpath.indexer.trust import Level
from warmpath.router.pods.probe import LOOKS
from warmpath.router.pods.table import Pod


async def test_a_worker_that_restarts_while_its_sockets_stay_up_is_found_out(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    # No process lives for less than ten milliseconds, but this simulated engine may.
    monkeypatch.setattr("warmpath.router.pods.probe.LATER_SECONDS", 0.0)
    clock = asyncio.get_running_loop().time
    rank = new_ingest(MemoryIndex, stale_after=60.0, clock=clock).add(source(topic="kv"))
    async with LocalWorker() as worker:
        subscriber = Subscriber(
            rank, worker.context, events=worker.ready["events"], replay=worker.ready["replay"],
            patience=Patience(replay_seconds=10.0, reconnect_seconds=0.01, max_frame_bytes=1 << 20),
        )  # fmt: skip
        following = asyncio.create_task(subscriber.run())
        try:
            pod = Pod("p", worker.ready["address"], "m", (rank,))
            engine = Engine(pod)
            await engine.look()
            await worker.generate()
            # A batch that came only after the restart would count as the new process's.
            last = len(await worker.replayed()) - 1
            await until(lambda: (rank.sequence, rank.trust.level) == (last, Level.EXACT))
            assert rank.blocks().get(Tier.GPU)
            await engine.look()
            await worker.post("/faults", {"restart": True})
            assert rank.trust.level is Level.EXACT, "nothing in its events tells"
            await engine.look()
            assert "pod p: restarted" in caplog.text
            assert engine.ended == ["p"], "what was sent to it is gone"
            await until(lambda: rank.stream.counts.restarts and rank.trust.level is Level.EXACT)
            assert not rank.blocks().get(Tier.GPU)
            await engine.look(3)
            assert rank.stream.counts.restarts == 1
        finally:
            # Its sockets would keep the worker's context from ending.
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


@pytest.mark.parametrize("problem", ["refuses", "is not there"])
async def test_an_engine_that_was_away_and_does_not_say_when_it_began_is_doubted(
    engine: Engine, problem: str, held_port: int
) -> None:
    engine.rank.live("", *EngineModel().store((0, 1)))
    await engine.look(2)
    address = engine.pod.address
    if problem == "refuses":
        engine.health = 503
    else:
        engine.pod.address = f"127.0.0.1:{held_port}"
    await engine.look()
    engine.pod.address, engine.health = address, 200
    assert engine.trust.level is Level.EXACT
    await engine.look()
    assert engine.trust.level is Level.DEGRADED
    assert engine.trust.reason.startswith("restarted: the engine accepted no requests and accepts")


async def test_an_engine_that_was_away_and_began_no_later_is_not_doubted(engine: Engine) -> None:
    engine.rank.live("", *EngineModel().store((0, 1)))
    engine.metrics = b"process_start_time_seconds 100.5\n"
    await engine.look()
    for health in (503, 200, 500, 500, 200):
        engine.health = health
        await engine.look()
    assert engine.trust.level is Level.EXACT
    engine.models = b'{"data":[{"id":"other"}]}'
    await engine.look(LOOKS)
    assert engine.trust.level is Level.EXACT


async def test_an_engine_that_was_slow_or_never_well_is_not_doubted(engine: Engine) -> None:
    engine.rank.live("", *EngineModel().store((0, 1)))
    for health in (503, 200, 500, 500, 200):
        engine.health = health
        await engine.look()
    assert engine.trust.level is Level.EXACT, "its first life has told all"


async def test_an_engine_whose_events_have_told_of_its_new_life_is_not_doubted(
    engine: Engine,
) -> None:
    old, new = EngineModel(), EngineModel()
    engine.rank.live("", *old.store((0, 1)))
    engine.rank.live("", *old.store((1, 2)))
    await engine.look()
    engine.health = 503
    await engine.look()
    engine.rank.live("", *new.store((0, 3)))
    assert engine.rank.stream.counts.restarts == 1
    trust = engine.trust
    engine.health = 200
    await engine.look()
    assert engine.trust == trust


async def test_an_engine_that_serves_another_model_is_doubted_and_adapters_come_and_go(
    engine: Engine,
) -> None:
    engine.rank.live("", *EngineModel().store((0, 1)))
    for listed in (b'{"id":"m"},{"id":"a","parent":"m"}', b'{"id":"m"}', b'{"id":"m"},{"id":"b"}'):
        engine.models = b'{"data":[' + listed + b"]}"
        await engine.look(LOOKS)
        assert engine.trust.level is Level.EXACT
    engine.models = b'{"data":[{"id":"n"},{"id":"b"}]}'
    await engine.look(LOOKS)
    assert engine.trust.level is Level.DEGRADED
    assert engine.trust.reason.startswith("restarted: it no longer serves a model")


async def test_an_engine_that_restarts_is_doubted_at_once_where_nothing_can_be_replayed(
    engine: Engine,
) -> None:
    engine.rank.live("", *EngineModel().store((0, 1)))
    for started in (b"100.5", b"100.5", b"99", b"nonsense", b"NaN", b"inf"):
        engine.metrics = b"process_start_time_seconds " + started + b"\n"
        await engine.look()
        assert engine.trust.level is Level.EXACT, "one of several processes began before another"
    engine.metrics = b"process_start_time_seconds 160.5\n"
    await engine.look()
    assert engine.trust.level is Level.DEGRADED
    assert engine.trust.reason.startswith("restarted: the engine's process started 60.0 s after")
