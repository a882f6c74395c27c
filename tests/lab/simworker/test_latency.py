"""The latency model, and the presets against what was published."""

import csv
import math
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.recordings import NIM
from warmpath.lab.simworker.engine import Generation
from warmpath.lab.simworker.latency import LatencyModel, StepWork
from warmpath.lab.simworker.presets import DEFAULT_PRESET, PRESETS
from warmpath.lab.simworker.v1.assemble import KVGroup, build_engine, kv_cache_config
from warmpath.lab.simworker.v1.scheduling.scheduler_config import SchedulerConfig
from warmpath.lab.simworker.virtual.cluster import VirtualCluster

TOLERANCE = {
    "llama-3-8b-a100": 0.12, "llama-3-8b-h100": 0.18, "llama-3-70b-4xa100": 0.2,
    "llama-3-70b-4xh100": 0.14, "llama-3-70b-8xh100": 0.22,
}  # fmt: skip
"""The largest relative error of `expected`, by preset."""


class Measurement(NamedTuple):
    """What was published for some clients, each with one request at a time; times are means in ms."""

    preset: str
    input_tokens: int
    output_tokens: int
    clients: int
    ttft: float
    tpot: float


with NIM.open(encoding="utf-8") as file:
    MEASURED = [
        Measurement(row[0], *map(int, row[1:4]), *map(float, row[4:]))  # type: ignore[call-arg]
        for row in [*csv.reader(file)][1:]
    ]


def expected(load: Measurement) -> tuple[float, float]:
    """Return milliseconds to the first token with one client, and milliseconds a further token."""
    latency = PRESETS[load.preset]
    alone = latency.step(StepWork([(load.input_tokens, 0)]))
    context = load.clients * (load.input_tokens + load.output_tokens // 2)
    step = latency.step(StepWork([], load.clients, context))
    meanwhile = (load.clients - 1) / load.output_tokens * (alone - latency.base)
    return alone * 1000, (step + meanwhile) * 1000


def test_the_latency_model_adds_up_as_stated() -> None:
    model = LatencyModel(base=1, prefill=10, context=100, decode=1000, decode_context=10000)
    assert model.step(StepWork()) == 1
    assert model.step(StepWork([(2, 3)])) == 1 + 2 * (10 + 100 * (3 + 1))
    assert model.step(StepWork([], 2, 5)) == 1 + 2 * 1000 + 5 * 10000
    assert model.step(StepWork([(2, 3)], 2, 5)) == 1 + 820 + 2000 + 50000


def test_a_prompt_takes_as_long_in_chunks_as_at_once_but_for_the_steps() -> None:
    model = LatencyModel(base=0)
    whole = model.step(StepWork([(8000, 0)]))
    assert sum(model.step(StepWork([(2000, 2000 * at)])) for at in range(4)) == pytest.approx(whole)


MODELS = st.builds(
    LatencyModel,
    base=st.floats(0, 0.1),
    prefill=st.just(1e-4),
    context=st.just(1e-9),
    decode=st.floats(0, 1e-3),
    decode_context=st.sampled_from([0.0, 1e-9, 1e-6]),
)


@given(
    model=MODELS,
    sequences=st.integers(1, 100),
    context=st.integers(0, 10**6),
    steps=st.integers(1, 300),
)
def test_many_decoding_steps_take_what_they_take_one_by_one(
    model: LatencyModel, sequences: int, context: int, steps: int
) -> None:
    one_by_one = sum(
        model.step(StepWork([], sequences, context + at * sequences)) for at in range(steps)
    )
    at_once = model.decode_steps(StepWork([], sequences, context), steps)
    assert at_once == pytest.approx(one_by_one, rel=1e-9)
    assert model.decode_steps(StepWork([], sequences, context), 1) == model.step(
        StepWork([], sequences, context)
    )


@given(
    model=MODELS,
    sequences=st.integers(1, 100),
    context=st.integers(0, 10**6),
    most=st.integers(1, 300),
    seconds=st.one_of(st.just(math.inf), st.floats(0, 60)),
)
def test_the_number_of_steps_is_the_least_that_takes_so_long(
    model: LatencyModel, sequences: int, context: int, most: int, seconds: float
) -> None:
    work = StepWork([], sequences, context)
    steps = model.decode_steps_until(work, seconds, most)
    assert 1 <= steps <= most
    if steps < most:
        assert model.decode_steps(work, steps) >= seconds
    if steps > 1:
        assert model.decode_steps(work, steps - 1) < seconds


@pytest.mark.parametrize("measured", MEASURED, ids=str)
def test_a_preset_says_what_was_published(measured: Measurement) -> None:
    ttft, tpot = expected(measured)
    assert tpot == pytest.approx(measured.tpot, rel=TOLERANCE[measured.preset])
    if measured.clients == 1:
        assert ttft == pytest.approx(measured.ttft, rel=TOLERANCE[measured.preset])


@pytest.mark.parametrize("preset", TOLERANCE)
def test_presets_are_about_as_good_as_they_say(preset: str) -> None:
    errors = [abs(expected(one)[1] / one.tpot - 1) for one in MEASURED if one.preset == preset]
    assert sum(errors) / len(errors) < 0.08
    assert len(errors) >= 12


@pytest.mark.parametrize(
    "measured", [one for one in MEASURED if one[1:3] == (200, 2000) and one.clients <= 10], ids=str
)
def test_engines_with_a_preset_serve_as_fast_as_published(measured: Measurement) -> None:
    engine = build_engine(
        kv_cache_config(2000, [KVGroup(16)]),
        SchedulerConfig(max_model_len=4096, max_num_seqs=64, max_num_batched_tokens=8192),
        PRESETS[measured.preset],
    )
    cluster = VirtualCluster([engine], lambda *_: 0)
    requests = [
        Generation(str(number), range(number, number + 200), 2000, lambda *_: None)
        for number in range(measured.clients)
    ]
    outcomes = cluster.run([(number / 7, one) for number, one in enumerate(requests)])
    tpot = [(one.end - one.first_token) / 1999 * 1000 for one in outcomes]
    tolerance = TOLERANCE[measured.preset]
    assert sum(tpot) / measured.clients == pytest.approx(measured.tpot, rel=tolerance)


def test_the_study_is_the_default_and_measurements_confirm_it() -> None:
    study, measured = PRESETS[DEFAULT_PRESET], PRESETS["llama-3-70b-4xh100"]
    assert study == LatencyModel()
    for name in ("base", "prefill", "context", "decode_context"):
        assert getattr(measured, name) == pytest.approx(getattr(study, name), rel=0.15)


def test_faster_machines_are_faster() -> None:
    work = StepWork([(1000, 0)], 10, 10_000)
    seconds = [PRESETS[name].step(work) for name in (
        "llama-3-8b-h100", "llama-3-8b-a100", "llama-3-8b-l4",
    )]  # fmt: skip
    assert seconds == sorted(seconds)
    assert PRESETS["llama-3-70b-8xh100"].step(work) < PRESETS["llama-3-70b-4xh100"].step(work)
