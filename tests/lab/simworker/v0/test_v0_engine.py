"""The whole v0 engine: every request gets its tokens, whatever memory and cache do."""

from typing import Any

import pytest

from tests.lab.simworker.v0.serving import MODES, Client, make, prompt_of, serve, step
from warmpath.lab.simworker.engine import (
    BrokenInvariantError,
    Engine,
    Generation,
    RequestRefusedError,
)
from warmpath.lab.simworker.latency import LatencyModel


def test_it_is_an_engine() -> None:
    engine: Engine[Any] = make()
    assert not engine.busy


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
        (Client("x", prompt_of(0, 20), 12), "8 blocks, and there are 7"),
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
    with pytest.raises(RequestRefusedError, match=reason):
        engine.submit(client.generation)


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


@pytest.mark.parametrize("chunked", [False, True])
def test_after_each_step_all_tokens_but_the_one_it_sampled_are_computed(chunked: bool) -> None:
    engine = make(enable_chunked_prefill=chunked)
    for max_tokens in (3, 4, 5, 9):
        engine.submit(Client("a", prompt_of(0, 10), max_tokens).generation)
        seq = engine.scheduler.waiting[0].first_seq
        assert seq.get_num_computed_tokens() == 0
        for sampled in range(1, max_tokens + 1):
            step(engine)
            assert (seq.get_output_len(), seq.get_num_computed_tokens()) == (sampled, 9 + sampled)
        assert seq.is_finished()


@pytest.mark.parametrize("prefills", [2, 4])
def test_prompts_that_share_a_step_sample_once_they_are_through(prefills: int) -> None:
    engine = make(
        gpu_blocks=64, enable_chunked_prefill=True, max_num_partial_prefills=prefills,
        max_num_batched_tokens=32, long_prefill_token_threshold=30,
    )  # fmt: skip
    clients = [Client(str(number), prompt_of(100 * number, 20)) for number in range(prefills)]
    for client in clients:
        engine.submit(client.generation)
    step(engine)
    assert engine.load().running == prefills
    assert engine.work.prefills == [(32 // prefills, 0)] * prefills
    assert not any(client.tokens for client in clients)
    serve(engine)
    assert all(len(client.tokens) == 6 for client in clients)
