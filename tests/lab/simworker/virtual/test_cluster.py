"""Many workers on one virtual clock."""

from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lab.simworker.state_machines import EXAMPLES
from warmpath.lab.simworker.engine import Engine, Generation, Load
from warmpath.lab.simworker.latency import LatencyModel
from warmpath.lab.simworker.v1.assemble import KVGroup, build_engine, kv_cache_config
from warmpath.lab.simworker.v1.cache.kv_cache_event import BlockStored, CacheEvent
from warmpath.lab.simworker.v1.engine import V1Engine
from warmpath.lab.simworker.v1.scheduling.scheduler_config import SchedulerConfig
from warmpath.lab.simworker.virtual.cluster import (
    NOBODY,
    LeapingEngine,
    RequestOutcome,
    VirtualCluster,
)

LATENCY = LatencyModel(
    base=0.0200317, prefill=1.013e-4, context=1.7e-7, decode=1.51e-3, decode_context=2.3e-5
)
"""No two sums of these and of the arrivals below are equal."""


def engine(
    blocks: int = 40, block_size: int = 8, *, watermark: float = 0.0, **scheduler: Any
) -> V1Engine:
    choices = {"max_model_len": 200, "max_num_seqs": 6, "max_num_batched_tokens": 48} | scheduler
    return build_engine(
        kv_cache_config(blocks, [KVGroup(block_size)]),
        SchedulerConfig(**choices),
        LATENCY,
        vocab_size=300,
        watermark=watermark,
    )


class Uncut:
    """An engine that cannot be cut: it is told how long nothing will come, if that."""

    def __init__(self, inner: V1Engine, *, single: bool) -> None:
        self.inner = inner
        self.single = single

    @property
    def busy(self) -> bool:
        return self.inner.busy

    def submit(self, generation: Generation) -> None:
        self.inner.submit(generation)

    def abort(self, request_id: str) -> None:
        self.inner.abort(request_id)

    def begin_step(self, horizon: float = 0.0) -> float:
        return self.inner.begin_step(0.0 if self.single else horizon)

    def end_step(self) -> list[CacheEvent]:
        return self.inner.end_step()

    def load(self) -> Load:
        return self.inner.load()

    def reset_prefix_cache(self, *, reset_external: bool = False) -> bool:
        return self.inner.reset_prefix_cache(reset_external=reset_external)


def ignore(_tokens: list[int], _last: bool) -> None:
    pass


def generation(name: str, prompt: Sequence[int], tokens: int) -> Generation:
    return Generation(name, prompt, tokens, ignore)


class Told:
    """The calls that a listener receives."""

    def __init__(self) -> None:
        self.heard: list[tuple[float, int, list[CacheEvent]]] = []

    def __call__(self, now: float, worker: int, events: Sequence[CacheEvent]) -> None:
        self.heard.append((now, worker, list(events)))


REQUESTS = st.lists(
    st.fixed_dictionaries({
        "gap": st.integers(0, 700),
        "prefix": st.integers(0, 2),
        "prompt": st.integers(1, 90),
        "tokens": st.integers(1, 90),
        "priority": st.integers(0, 2),
        "abort": st.one_of(st.none(), st.integers(1, 3000)),
        "known": st.booleans(),
    }),
    min_size=1,
    max_size=14,
)  # fmt: skip


