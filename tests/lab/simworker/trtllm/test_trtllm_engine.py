"""The engine's steps: batching, and that a request gets what it asked for."""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.lab.simworker.engine_bench import EngineBench, text
from tests.lab.simworker.state_machines import long_test
from tests.lab.simworker.trtllm.benches import FULL, EventFollower, texts, truth
from warmpath.lab.simworker.engine import RequestRefusedError
from warmpath.lab.simworker.latency import LatencyModel
from warmpath.lab.simworker.sampler import next_token
from warmpath.lab.simworker.trtllm.cache.block_cache import CacheOptions
from warmpath.lab.simworker.trtllm.cache.kv_cache_manager import KVCacheManager
from warmpath.lab.simworker.trtllm.engine import TrtllmEngine
from warmpath.lab.simworker.trtllm.events.event_manager import KVCacheEventManager


def new_bench(
    windows: dict[int, tuple[int, int]] | None = None, *, size: int = 4, **options: Any
) -> EngineBench:
    events = KVCacheEventManager(10_000)
    manager = KVCacheManager(
        windows or {FULL: (16, 0)},
        CacheOptions(size, announces_detached=True, event_manager=events),
        max_sequence_length=FULL,
    )
    return EngineBench(TrtllmEngine(manager, LatencyModel(), vocab_size=500, **options))


def test_a_request_gets_what_it_asked_for_and_the_same_again() -> None:
    first, second = new_bench(), new_bench()
    for bench in (first, second):
        bench.serve("a", text(20, 20), 7)
    assert len(first.answers["a"]) == 7
    assert first.answers == second.answers
    assert first.ended == ["a"]
    assert all(16 <= token < 500 for token in first.answers["a"])


def test_a_long_context_is_computed_in_chunks_of_whole_blocks() -> None:
    bench = new_bench(max_num_tokens=14)
    bench.submit("a", text(0, 30), 2)
    assert [bench.step() for _ in range(4)] == [12, 12, 6, 1]
    assert not bench.engine.busy


def test_decoding_goes_on_beside_a_long_context() -> None:
    bench = new_bench({FULL: (32, 0)}, max_num_tokens=9)
    bench.submit("a", text(0, 4), 5)
    bench.step()
    bench.submit("b", text(100, 20), 1)
    assert [bench.step() for _ in range(3)] == [9, 9, 5]
    assert bench.ended == ["b"]


def test_without_chunks_a_context_waits_until_it_fits() -> None:
    bench = new_bench({FULL: (32, 0)}, max_num_tokens=12, enable_chunked_context=False)
    bench.submit("a", text(0, 8), 2)
    bench.submit("b", text(100, 8), 1)
    assert [bench.step() for _ in range(2)] == [8, 9]
    with pytest.raises(RequestRefusedError, match="13 tokens are more than max_num_tokens 12"):
        bench.submit("c", text(0, 11), 2)


def test_what_is_cached_is_not_computed_again_and_the_next_chunk_ends_a_block() -> None:
    bench = new_bench(max_num_tokens=8)
    bench.serve("a", text(0, 10), 1)
    one = bench.submit("b", [*text(0, 9), 77, 78, 79, 80, 81, 82, 83, 84, 85], 1)
    assert [bench.step() for _ in range(2)] == [7, 2]
    assert one.num_cached_tokens == 9
    load = bench.engine.load()
    assert (load.prefix_cache_queries, load.prefix_cache_hits) == (28, 9)


def test_a_whole_conversation_is_found_again() -> None:
    bench = new_bench()
    bench.serve("a", text(0, 6), 8)
    one = bench.serve("b", [*text(0, 6), *bench.answers["a"], 1, 2], 1)
    assert one.num_cached_tokens == 6 + 8 - 1


def test_a_request_waits_for_the_prefix_that_another_is_computing() -> None:
    bench = new_bench({FULL: (32, 0)})
    bench.submit("a", text(0, 10), 3)
    second = bench.submit("b", [*text(0, 9), 99], 3)
    assert bench.step() == 10
    assert bench.step() == 1 + 2
    assert second.num_cached_tokens == 8


