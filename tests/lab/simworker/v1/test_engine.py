"""The engine, stepped by hand."""

import pytest

from warmpath.lab.simworker.engine import Generation, RequestRefusedError
from warmpath.lab.simworker.v1.assemble import KVGroup, OffloadConfig, build_engine, kv_cache_config
from warmpath.lab.simworker.v1.cache.kv_cache_event import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    CacheEvent,
)
from warmpath.lab.simworker.v1.scheduling.scheduler_config import SchedulerConfig


class Bench:
    """An engine, its answers, and its events."""

    def __init__(
        self,
        blocks: int = 100,
        budget: int = 32,
        seqs: int = 8,
        offload: OffloadConfig | None = None,
    ) -> None:
        self.engine = build_engine(
            kv_cache_config(blocks, [KVGroup(4)]),
            SchedulerConfig(max_model_len=1000, max_num_seqs=seqs, max_num_batched_tokens=budget),
            vocab_size=500,
            offload=offload,
        )
        self.answers: dict[str, list[int]] = {}
        self.events: list[CacheEvent] = []
        self.seconds = 0.0

    def submit(self, name: str, prompt: list[int], tokens: int, **more: str) -> Generation:
        answer = self.answers.setdefault(name, [])
        one = Generation(name, prompt, tokens, lambda new, _: answer.extend(new), **more)
        self.engine.submit(one)
        return one

    def step(self) -> int:
        self.seconds += self.engine.begin_step()
        work = self.engine.work
        self.events += self.engine.end_step()
        self.engine.check()
        return sum(new for new, _ in work.prefills) + work.decoding

    def run(self) -> None:
        for _ in range(10_000):
            if not self.engine.busy:
                return
            self.step()
        raise AssertionError("the engine does not come to an end")


def test_a_request_gets_what_it_asked_for_and_the_same_again() -> None:
    first, second = Bench(), Bench()
    for bench in (first, second):
        bench.submit("a", list(range(20, 40)), 7)
        bench.run()
    assert len(first.answers["a"]) == 7
    assert first.answers == second.answers
    assert all(16 <= token < 500 for token in first.answers["a"])


def test_a_long_prompt_is_computed_in_chunks_within_the_budget() -> None:
    bench = Bench(budget=32)
    bench.submit("a", list(range(100)), 1)
    assert [bench.step() for _ in range(4)] == [32, 32, 32, 4]
    assert not bench.engine.busy


def test_two_requests_scheduled_in_one_step_share() -> None:
    bench = Bench(budget=64)
    bench.submit("a", list(range(20)), 1)
    second = bench.submit("b", list(range(20)), 1)
    bench.run()
    assert second.num_cached_tokens == 16


def test_requests_that_outgrow_the_cache_are_preempted_and_all_finish() -> None:
    bench = Bench(blocks=14, budget=64)
    sent = [
        bench.submit(str(number), [number * 10 + token for token in range(8)], 30)
        for number in range(4)
    ]
    bench.run()
    assert sum(one.num_preemptions for one in sent) == bench.engine.load().preemptions > 0
    assert all(len(answer) == 30 for answer in bench.answers.values())
    assert bench.engine.manager.block_pool.get_num_free_blocks() == 13


def test_an_aborted_request_gives_its_blocks_back_and_stays_cached() -> None:
    bench = Bench()
    bench.submit("a", list(range(20)), 50)
    bench.step()
    bench.engine.abort("a")
    assert not bench.engine.busy
    assert bench.engine.manager.block_pool.get_num_free_blocks() == 99
    again = bench.submit("b", list(range(20)), 1)
    bench.run()
    assert again.num_cached_tokens == 16


def test_a_request_aborted_within_a_step_gets_nothing_of_it() -> None:
    bench = Bench()
    bench.submit("a", list(range(20)), 50)
    bench.submit("b", list(range(5)), 2)
    bench.engine.begin_step()
    bench.engine.abort("a")
    bench.engine.end_step()
    bench.run()
    assert bench.answers["a"] == []
    assert len(bench.answers["b"]) == 2


def test_a_reset_of_all_within_a_step_drops_its_tokens_and_computes_them_again() -> None:
    bench, undisturbed = Bench(), Bench()
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
    cold, warm = Bench(), Bench()
    for bench in (cold, warm):
        bench.submit("a", list(range(32)), 1)
        bench.run()
    spent = warm.seconds
    cold.submit("b", list(range(100, 132)), 1)
    warm.submit("b", [*range(32)], 1)
    cold.run()
    warm.run()
    assert warm.seconds - spent < cold.seconds - spent


def test_what_can_never_be_served_is_refused_with_the_reason() -> None:
    bench = Bench(blocks=14)
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
        bench.submit("a", [1], 1)
    bench.run()
    assert len(bench.answers["a"]) == 12


def test_salts_and_adapters_keep_to_themselves() -> None:
    bench = Bench()
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
    bench = Bench(blocks=14, budget=64, offload=tier)
    bench.submit("a", list(range(40)), 1)
    bench.run()
    bench.submit("b", list(range(100, 140)), 1)
    bench.run()
    removed = [event for event in bench.events if isinstance(event, BlockRemoved)]
    assert removed
    spent = bench.seconds
    again = bench.submit("c", list(range(40)), 3)
    bench.run()
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
        bench = Bench(blocks=30, budget=64, offload=OffloadConfig(50, bytes_per_block=1000))
        bench.submit("a", list(range(40)), 1)
        bench.run()
        assert bench.engine.reset_prefix_cache(reset_external=external)
        again = bench.submit("b", list(range(40)), 1)
        bench.run()
        assert again.num_cached_tokens == cached


def test_a_tier_that_is_being_loaded_from_is_not_reset() -> None:
    tier = OffloadConfig(50, bytes_per_block=1000, bandwidth=1e4)
    bench = Bench(blocks=30, budget=64, offload=tier)
    bench.submit("a", list(range(40)), 1)
    bench.run()
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
    bench.submit("b", list(range(40)), 1)
    bench.run()
    assert len(bench.answers["b"]) == 1
