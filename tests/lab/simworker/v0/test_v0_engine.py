"""The whole v0 engine: every request gets its tokens, whatever memory and cache do."""

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.lab.simworker.engine_bench import EngineBench, text
from tests.lab.simworker.state_machines import long_test
from warmpath.lab.simworker.engine import BrokenInvariantError, Engine, RequestRefusedError
from warmpath.lab.simworker.latency import LatencyModel
from warmpath.lab.simworker.v0.engine import V0Engine, Worker
from warmpath.lab.simworker.v0.memory.cache_engine import CacheEngine, CacheShape
from warmpath.lab.simworker.v0.memory.numpy_backend import NumpyBackend
from warmpath.lab.simworker.v0.requests.lora import LoRAConfig
from warmpath.lab.simworker.v0.scheduling.scheduler_config import CacheConfig, SchedulerConfig

SHAPE = CacheShape(num_layers=1, block_size=4, num_kv_heads=1, head_size=4)

MODES: list[dict[str, Any]] = [
    {"preemption_mode": "recompute"},
    {"preemption_mode": "swap"},
    {"preemption_mode": None, "policy": "priority"},
    {"preemption_mode": "recompute", "enable_chunked_prefill": True, "max_num_batched_tokens": 10},
    {"preemption_mode": "swap", "enable_chunked_prefill": True},
]


def new_bench(
    *,
    gpu_blocks: int = 16,
    cpu_blocks: int = 64,
    caching: bool = False,
    loras: int = 0,
    window: int | None = None,
    **limits: Any,
) -> EngineBench:
    """Return an engine whose memory is real."""
    limits = {"max_model_len": 32, "max_num_seqs": 4, "max_num_batched_tokens": 40} | limits
    cache = CacheConfig(
        4,
        enable_prefix_caching=caching,
        sliding_window=window,
        num_gpu_blocks=gpu_blocks,
        num_cpu_blocks=cpu_blocks,
    )
    worker = Worker(CacheEngine(SHAPE, gpu_blocks, cpu_blocks, NumpyBackend()))
    lora = LoRAConfig(max_loras=loras) if loras else None
    return EngineBench(
        V0Engine(SchedulerConfig(**limits), cache, lora, LatencyModel(), worker, vocab_size=1000)
    )


def test_it_is_an_engine() -> None:
    engine: Engine[Any] = new_bench().engine
    assert not engine.busy


@pytest.mark.parametrize("kind", ["v0", "trtllm"])
def test_an_engine_brings_no_library_of_arrays(kind: str) -> None:
    module = f"warmpath.lab.simworker.{kind}.engine"
    code = f"import {module}; import sys; print({{'torch', 'numpy'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize(
    ("limits", "caching"),
    # Chunks and caching together are left to the test below of what 0.9.2 finds cached.
    [
        (limits, caching)
        for limits in MODES
        for caching in (False, "enable_chunked_prefill" not in limits)
    ],
)
def test_under_tight_memory_every_request_gets_the_tokens_it_gets_alone(
    limits: dict[str, Any], caching: bool
) -> None:
    alone = new_bench()
    tight = new_bench(gpu_blocks=8, caching=caching, **limits)
    for number in range(5):
        prompt = text(100 * number, 9 + number)
        alone.serve(str(number), prompt, 12)
        tight.submit(str(number), prompt, 12, priority=-number)
    tight.run()
    assert tight.answers == alone.answers
    assert sorted(tight.ended) == list("01234")
    assert tight.events == []
    load = tight.engine.load()
    assert sum(one.num_preemptions for one in tight.sent.values()) == load.preemptions > 0
    assert load.kv_cache_usage == 0


def test_what_a_request_left_is_found_by_the_next() -> None:
    bench = new_bench(caching=True)
    assert bench.serve("a", text(0, 10)).num_cached_tokens == 0
    assert bench.serve("b", text(0, 14)).num_cached_tokens == 8
    load = bench.engine.load()
    assert (load.prefix_cache_queries, load.prefix_cache_hits) == (24, 8)
    assert bench.engine.reset_prefix_cache()
    assert bench.serve("c", text(0, 14)).num_cached_tokens == 0
    assert bench.answers["c"] == bench.answers["b"]


def test_a_prompt_cached_whole_computes_its_last_token() -> None:
    bench = new_bench(caching=True)
    bench.serve("a", text(0, 8))
    again = bench.submit("b", text(0, 8))
    bench.step()
    assert bench.engine.work.prefills == [(1, 7)]
    assert again.num_cached_tokens == 7


@pytest.mark.parametrize("more", [{"cache_salt": "x"}, {"lora_name": "l"}])
def test_salts_and_adapters_keep_caches_apart(more: dict[str, str]) -> None:
    bench = new_bench(caching=True, loras=1)
    bench.serve("a", text(0, 12))
    assert bench.serve("b", text(0, 12), **more).num_cached_tokens == 0
    assert bench.serve("c", text(0, 12), **more).num_cached_tokens == 11


def test_a_step_takes_as_long_as_its_prompts_and_decodes() -> None:
    bench = new_bench()
    bench.submit("a", text(0, 10))
    model = LatencyModel()
    bench.step()
    first = bench.seconds
    assert first == model.base + 10 * (model.prefill + model.context * 5)
    bench.step()
    after = model.base + model.decode + 10 * model.decode_context
    assert bench.seconds - first == pytest.approx(after)


def test_an_aborted_request_gets_no_more_tokens_and_its_id_can_be_used_again() -> None:
    bench = new_bench()
    bench.submit("a", text(0, 10))
    bench.step()
    aborted = bench.answers["a"]
    bench.engine.begin_step()
    bench.engine.abort("a")
    bench.submit("a", text(5, 5))
    bench.engine.end_step()
    assert len(aborted) == 1
    bench.run()
    assert bench.ended == ["a"]
    bench.engine.abort("a")


