"""The latency model, and the presets against what was published."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpath.lab.simworker.engine import Generation
from warmpath.lab.simworker.latency import LatencyModel, StepWork
from warmpath.lab.simworker.presets import DEFAULT_PRESET, PRESETS, Measurement, Preset, expected
from warmpath.lab.simworker.v1.assemble import KVGroup, build_engine, kv_cache_config
from warmpath.lab.simworker.v1.scheduling.scheduler_config import SchedulerConfig
from warmpath.lab.simworker.virtual.cluster import VirtualCluster

MEASURED = [preset for preset in PRESETS.values() if preset.measured]


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


@pytest.mark.parametrize(
    ("preset", "measured"),
    [(one, measured) for one in MEASURED for measured in one.measured],
    ids=str,
)
def test_a_preset_says_what_was_published(preset: Preset, measured: Measurement) -> None:
    ttft, tpot = expected(preset.latency, measured)
    assert tpot == pytest.approx(measured.tpot, rel=preset.tolerance)
    if measured.clients == 1:
        assert ttft == pytest.approx(measured.ttft, rel=preset.tolerance)


def test_presets_are_about_as_good_as_they_say() -> None:
    for preset in MEASURED:
        errors = [abs(expected(preset.latency, one)[1] / one.tpot - 1) for one in preset.measured]
        assert sum(errors) / len(errors) < 0.08
        assert preset.tolerance < 0.25
        assert len(errors) >= 12


@pytest.mark.parametrize("preset", MEASURED, ids=lambda preset: preset.name)
@pytest.mark.parametrize("clients", [1, 10])
def test_engines_with_a_preset_serve_as_fast_as_published(preset: Preset, clients: int) -> None:
    measured = next(
        one for one in preset.measured
        if (one.input_tokens, one.output_tokens, one.clients) == (200, 2000, clients)
    )  # fmt: skip
    engine = build_engine(
        kv_cache_config(2000, [KVGroup(16)]),
        SchedulerConfig(max_model_len=4096, max_num_seqs=64, max_num_batched_tokens=8192),
        preset.latency,
    )
    cluster = VirtualCluster([engine], lambda *_: 0)
    requests = [
        Generation(str(number), range(number, number + 200), 2000, lambda *_: None)
        for number in range(clients)
    ]
    outcomes = cluster.run([(number / 7, one) for number, one in enumerate(requests)])
    tpot = [(one.end - one.first_token) / 1999 * 1000 for one in outcomes]
    assert sum(tpot) / clients == pytest.approx(measured.tpot, rel=preset.tolerance)


def test_the_study_is_the_default_and_measurements_confirm_it() -> None:
    study, measured = PRESETS[DEFAULT_PRESET].latency, PRESETS["llama-3-70b-4xh100"].latency
    assert study == LatencyModel()
    for name in ("base", "prefill", "context", "decode_context"):
        assert getattr(measured, name) == pytest.approx(getattr(study, name), rel=0.15)


def test_faster_machines_are_faster() -> None:
    work = StepWork([(1000, 0)], 10, 10_000)
    seconds = [PRESETS[name].latency.step(work) for name in (
        "llama-3-8b-h100", "llama-3-8b-a100", "llama-3-8b-l4",
    )]  # fmt: skip
    assert seconds == sorted(seconds)
    assert PRESETS["llama-3-70b-8xh100"].latency.step(work) < PRESETS[
        "llama-3-70b-4xh100"
    ].latency.step(work)