def test_with_a_guarantee_a_request_starts_only_if_it_can_end() -> None:
    bench = new_bench({FULL: (8, 0)})
    bench.submit("a", text(0, 4), 16)
    bench.submit("b", text(100, 4), 12)
    bench.step()
    assert (bench.engine.load().running, bench.engine.load().waiting) == (1, 1)
    bench.run()
    assert bench.engine.load().preemptions == 0


def test_an_aborted_request_leaves_what_it_computed() -> None:
    bench = new_bench(max_num_tokens=8)
    bench.submit("a", text(0, 20), 5)
    bench.step()
    bench.engine.abort("a")
    bench.engine.abort("unknown")
    assert not bench.engine.busy
    bench.engine.check()
    assert bench.engine.manager.get_num_free_blocks() == 16
    one = bench.serve("b", text(0, 20), 1)
    assert one.num_cached_tokens == 8
    assert bench.answers["a"] == []


def test_a_request_aborted_within_a_step_gets_no_token_of_it() -> None:
    bench = new_bench()
    bench.submit("a", text(0, 6), 5)
    bench.submit("b", text(50, 6), 5)
    bench.step()
    bench.engine.begin_step()
    bench.engine.abort("a")
    bench.engine.end_step()
    bench.engine.check()
    assert (len(bench.answers["a"]), len(bench.answers["b"])) == (1, 2)


def test_a_request_whose_shorter_tail_is_cached_already_is_aborted_within_a_step() -> None:
    bench = new_bench({6: (10, 0), FULL: (9, 2)}, size=2, max_num_tokens=7, max_batch_size=2)
    prompts = [([1, 2, 1], 1, 0), ([1], 3, 1), ([1] * 6, 4, 3), ([1] * 5, 2, 1), ([1, 2, 1], 1, 0)]
    for number, (prompt, tokens, steps) in enumerate(prompts, 1):
        bench.submit(str(number), prompt, tokens)
        for _ in range(steps):
            bench.step()
    bench.engine.abort("4")
    bench.engine.begin_step()
    bench.engine.abort("5")
    bench.engine.end_step()
    bench.run()
    assert sorted(bench.ended) == ["1", "2", "3"]


def test_adapters_and_salts_share_nothing() -> None:
    bench = new_bench({FULL: (64, 0)})
    kinds: list[dict[str, str]] = [
        {}, {"lora_name": "x"}, {"lora_name": "y"}, {"cache_salt": "s"}, {"cache_salt": "t"},
    ]  # fmt: skip
    for number, fields in enumerate(kinds):
        one = bench.serve(f"first {number}", text(0, 9), 1, **fields)
        assert one.num_cached_tokens == 0
    for number, fields in enumerate(kinds):
        one = bench.serve(f"again {number}", text(0, 9), 1, **fields)
        assert one.num_cached_tokens == 8


@pytest.mark.parametrize(
    ("prompt", "tokens", "fields", "message"),
    [
        (text(0, 60), 5, {}, "60 prompt tokens and max_tokens 5 are more than max_sequence_length"),
        (text(0, 30), 3, {}, "9 blocks are needed in window 64; it has 8"),
        ([], 3, {}, "at least 1 token"),
        ([1], 0, {}, "at least 1 token"),
        ([1], 1, {"cache_salt": "x" * 1025}, "cache_salt has 1025 bytes"),
    ],
)
def test_what_can_never_be_served_is_refused(
    prompt: list[int], tokens: int, fields: dict[str, Any], message: str
) -> None:
    bench = new_bench({FULL: (8, 0)})
    with pytest.raises(RequestRefusedError, match=message):
        bench.submit("a", prompt, tokens, **fields)
    assert not bench.engine.busy


def test_a_name_in_use_is_refused() -> None:
    bench = new_bench()
    bench.submit("a", [1], 1)
    with pytest.raises(RequestRefusedError, match="request_id a is in use"):
        bench.submit("a", [1], 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_batch_size": 0}, "max_batch_size is 0"),
        ({"max_num_tokens": 3}, "max_num_tokens is 3"),
    ],
)
def test_steps_without_room_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        new_bench(**options)