def test_a_client_may_abort_another_from_its_callback() -> None:
    bench = new_bench()
    bench.submit("a", text(0, 6)).on_tokens = lambda *_: bench.engine.abort("b")
    bench.submit("b", text(50, 6))
    bench.run()
    assert bench.answers["b"] == []


@pytest.mark.parametrize(
    ("name", "prompt", "tokens", "more", "reason"),
    [
        ("x", text(0, 30), 6, {}, "max_model_len 32"),
        ("x", text(0, 20), 12, {}, "8 blocks, and there are 7"),
        ("x", [], 6, {}, "at least 1"),
        ("x", [1], 0, {}, "at least 1"),
        ("x", [1], 6, {"lora_name": "l"}, "lora_name l"),
        ("x", [1], 6, {"skip_reading_prefix_cache": True}, "skip_reading_prefix_cache"),
        ("used", [1], 6, {}, "request_id used"),
    ],
)
def test_what_can_never_be_served_is_refused(
    name: str, prompt: list[int], tokens: int, more: dict[str, Any], reason: str
) -> None:
    bench = new_bench(gpu_blocks=7)
    bench.submit("used", [1])
    with pytest.raises(RequestRefusedError, match=reason):
        bench.submit(name, prompt, tokens, **more)


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        ({"window": 8}, "sliding_window 8"),
        ({"num_scheduler_steps": 2, "num_lookahead_slots": 1}, "num_scheduler_steps 2"),
        ({"enable_chunked_prefill": True, "preemption_mode": "swap", "max_num_batched_tokens": 31}, "max_num_batched_tokens 31"),
    ],
)  # fmt: skip
def test_settings_that_cannot_run_are_refused(limits: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        new_bench(**limits)


def test_a_prefill_given_up_between_chunks_is_found_cached_as_in_the_original() -> None:
    bench = new_bench(caching=True, enable_chunked_prefill=True, max_num_batched_tokens=8)
    bench.submit("a", text(0, 20))
    bench.step()
    assert bench.engine.work.prefills == [(8, 0)]
    bench.engine.abort("a")
    second = bench.submit("b", text(0, 20))
    with pytest.raises(BrokenInvariantError, match="wrong at token 8"):
        bench.step()
    assert second.num_cached_tokens == 19


def test_swapping_out_without_room_ends_the_engine() -> None:
    bench = new_bench(gpu_blocks=7, cpu_blocks=1, preemption_mode="swap")
    bench.submit("a", text(0, 12), 12)
    bench.submit("b", text(50, 12), 12)
    with pytest.raises(RuntimeError, match="num_cpu_blocks 1"):
        bench.run()


@pytest.mark.parametrize("chunked", [False, True])
def test_after_each_step_all_tokens_but_the_one_it_sampled_are_computed(chunked: bool) -> None:
    for max_tokens in (3, 4, 5, 9):
        bench = new_bench(enable_chunked_prefill=chunked)
        bench.submit("a", text(0, 10), max_tokens)
        seq = bench.engine.scheduler.waiting[0].first_seq
        assert seq.get_num_computed_tokens() == 0
        for sampled in range(1, max_tokens + 1):
            bench.step()
            assert (seq.get_output_len(), seq.get_num_computed_tokens()) == (sampled, 9 + sampled)
        assert seq.is_finished()


@pytest.mark.parametrize("prefills", [2, 4])
def test_prompts_that_share_a_step_sample_once_they_are_through(prefills: int) -> None:
    bench = new_bench(
        gpu_blocks=64, enable_chunked_prefill=True, max_num_partial_prefills=prefills,
        max_num_batched_tokens=32, long_prefill_token_threshold=30,
    )  # fmt: skip
    for number in range(prefills):
        bench.submit(str(number), text(100 * number, 20))
    bench.step()
    assert bench.engine.load().running == prefills
    assert bench.engine.work.prefills == [(32 // prefills, 0)] * prefills
    assert not any(bench.answers.values())
    bench.run()
    assert len(bench.ended) == prefills


class Machine(RuleBasedStateMachine):
    """Requests come, go and are computed; memory reads back right all the time."""

    @initialize(
        mode=st.sampled_from(range(len(MODES))), caching=st.booleans(), blocks=st.integers(7, 10)
    )
    def begin(self, mode: int, caching: bool, blocks: int) -> None:
        limits = MODES[mode]
        caching = caching and not limits.get("enable_chunked_prefill")
        options: dict[str, Any] = limits | {"max_model_len": 24}
        self.bench = new_bench(gpu_blocks=blocks, caching=caching, **options)
        self.aborted: set[str] = set()

    @rule(length=st.integers(1, 14), family=st.integers(0, 2), tokens=st.integers(1, 8))
    def submit(self, length: int, family: int, tokens: int) -> None:
        name = str(len(self.bench.sent))
        self.bench.submit(name, text(family * 3, length), tokens, priority=-family)

    @rule(pick=st.integers(0, 30))
    def abort(self, pick: int) -> None:
        if pick < len(self.bench.sent):
            self.bench.engine.abort(str(pick))
            self.aborted.add(str(pick))

    @rule()
    def step(self) -> None:
        self.bench.step()

    @invariant()
    def all_is_well(self) -> None:
        self.bench.engine.check()

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            self.bench.run()
            assert self.bench.engine.load().kv_cache_usage == 0
            assert self.aborted.union(self.bench.ended) == self.bench.sent.keys()


TestMachine = long_test(Machine)
