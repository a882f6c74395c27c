"""The engine, stepped by hand, and whatever is asked of it in whatever order."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.lab.simworker.engine_bench import EngineBench
from tests.lab.simworker.state_machines import long_test
from warmpath.lab.simworker.engine import RequestRefusedError
from warmpath.lab.simworker.v1.assemble import KVGroup, OffloadConfig, build_engine, kv_cache_config
from warmpath.lab.simworker.v1.cache.kv_cache_event import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    CacheEvent,
)
from warmpath.lab.simworker.v1.scheduling.scheduler_config import SchedulerConfig


def new_bench(
    blocks: int = 100, budget: int = 32, offload: OffloadConfig | None = None, **limits: Any
) -> EngineBench:
    limits = {"max_model_len": 1000, "max_num_seqs": 8} | limits
    return EngineBench(
        build_engine(
            kv_cache_config(blocks, [KVGroup(4)]),
            SchedulerConfig(max_num_batched_tokens=budget, **limits),
            vocab_size=500,
            offload=offload,
        )
    )


def test_a_request_gets_what_it_asked_for_and_the_same_again() -> None:
    first, second = new_bench(), new_bench()
    for bench in (first, second):
        bench.serve("a", list(range(20, 40)), 7)
    assert len(first.answers["a"]) == 7
    assert first.answers == second.answers
    assert all(16 <= token < 500 for token in first.answers["a"])


def test_a_request_aborted_within_a_step_gets_nothing_of_it() -> None:
    bench = new_bench()
    bench.submit("a", list(range(20)), 50)
    bench.submit("b", list(range(5)), 2)
    bench.engine.begin_step()
    bench.engine.abort("a")
    bench.engine.end_step()
    bench.run()
    assert bench.answers["a"] == []
    assert len(bench.answers["b"]) == 2


def test_a_reset_of_all_within_a_step_drops_its_tokens_and_computes_them_again() -> None:
    bench, undisturbed = new_bench(), new_bench()
    for one in (bench, undisturbed):
        one.submit("a", list(range(20)), 3)
        one.step()
    bench.engine.begin_step()
    assert bench.engine.reset_prefix_cache(reset_running_requests=True)
    bench.events += bench.engine.end_step()
    bench.run()
    undisturbed.run()
    assert bench.answers == undisturbed.answers
    assert [type(event) for event in bench.events] == [BlockStored, AllBlocksCleared, BlockStored]


def test_cached_tokens_take_no_time() -> None:
    cold, warm = new_bench(), new_bench()
    for bench in (cold, warm):
        bench.serve("a", list(range(32)), 1)
    spent = warm.seconds
    cold.submit("b", list(range(100, 132)), 1)
    warm.submit("b", [*range(32)], 1)
    cold.run()
    warm.run()
    assert warm.seconds - spent < cold.seconds - spent


def test_what_can_never_be_served_is_refused_with_the_reason() -> None:
    bench = new_bench(blocks=14)
    for prompt, tokens, why in (
        ([], 1, "the prompt is empty"),
        ([1], 0, "max_tokens is 0, less than 1"),
        ([1] * 990, 11, "990 prompt tokens and max_tokens 11 are more than max_model_len 1000"),
        ([1] * 40, 13, "53 tokens do not fit into 13 blocks"),
    ):
        with pytest.raises(RequestRefusedError, match=why):
            bench.submit("a", prompt, tokens)
    bench.submit("a", [1] * 40, 12)
    with pytest.raises(RequestRefusedError, match="request id 'a' is in use"):
        bench.serve("a", [1], 1)
    bench.run()
    assert len(bench.answers["a"]) == 12


def test_salts_and_adapters_keep_to_themselves() -> None:
    bench = new_bench()
    prompt = list(range(20))
    sent = [
        bench.submit(name, prompt, 1, **more)
        for name, more in (
            ("plain", {}),
            ("salted", {"cache_salt": "s"}),
            ("adapted", {"lora_name": "l", "lora_path": "p"}),
            ("elsewhere", {"lora_name": "l", "lora_path": "q"}),
            ("salted again", {"cache_salt": "s"}),
            ("adapted again", {"lora_name": "l", "lora_path": "p"}),
        )
    ]
    bench.run()
    assert [one.num_cached_tokens for one in sent] == [0, 0, 0, 0, 16, 16]


def test_what_the_gpu_evicted_is_loaded_from_host_memory() -> None:
    tier = OffloadConfig(num_chunks=50, bytes_per_block=1000, bandwidth=1e5)
    bench = new_bench(blocks=14, budget=64, offload=tier)
    bench.serve("a", list(range(40)), 1)
    bench.serve("b", list(range(100, 140)), 1)
    removed = [event for event in bench.events if isinstance(event, BlockRemoved)]
    assert removed
    spent = bench.seconds
    again = bench.serve("c", list(range(40)), 3)
    assert again.num_cached_tokens > 0
    assert len(bench.answers["c"]) == 3
    # Ten blocks' copies, or those of them that were missing, at 10 ms each.
    assert bench.seconds - spent > 0.05
    assert {event.medium for event in bench.events if isinstance(event, BlockStored)} == {
        "GPU",
        "CPU",
    }


def test_a_reset_takes_the_tier_below_with_it_only_if_asked() -> None:
    # vLLM counts what was loaded, the last token too, although that is computed anew.
    for external, cached in ((False, 40), (True, 0)):
        bench = new_bench(blocks=30, budget=64, offload=OffloadConfig(50, bytes_per_block=1000))
        bench.serve("a", list(range(40)), 1)
        assert bench.engine.reset_prefix_cache(reset_external=external)
        again = bench.serve("b", list(range(40)), 1)
        assert again.num_cached_tokens == cached


def test_a_tier_that_is_being_loaded_from_is_not_reset() -> None:
    tier = OffloadConfig(50, bytes_per_block=1000, bandwidth=1e4)
    bench = new_bench(blocks=30, budget=64, offload=tier)
    bench.serve("a", list(range(40)), 1)
    bench.engine.reset_prefix_cache()
    again = bench.submit("b", list(range(40)), 1)
    bench.engine.begin_step()
    assert not bench.engine.reset_prefix_cache(reset_external=True)
    with pytest.raises(RuntimeError, match="wait for a load"):
        bench.engine.reset_prefix_cache(reset_running_requests=True)
    bench.engine.abort("b")
    with pytest.raises(RequestRefusedError, match="request id 'b' is in use"):
        bench.submit("b", list(range(40)), 1)
    bench.engine.end_step()
    bench.run()
    assert again.num_output_tokens == 0
    assert bench.engine.reset_prefix_cache(reset_external=True)
    bench.serve("b", list(range(40)), 1)
    assert len(bench.answers["b"]) == 1


PROMPTS = [[start * 50 + at // 3 for at in range(40)] for start in range(3)]


class Machine(RuleBasedStateMachine):
    """Requests are served whole, blocks are announced as often as they are lost."""

    @initialize(
        tier=st.sampled_from([0, 0, 4, 30]), policy=st.sampled_from(["fcfs", "priority"]),
        budget=st.sampled_from([6, 40]),
    )  # fmt: skip
    def start(self, tier: int, policy: str, budget: int) -> None:
        offload = OffloadConfig(tier, bytes_per_block=1000, bandwidth=2e4) if tier else None
        limits = {"max_model_len": 40, "max_num_seqs": 4, "policy": policy}
        self.bench = new_bench(11, budget, offload, **limits)
        self.engine = self.bench.engine
        self.aborted: set[str] = set()
        self.begun = False
        self.stored: dict[str | None, Counter[object]] = {"GPU": Counter(), "CPU": Counter()}

    @property
    def open(self) -> list[str]:
        return sorted(self.bench.sent.keys() - self.aborted.union(self.bench.ended))

    @rule(
        prompt=st.sampled_from(PROMPTS), length=st.integers(1, 24), tokens=st.integers(1, 9),
        priority=st.integers(0, 1),
    )  # fmt: skip
    def submit(self, prompt: list[int], length: int, tokens: int, priority: int) -> None:
        name = str(len(self.bench.sent))
        self.bench.submit(name, prompt[:length], tokens, priority=priority)

    @precondition(lambda self: not self.begun and self.engine.busy)
    @rule(horizon=st.sampled_from([0.0, 0.1, 5.0]))
    def begin(self, horizon: float) -> None:
        assert self.engine.begin_step(horizon) >= 0
        self.begun = True

    @precondition(lambda self: self.begun)
    @rule()
    def finish(self) -> None:
        self.hear(self.engine.end_step())
        self.begun = False
        for one in self.bench.sent.values():
            assert one.num_cached_tokens <= one.num_prompt_tokens

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.open))
        self.engine.cut_step(0.0)
        self.engine.abort(name)
        self.engine.abort(name)
        self.aborted.add(name)

    @rule()
    def reset(self) -> None:
        assert self.engine.reset_prefix_cache() == (self.engine.load().kv_cache_usage == 0)

    def hear(self, events: list[CacheEvent]) -> None:
        for event in events:
            match event:
                case BlockStored():
                    self.stored[event.medium].update(event.block_hashes)
                case BlockRemoved():
                    self.stored[event.medium].subtract(event.block_hashes)
                    assert min(self.stored[event.medium].values()) >= 0
                case AllBlocksCleared():
                    self.stored["GPU"].clear()

    @invariant()
    def holds(self) -> None:
        self.engine.check()
        load = self.engine.load()
        assert load.running + load.waiting == len(self.open)
        assert load.prefix_cache_hits <= load.prefix_cache_queries

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        if self.begun:
            self.finish()
        self.bench.run()
        # An engine with nothing to do keeps what a reset has to tell.
        self.hear(self.bench.events + self.engine.scheduler.take_events())
        assert not self.open
        assert not self.aborted.intersection(self.bench.ended)
        assert self.engine.load().kv_cache_usage == 0
        cached = self.engine.manager.block_pool.cached_block_hash_to_block.items()
        assert self.stored["GPU"].total() == sum(1 for _ in cached)


TestMachine = long_test(Machine)
