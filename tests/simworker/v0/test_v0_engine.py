from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from simworker.engine import BrokenInvariantError, Engine, Generation, RefusedError
from simworker.latency import LatencyModel
from simworker.v0.cache_engine import CacheEngine, CacheShape
from simworker.v0.engine import V0Engine
from simworker.v0.lora import LoRAConfig
from simworker.v0.numpy_backend import NumpyBackend
from simworker.v0.scheduler_config import CacheConfig, SchedulerConfig
from simworker.v0.worker import Worker
from tests.simworker.state_machines import LONG

BLOCK_SIZE = 4
SHAPE = CacheShape(num_layers=1, block_size=BLOCK_SIZE, num_kv_heads=1, head_size=4)


@dataclass
class Client:
    """A generation, and what it was given."""

    request_id: str
    prompt: list[int]
    max_tokens: int = 6
    more: dict[str, Any] = field(default_factory=dict)
    tokens: list[int] = field(default_factory=list)
    finished: bool = False

    def __post_init__(self) -> None:
        self.generation = Generation(
            self.request_id, self.prompt, self.max_tokens, self.take, **self.more
        )

    def take(self, tokens: list[int], finished: bool) -> None:
        assert not self.finished
        self.tokens += tokens
        self.finished = finished


def make(
    *,
    gpu_blocks: int = 16,
    cpu_blocks: int = 64,
    caching: bool = False,
    loras: int = 0,
    window: int | None = None,
    **limits: Any,
) -> V0Engine:
    limits = {"max_model_len": 32, "max_num_seqs": 4, "max_num_batched_tokens": 40} | limits
    cache = CacheConfig(
        BLOCK_SIZE,
        enable_prefix_caching=caching,
        sliding_window=window,
        num_gpu_blocks=gpu_blocks,
        num_cpu_blocks=cpu_blocks,
    )
    worker = Worker(CacheEngine(SHAPE, gpu_blocks, cpu_blocks, NumpyBackend()))
    lora = LoRAConfig(max_loras=loras) if loras else None
    return V0Engine(SchedulerConfig(**limits), cache, lora, LatencyModel(), worker, vocab_size=1000)


def step(engine: V0Engine) -> float:
    seconds = engine.begin_step()
    assert engine.end_step() == []
    engine.check()
    return seconds


def serve(engine: V0Engine, *clients: Client) -> None:
    for client in clients:
        engine.submit(client.generation)
    while engine.busy:
        step(engine)


def prompt_of(start: int, length: int) -> list[int]:
    return list(range(start, start + length))


def test_it_is_an_engine() -> None:
    engine: Engine[Any] = make()
    assert not engine.busy


MODES = [
    {"preemption_mode": "recompute"},
    {"preemption_mode": "swap"},
    {"preemption_mode": None, "policy": "priority"},
    {"preemption_mode": "recompute", "enable_chunked_prefill": True, "max_num_batched_tokens": 10},
    {"preemption_mode": "swap", "enable_chunked_prefill": True},
]


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
    alone = []
    for number in range(5):
        client = Client("alone", prompt_of(100 * number, 9 + number), 12)
        serve(make(), client)
        alone.append(client.tokens)
    engine = make(gpu_blocks=8, caching=caching, **limits)
    clients = [
        Client(str(number), prompt_of(100 * number, 9 + number), 12, {"priority": -number})
        for number in range(5)
    ]
    serve(engine, *clients)
    assert [client.tokens for client in clients] == alone
    assert all(client.finished and len(client.tokens) == 12 for client in clients)
    assert engine.load().preemptions > 0
    assert sum(c.generation.num_preemptions for c in clients) == engine.load().preemptions
    assert engine.load().kv_cache_usage == 0


def test_what_a_request_left_is_found_by_the_next() -> None:
    engine = make(caching=True)
    first, second = Client("a", prompt_of(0, 10)), Client("b", prompt_of(0, 14))
    serve(engine, first)
    serve(engine, second)
    assert first.generation.num_cached_tokens == 0
    assert second.generation.num_cached_tokens == 8
    load = engine.load()
    assert (load.prefix_cache_queries, load.prefix_cache_hits) == (24, 8)
    assert engine.reset_prefix_cache()
    third = Client("c", prompt_of(0, 14))
    serve(engine, third)
    assert third.generation.num_cached_tokens == 0
    assert third.tokens == second.tokens


def test_a_prompt_cached_whole_computes_its_last_token() -> None:
    engine = make(caching=True)
    serve(engine, Client("a", prompt_of(0, 8)))
    again = Client("b", prompt_of(0, 8))
    engine.submit(again.generation)
    step(engine)
    assert engine.work.prefills == [(1, 7)]
    assert again.generation.num_cached_tokens == 7


@pytest.mark.parametrize("more", [{"cache_salt": "x"}, {"lora_name": "l"}])
def test_salts_and_adapters_keep_caches_apart(more: dict[str, str]) -> None:
    engine = make(caching=True, loras=1)
    serve(engine, Client("a", prompt_of(0, 12)))
    others, own = Client("b", prompt_of(0, 12), more=more), Client("c", prompt_of(0, 12), more=more)
    serve(engine, others)
    serve(engine, own)
    assert others.generation.num_cached_tokens == 0
    assert own.generation.num_cached_tokens == 11


