"""The live source and its reader: engine, JSON, codec, poller and index, against what is true."""

import asyncio
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conformance.reference_index import ReferenceIndex
from tests.examples import examples
from tests.indexer.consistent import check
from tests.indexer.followed import new_ingest
from tests.lab.simworker.local_worker import LocalWorker
from tests.waiting import until
from warmpath.indexer.engines import trtllm
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.follow.instance import Patience, RankSource
from warmpath.indexer.follow.poll import Poller
from warmpath.indexer.follow.stream_source import RankIngest
from warmpath.indexer.keys.key import Keyspace, chain, pack_tokens
from warmpath.indexer.trust import Level
from warmpath.lab.simworker.engine import Generation
from warmpath.lab.simworker.latency import LatencyModel
from warmpath.lab.simworker.trtllm.blocks.block import KVCacheBlock
from warmpath.lab.simworker.trtllm.cache.block_cache import CacheOptions
from warmpath.lab.simworker.trtllm.cache.kv_cache_manager import KVCacheManager
from warmpath.lab.simworker.trtllm.engine import TrtllmEngine
from warmpath.lab.simworker.trtllm.events.event_manager import KVCacheEventManager
from warmpath.lab.simworker.trtllm.events.kv_cache_event import serialise

SIZE = 4
FULL = 64
TIERS = {0: Tier.GPU, 1: Tier.CPU}
ROOT = Keyspace(model="m", block_size=SIZE).root()

Held = dict[tuple[Tier, int], set[int]]


def new_engine(
    windows: dict[int, tuple[int, int]], *, announces: bool = True, buffer: int = 10_000
) -> TrtllmEngine:
    manager = KVCacheManager(
        windows,
        CacheOptions(SIZE, announces_detached=announces, event_manager=KVCacheEventManager(buffer)),
        max_sequence_length=FULL,
    )
    return TrtllmEngine(manager, LatencyModel(), vocab_size=500)


def new_rank(index: ReferenceIndex | None = None, *, is_queue: bool = False) -> RankIngest:
    ingest = new_ingest(lambda: index or ReferenceIndex())
    return ingest.add(
        RankSource("p", 0, "m", trtllm.Codec(SIZE), has_replay=False, is_queue=is_queue)
    )


def feed(rank: RankIngest, engine: TrtllmEngine) -> None:
    for payload in trtllm.split(json.dumps(engine.latest_events()).encode()):
        _, event_id = trtllm.address(payload)
        assert rank.live("", event_id, payload) is None


def truth(engine: TrtllmEngine) -> Held:
    """Return the keys of all full blocks that are cached, by where they lie and in which window."""
    held: Held = {}
    for window, manager in engine.manager.windows.items():
        for block in manager.cache.tree.walk():
            if block.is_full:
                key = chain(ROOT, pack_tokens(path(block)), SIZE)[-1]
                held.setdefault((TIERS[block.slot.level], window), set()).add(key)
    return held


def path(block: KVCacheBlock) -> list[int]:
    tokens: list[int] = []
    above: KVCacheBlock | None = block
    while above is not None:
        tokens = [*above.key.tokens, *tokens]
        above = above.prev_block
    return tokens


def known(rank: RankIngest) -> Held:
    return {spot: set(keys) for spot, keys in rank.state.held().items() if keys}


def shown(engine: TrtllmEngine) -> dict[Tier, int]:
    """Return how many full blocks the largest window caches: it decides where to route."""
    largest = max(engine.manager.windows)
    return {tier: len(keys) for (tier, window), keys in truth(engine).items() if window == largest}


def serve(engine: TrtllmEngine, name: str, prompt: list[int], tokens: int) -> None:
    engine.submit(Generation(name, prompt, tokens, lambda *_: None))


def finish(engine: TrtllmEngine) -> None:
    while engine.busy:
        engine.begin_step()
        engine.end_step()