def serve(
    wrap: str, requests: list[dict[str, Any]], **scheduler: Any
) -> tuple[
    list[RequestOutcome],
    list[tuple[float, int, list[CacheEvent]]],
    list[list[int]],
    int,
    dict[str, list[int]],
]:
    inner = [engine(24, **scheduler) for _ in range(2)]
    engines: list[Engine[CacheEvent]] = list(inner)
    if wrap != "cut":
        engines = [Uncut(one, single=wrap == "single") for one in inner]
    told = Told()
    answers: dict[str, list[int]] = {}
    cluster = VirtualCluster(
        engines, lambda one, _: int(one.request_id) % 2, on_events=told, event_delay=0.0123
    )
    arrivals = []
    time = 0.0
    for number, one in enumerate(requests):
        time += one["gap"] / 997
        name = str(number)
        answers[name] = []
        prompt = [one["prefix"] * 7 + at // 3 for at in range(one["prompt"])]
        sent = Generation(
            name,
            prompt,
            one["tokens"],
            lambda new, _, name=name: answers[name].extend(new),
            priority=one["priority"],
        )
        if one["known"]:
            sent.prompt_hashes = [bytes([one["prefix"], at]) for at in range(one["prompt"] // 8)]
        arrivals.append((time, sent))
        if one["abort"] is not None:
            cluster.abort_at(time + one["abort"] / 1009, name)
    outcomes = cluster.run(arrivals)
    cluster.check()
    for one_engine in inner:
        one_engine.check()
    queues = [
        [block.block_id for block in one.manager.block_pool.free_block_queue.get_all_free_blocks()]
        for one in inner
    ]
    return outcomes, told.heard, queues, cluster.steps, answers


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@settings(max_examples=EXAMPLES // 3)
@given(requests=REQUESTS)
def test_leaps_have_the_outcome_of_single_steps(
    policy: str, requests: list[dict[str, Any]]
) -> None:
    single, cut, told = (serve(wrap, requests, policy=policy) for wrap in ("single", "cut", "told"))
    for other in (cut, told):
        for ours, theirs in zip(other[0], single[0], strict=True):
            assert astuple(ours)[:2] == astuple(theirs)[:2]
            assert astuple(ours)[2:-1] == pytest.approx(astuple(theirs)[2:-1], rel=1e-9)
        for heard, expected in zip(other[1], single[1], strict=True):
            assert heard[0] == pytest.approx(expected[0], rel=1e-9)
            assert heard[1:] == expected[1:]
        assert other[2] == single[2]
        assert other[4] == single[4]
        assert other[3] <= single[3]


def test_many_equal_steps_are_taken_as_one() -> None:
    one = engine(block_size=64)
    cluster = VirtualCluster([one], lambda *_: 0)
    cluster.run([(0.0, generation("a", range(100), 90))])
    # The prompt's three chunks, two steps where blocks are taken or filled, and the leaps between them.
    assert cluster.steps < 10


def test_an_engine_that_can_be_cut_is_known_by_its_method() -> None:
    assert isinstance(engine(), LeapingEngine)
    assert not isinstance(Uncut(engine(), single=True), LeapingEngine)


def test_a_request_waits_for_the_step_under_way() -> None:
    cluster = VirtualCluster([engine()], lambda *_: 0)
    first, second = cluster.run(
        [(0.0, generation("a", range(40), 1)), (0.001, generation("b", range(100, 120), 1))]
    )
    step = LATENCY.base + 40 * (LATENCY.prefill + LATENCY.context * 20)
    assert first.first_token == first.end == pytest.approx(step)
    after = LATENCY.base + 20 * (LATENCY.prefill + LATENCY.context * 10)
    assert second.first_token == pytest.approx(step + after)
    assert second.ttft == pytest.approx(step + after - 0.001)


def test_who_comes_as_a_step_ends_is_in_the_next_one() -> None:
    cluster = VirtualCluster([engine()], lambda *_: 0)
    (first,) = cluster.run([(0.0, generation("a", range(40), 1))])
    cluster = VirtualCluster([engine()], lambda *_: 0)
    _, second = cluster.run(
        [(0.0, generation("a", range(40), 5)), (first.end, generation("b", range(40), 1))]
    )
    assert second.num_cached_tokens == 32
    assert second.ttft < 2 * LATENCY.base


def test_events_come_after_the_delay_in_the_order_of_the_steps() -> None:
    told = Told()
    cluster = VirtualCluster([engine()], lambda *_: 0, on_events=told, event_delay=0.5)
    (outcome,) = cluster.run([(1.0, generation("a", range(96), 1))])
    assert [now for now, _, _ in told.heard][-1] == outcome.end + 0.5
    stored = [event for _, _, events in told.heard for event in events]
    assert all(isinstance(event, BlockStored) for event in stored)
    assert [event.token_ids[0] for event in stored if isinstance(event, BlockStored)] == [0, 48]


def test_routing_sees_the_workers_as_they_are() -> None:
    engines = [engine(), engine()]

    def least_load(_: Generation, __: float) -> int:
        loads = [one.load() for one in engines]
        return min((0, 1), key=lambda number: loads[number].running + loads[number].waiting)

    cluster = VirtualCluster(engines, least_load)
    outcomes = cluster.run([(0.0, generation(str(number), range(50), 9)) for number in range(6)])
    assert [one.worker for one in outcomes] == [0, 1, 0, 1, 0, 1]


def test_an_aborted_request_ends_then_and_others_go_on() -> None:
    cluster = VirtualCluster([engine()], lambda *_: 0)
    cluster.abort_at(0.3, "a")
    cluster.abort_at(0.4, "nobody")
    first, second = cluster.run(
        [(0.0, generation("a", range(10), 90)), (0.0, generation("b", range(10, 20), 90))]
    )
    assert first.end == 0.3
    assert 0 < first.num_output_tokens < 90
    assert second.num_output_tokens == 90


def test_what_cannot_be_served_is_told_and_passed_over() -> None:
    cluster = VirtualCluster([engine()], lambda *_: 0)
    refused, served = cluster.run(
        [(0.0, generation("a", range(200), 90)), (0.0, generation("b", range(10), 2))]
    )
    assert "max_model_len" in refused.refused
    assert refused.first_token == refused.end == -1
    assert served.num_output_tokens == 2


def test_the_clock_goes_on_from_run_to_run() -> None:
    cluster = VirtualCluster([engine()], lambda *_: 0)
    (first,) = cluster.run([(5.0, generation("a", range(20), 3))])
    (second,) = cluster.run([(first.end, generation("b", range(20), 3))])
    assert second.num_cached_tokens == 16
    assert second.arrival == first.end == pytest.approx(5 + first.end - first.arrival)
    with pytest.raises(ValueError, match=r"c arrives at 1\.0, before"):
        cluster.run([(1.0, generation("c", range(20), 3))])
    with pytest.raises(ValueError, match="time is 1"):
        cluster.abort_at(1.0, "a")


@pytest.mark.parametrize(
    ("engines", "delay", "why"),
    [([], 0.0, "engines: at least 1 is needed"), ([engine()], -1.0, "event_delay is -1.0 s")],
)
def test_settings_without_sense_are_refused(
    engines: list[V1Engine], delay: float, why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        VirtualCluster(engines, lambda *_: 0, event_delay=delay)


def test_a_request_that_is_unsent_goes_when_it_is_sent() -> None:
    cluster = VirtualCluster([engine(), engine()], lambda *_: None)
    [late, never] = [generation(name, range(40), 1) for name in "ab"]
    cluster.call_at(2.0, lambda: cluster.send(late, 1))
    sent, unsent = cluster.run([(1.0, late), (1.5, never)])
    step = LATENCY.base + 40 * (LATENCY.prefill + LATENCY.context * 20)
    assert (sent.worker, sent.arrival) == (1, 1.0)
    assert sent.ttft == pytest.approx(1.0 + step)
    assert (unsent.worker, unsent.first_token) == (NOBODY, -1.0)
    with pytest.raises(ValueError, match="a is not an unsent request"):
        cluster.send(late, 0)
    with pytest.raises(ValueError, match=r"time is 0.5, before"):
        cluster.call_at(0.5, lambda: None)


def test_calls_come_last_at_their_moment() -> None:
    told: list[str] = []
    cluster = VirtualCluster(
        [engine()], lambda one, _: told.append(one.request_id) or 0, event_delay=0.5
    )
    cluster.call_at(1.0, lambda: told.append("call"))
    cluster.call_at(1.0, lambda: cluster.call_at(1.0, lambda: told.append("another")))
    cluster.run([(1.0, generation("a", range(8), 1)), (1.0, generation("b", range(8), 1))])
    assert told == ["a", "b", "call", "another"]


def test_a_worker_that_dies_loses_requests_tokens_and_events() -> None:
    told = Told()
    dead, anew = engine(), engine()
    cluster = VirtualCluster([dead], lambda *_: 0, on_events=told, event_delay=1.0)
    lost: list[str] = []
    got: dict[str, list[int]] = {"a": [], "b": []}

    def listening(name: str) -> Generation:
        return Generation(name, range(40), 9, lambda new, _: got[name].extend(new))

    def die() -> None:
        lost.extend(cluster.restart(0, anew))
        got["b"].clear()
        cluster.send(listening("b"), 0)

    cluster.call_at(0.3, die)
    ended, begun = cluster.run([(0.0, generation("a", range(40), 1)), (0.2, listening("b"))])
    assert ended.end < 0.2
    assert lost == ["b"]
    assert begun.first_token > 0.3
    assert begun.num_output_tokens == len(got["b"]) == 9
    # Of what the dead engine said nothing arrives.
    assert all(now > 1.3 for now, _, _ in told.heard)
    cluster.check()