def test_resetting_the_cache_is_announced_and_waits_for_requests() -> None:
    bench = new_bench()
    bench.submit("a", text(0, 9), 1)
    bench.engine.begin_step()
    assert not bench.engine.reset_prefix_cache()
    bench.engine.end_step()
    assert bench.engine.reset_prefix_cache()
    assert [event["data"]["type"] for event in bench.engine.latest_events()] == [
        "created", "stored", "stored", "removed",
    ]  # fmt: skip
    assert bench.engine.latest_events() == []


def test_tokens_are_drawn_above_the_reserved_ones_where_there_are_any() -> None:
    assert {next_token(b"s", last, 3, 17) for last in range(50)} == {16}
    assert {next_token(b"s", last, 3, 16) for last in range(400)} == set(range(16))


def test_a_request_that_waited_for_a_younger_ones_block_does_not_stop_both() -> None:
    bench = new_bench({64: (9, 3)}, size=2, max_num_tokens=7, max_batch_size=2)
    one, eight, seven = [1], [1] * 8, [1] * 7
    prompts = [*[one] * 10, eight, one, seven, seven, one]
    for number, prompt in enumerate(prompts, 1):
        salt, tokens = "s" if number == 14 else "", 4 if number == 13 else 1
        bench.submit(str(number), prompt, tokens, cache_salt=salt)
    bench.run()
    assert len(bench.ended) == len(prompts)


class EngineMachine(RuleBasedStateMachine):
    """Requests come and go; every step computes something, and events announce all of it."""

    @initialize(
        windows=st.sampled_from([{FULL: (9, 3)}, {4: (9, 2)}, {6: (10, 0), FULL: (9, 2)}]),
        budget=st.sampled_from([4, 7, 100]),
        batch=st.sampled_from([2, 8]),
    )
    def begin(self, windows: dict[int, tuple[int, int]], budget: int, batch: int) -> None:
        self.bench = new_bench(windows, size=2, max_num_tokens=budget, max_batch_size=batch)
        self.follower = EventFollower()
        self.count = 0
        self.aborted: set[str] = set()

    @rule(prompt=texts(8), tokens=st.integers(1, 5), salt=st.sampled_from(["", "", "s"]))
    def submit(self, prompt: list[int], tokens: int, salt: str) -> None:
        self.count += 1
        self.bench.submit(str(self.count), prompt, tokens, cache_salt=salt)

    @precondition(lambda self: self.bench.engine.busy)
    @rule(count=st.integers(1, 4))
    def step(self, count: int) -> None:
        for _ in range(count):
            if self.bench.engine.busy:
                assert self.bench.step()

    @precondition(lambda self: self.bench.engine.busy)
    @rule(data=st.data(), within=st.booleans())
    def abort(self, data: st.DataObject, within: bool) -> None:
        over = self.aborted.union(self.bench.ended)
        name = data.draw(st.sampled_from(sorted(self.bench.sent.keys() - over)))
        if within:
            self.bench.engine.begin_step()
        self.bench.engine.abort(name)
        if within:
            self.bench.engine.end_step()
        self.aborted.add(name)

    @rule()
    def reset(self) -> None:
        done = self.bench.engine.reset_prefix_cache()
        assert done == (self.bench.engine.load().running == 0)

    @invariant()
    def events_tell_the_truth(self) -> None:
        if hasattr(self, "bench"):
            self.bench.engine.check()
            self.follower.follow(self.bench.engine.latest_events())
            assert self.follower.windows == truth(self.bench.engine.manager)

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            self.bench.run()
            for name, one in self.bench.sent.items():
                done = len(self.bench.answers[name])
                assert (name in self.aborted) != (name in self.bench.ended)
                assert done == one.max_tokens or (name in self.aborted and done < one.max_tokens)
            assert self.bench.engine.load().kv_cache_usage == 0


TestEngine = long_test(EngineMachine)