@given(
    windows=st.sampled_from([{FULL: (12, 0)}, {FULL: (9, 5)}, {8: (9, 3), FULL: (10, 4)}]),
    prompts=st.lists(st.lists(st.integers(1, 2), min_size=1, max_size=20), min_size=1, max_size=12),
)
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
def test_the_index_holds_what_the_engine_holds_after_every_step(
    windows: dict[int, tuple[int, int]], prompts: list[list[int]]
) -> None:
    index = ReferenceIndex()
    engine, rank = new_engine(windows), new_rank(index)
    rank.connected()
    for number, prompt in enumerate(prompts):
        serve(engine, str(number), prompt, 6)
    while engine.busy:
        engine.begin_step()
        engine.end_step()
        feed(rank, engine)
        check(rank)
        assert rank.trust.level is Level.EXACT
        assert known(rank) == truth(engine)
        assert set(index._slots_of) == set().union(*truth(engine).values())
        assert {tier: count for tier, count in rank.blocks().items() if count} == shown(engine)


def test_all_kinds_of_movement_reach_the_index() -> None:
    """Evictions, offloads and returns do happen in what the test before relies on."""
    engine, rank = new_engine({8: (9, 3), FULL: (9, 5)}), new_rank()
    rank.connected()
    kinds: set[str] = set()
    levels: set[tuple[int, int]] = set()
    for number, token in enumerate([1, 2, 1, 2, 3, 4, 5, 1, 2, 1]):
        serve(engine, str(number), [token] * 17, 6)
        while engine.busy:
            engine.begin_step()
            for event in map(serialise, engine.end_step()):
                kinds.add(event["data"]["type"])
                level = event["data"].get("cache_level")
                if level:
                    levels.add((level["old_value"], level["new_value"]))
        feed(rank, engine)
        assert known(rank) == truth(engine)
    assert kinds == {"created", "stored", "updated", "removed"}
    assert levels == {(0, 1), (1, 0)}
    assert {tier for tier, _ in known(rank)} == {Tier.GPU, Tier.CPU}


def test_what_goes_in_silence_stays_in_the_index() -> None:
    """TensorRT-LLM's omission, and what it does to whoever follows its events."""
    engine, rank = new_engine({FULL: (12, 0)}, announces=False), new_rank()
    rank.connected()
    serve(engine, "a", [1] * 8, 1)
    finish(engine)
    serve(engine, "b", [1] * 6 + [3] * 3, 1)
    finish(engine)
    feed(rank, engine)
    gone = chain(ROOT, pack_tokens([1] * 8), SIZE)[-1]
    assert known(rank)[Tier.GPU, FULL] - truth(engine)[Tier.GPU, FULL] == {gone}
    assert truth(engine)[Tier.GPU, FULL] <= known(rank)[Tier.GPU, FULL]


def test_events_lost_to_a_full_buffer_are_noticed() -> None:
    engine, rank = new_engine({FULL: (12, 0)}, buffer=2), new_rank()
    rank.connected()
    for number in range(5):
        serve(engine, str(number), [number + 1] * 9, 1)
        finish(engine)
    feed(rank, engine)
    assert rank.trust.level is not Level.EXACT


@pytest.fixture
def engine() -> TrtllmEngine:
    return new_engine({FULL: (12, 4)})


async def test_a_poller_follows_a_worker_over_http() -> None:
    options = ("--engine=trtllm", "--blocks=12", "--cpu-blocks=4", f"--max-model-len={FULL}")
    wishes = "--kv-cache-retention=4-12:80:3000,decode:10"
    async with LocalWorker(*options, wishes) as worker:
        [served] = worker.worker.ranks
        assert isinstance(served.engine, TrtllmEngine)
        rank = new_rank(is_queue=True)
        url = f"http://{worker.ready['address']}/kv_cache_events"
        poller = Poller({0: rank}, url, Patience(), interval=0.001)
        task = asyncio.create_task(poller.run())
        for number in range(8):
            await worker.generate(prompt=[number % 5 + 1] * 13)
        await until(lambda: known(rank) == truth(served.engine) != {})
        assert rank.trust.level is Level.EXACT
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