def test_a_step_takes_as_long_as_its_prompts_and_decodes() -> None:
    engine = make()
    engine.submit(Client("a", prompt_of(0, 10)).generation)
    model = LatencyModel()
    assert step(engine) == model.base + 10 * (model.prefill + model.context * 5)
    assert step(engine) == model.base + model.decode + 10 * model.decode_context


def test_an_aborted_request_gets_no_more_tokens_and_its_id_can_be_used_again() -> None:
    engine = make()
    first, second = Client("a", prompt_of(0, 10)), Client("a", prompt_of(5, 5))
    engine.submit(first.generation)
    step(engine)
    engine.begin_step()
    engine.abort("a")
    engine.submit(second.generation)
    engine.end_step()
    assert len(first.tokens) == 1
    serve(engine)
    assert second.finished
    assert not engine.busy
    engine.abort("a")


def test_a_client_may_abort_another_from_its_callback() -> None:
    engine = make()
    second = Client("b", prompt_of(50, 6))
    stop = Generation("a", prompt_of(0, 6), 6, lambda *_: engine.abort("b"))
    engine.submit(stop)
    engine.submit(second.generation)
    while engine.busy:
        step(engine)
    assert second.tokens == []


@pytest.mark.parametrize(
    ("client", "reason"),
    [
        (Client("x", prompt_of(0, 30)), "max_model_len 32"),
        (Client("x", prompt_of(0, 20), 12), "8 blocks, and 7"),
        (Client("x", []), "at least 1"),
        (Client("x", [1], 0), "at least 1"),
        (Client("x", [1], more={"lora_name": "l"}), "lora_name l"),
        (Client("x", [1], more={"skip_reading_prefix_cache": True}), "skip_reading_prefix_cache"),
        (Client("used", [1]), "request_id used"),
    ],
)
def test_what_can_never_be_served_is_refused(client: Client, reason: str) -> None:
    engine = make(gpu_blocks=7)
    engine.submit(Client("used", [1]).generation)
    with pytest.raises(RefusedError, match=reason):
        engine.submit(client.generation)


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        ({"window": 8}, "sliding_window 8"),
        ({"num_scheduler_steps": 2, "num_lookahead_slots": 1}, "num_scheduler_steps 2"),
        (
            {
                "enable_chunked_prefill": True,
                "preemption_mode": "swap",
                "max_num_batched_tokens": 31,
            },
            "max_num_batched_tokens 31",
        ),
    ],
)
def test_settings_that_cannot_run_are_refused(limits: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        make(**limits)


def test_a_prefill_given_up_between_chunks_is_found_cached_as_in_the_original() -> None:
    engine = make(caching=True, enable_chunked_prefill=True, max_num_batched_tokens=8)
    engine.submit(Client("a", prompt_of(0, 20)).generation)
    step(engine)
    assert engine.work.prefills == [(8, 0)]
    engine.abort("a")
    second = Client("b", prompt_of(0, 20))
    engine.submit(second.generation)
    engine.begin_step()
    engine.end_step()
    assert second.generation.num_cached_tokens == 19
    with pytest.raises(BrokenInvariantError, match="wrong at token 8"):
        engine.check()


def test_swapping_out_without_room_ends_the_engine() -> None:
    engine = make(gpu_blocks=7, cpu_blocks=1, preemption_mode="swap")
    with pytest.raises(RuntimeError, match="num_cpu_blocks 1"):
        serve(engine, Client("a", prompt_of(0, 12), 12), Client("b", prompt_of(50, 12), 12))


class EngineMachine(RuleBasedStateMachine):
    """Requests come, go and are computed; memory reads back right all the time."""

    @initialize(
        mode=st.sampled_from(range(len(MODES))),
        caching=st.booleans(),
        blocks=st.integers(7, 10),
    )
    def begin(self, mode: int, caching: bool, blocks: int) -> None:
        limits = MODES[mode]
        caching = caching and not limits.get("enable_chunked_prefill")
        self.engine = make(gpu_blocks=blocks, caching=caching, **(limits | {"max_model_len": 24}))
        self.clients: list[Client] = []
        self.aborted: set[str] = set()

    @rule(length=st.integers(1, 14), family=st.integers(0, 2), tokens=st.integers(1, 8))
    def submit(self, length: int, family: int, tokens: int) -> None:
        number = len(self.clients)
        client = Client(str(number), prompt_of(family * 3, length), tokens, {"priority": -family})
        self.clients.append(client)
        self.engine.submit(client.generation)

    @rule(pick=st.integers(0, 30))
    def abort(self, pick: int) -> None:
        if pick < len(self.clients):
            self.engine.abort(str(pick))
            self.aborted.add(str(pick))

    @rule()
    def step(self) -> None:
        self.engine.begin_step()
        self.engine.end_step()

    @invariant()
    def all_is_well(self) -> None:
        if hasattr(self, "engine"):
            self.engine.check()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for _ in range(2000):
            if not self.engine.busy:
                break
            self.step()
        assert not self.engine.busy
        self.engine.check()
        assert self.engine.load().kv_cache_usage == 0
        for client in self.clients:
            done = client.finished and len(client.tokens) == client.max_tokens
            assert done or client.request_id in self.aborted


TestEngine = EngineMachine.TestCase
TestEngine.settings = LONG
