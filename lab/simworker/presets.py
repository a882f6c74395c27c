"""The latency model's constants for real machines, with the measurements that they were fitted to.

NVIDIA measured NIM (TensorRT-LLM engines, fp16, Llama 3) with genai-perf and a fixed number of clients.
A client sends its next request when it has the answer to the last one; all prompts have one length, and
all answers; nothing is cached. The measurements are the file `nim.csv` of NVIDIA's course "Sizing LLM
Inference Systems", as republished in `github.com/wbing520/ai-performance-engineering`, commit 0e25b2e,
`code/ch10_inference/inference_gpu_cluster_sizing/dataset/`. vLLM is another engine: it reads the same
weights and does the same multiplications, but has other kernels and another overhead.

The constants have the least squares of the relative errors of

    time to the first token of one client = base + P
    time of a further token, c clients    = base + c (decode + decode_context (n + m/2)) + (c - 1) P / m

with n tokens a prompt, m an answer, and P = prefill n + context n n/2, over all measurements of up to
100 clients that a full cache did not hold up. The last term is the time of other clients' prompts that
are computed meanwhile. `context` is not fitted, but follows from `prefill`: a pair of tokens takes
4 x layers x width operations, a token 2 x parameters. The root of the mean squared
error is 5 to 9 %; `Preset.tolerance` is the largest error among the measurements kept here.

`expected` is this arithmetic; it schedules nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from warmpath.lab.simworker.latency import LatencyModel, StepWork


@dataclass(frozen=True, slots=True)
class Measurement:
    """A published measurement with `clients` clients, each with one request at a time."""

    input_tokens: int
    output_tokens: int
    clients: int
    ttft: float
    """Milliseconds to the first token, mean."""
    tpot: float
    """Milliseconds a further token, mean."""


@dataclass(frozen=True, slots=True)
class Preset:
    """A model and its GPUs, as the name has them: Llama 3 in fp16, SXM boards of 80 GB."""

    name: str
    latency: LatencyModel
    measured: tuple[Measurement, ...]
    """NVIDIA's, of NIM (TensorRT-LLM, fp16, genai-perf; nim.csv of 'Sizing LLM Inference Systems').
    Empty if the constants are derived."""
    tolerance: float
    """Largest relative error of `expected` against `measured`."""


def expected(latency: LatencyModel, load: Measurement) -> tuple[float, float]:
    """Return milliseconds to the first token with one client, and milliseconds a further token."""
    alone = latency.step(StepWork([(load.input_tokens, 0)]))
    context = load.clients * (load.input_tokens + load.output_tokens // 2)
    step = latency.step(StepWork([], load.clients, context))
    meanwhile = (load.clients - 1) / load.output_tokens * (alone - latency.base)
    return alone * 1000, (step + meanwhile) * 1000


_PRESETS = (
    Preset(
        "llama-3-8b-a100",
        LatencyModel(
            base=12.1e-3, prefill=64.1e-6, context=2.09e-9, decode=10.7e-6, decode_context=146e-9
        ),
        (
            Measurement(200, 200, 1, 24.5, 12.08),
            Measurement(200, 200, 10, 140.3, 13.13),
            Measurement(200, 200, 50, 459.3, 16.70),
            Measurement(200, 2000, 1, 26.8, 12.41),
            Measurement(200, 2000, 10, 140.6, 14.33),
            Measurement(200, 2000, 50, 586.3, 21.69),
            Measurement(2000, 200, 1, 145.7, 12.73),
            Measurement(2000, 2000, 1, 149.8, 13.09),
            Measurement(2000, 2000, 10, 1252.7, 16.95),
            Measurement(2000, 2000, 50, 3916.2, 36.13),
            Measurement(7000, 1000, 1, 556.5, 14.87),
            Measurement(7000, 1000, 10, 3134.9, 26.03),
            Measurement(7000, 1000, 50, 5835.5, 95.13),
        ),
        0.12,
    ),
    Preset(
        "llama-3-8b-h100",
        LatencyModel(
            base=7.64e-3, prefill=22.8e-6, context=0.744e-9, decode=17.7e-6, decode_context=74.6e-9
        ),
        (
            Measurement(200, 200, 1, 12.6, 7.39),
            Measurement(200, 200, 10, 49.2, 8.13),
            Measurement(200, 200, 50, 137.8, 10.73),
            Measurement(200, 2000, 1, 14.0, 7.52),
            Measurement(200, 2000, 10, 44.8, 8.69),
            Measurement(200, 2000, 50, 178.6, 13.03),
            Measurement(2000, 200, 1, 51.7, 7.86),
            Measurement(2000, 200, 10, 446.3, 9.81),
            Measurement(2000, 2000, 1, 53.9, 8.04),
            Measurement(2000, 2000, 10, 443.6, 10.38),
            Measurement(2000, 2000, 50, 1353.3, 20.80),
            Measurement(7000, 1000, 1, 203.5, 9.17),
            Measurement(7000, 1000, 10, 1290.8, 15.00),
            Measurement(7000, 1000, 50, 1848.3, 45.15),
        ),
        0.18,
    ),
    Preset(
        "llama-3-70b-4xa100",
        LatencyModel(
            base=31.2e-3, prefill=177e-6, context=3.29e-9, decode=92.1e-6, decode_context=50.5e-9
        ),
        (
            Measurement(200, 200, 1, 66.7, 29.86),
            Measurement(200, 200, 10, 382.8, 32.23),
            Measurement(200, 200, 50, 1594.8, 37.97),
            Measurement(200, 2000, 1, 73.2, 30.78),
            Measurement(200, 2000, 10, 390.6, 34.00),
            Measurement(200, 2000, 50, 1484.4, 39.51),
            Measurement(2000, 200, 1, 397.4, 31.61),
            Measurement(2000, 2000, 1, 411.0, 32.48),
            Measurement(2000, 2000, 10, 3246.4, 37.94),
            Measurement(2000, 2000, 50, 9965.1, 49.01),
            Measurement(7000, 1000, 1, 1357.2, 36.80),
            Measurement(7000, 1000, 10, 7741.1, 52.92),
            Measurement(7000, 1000, 50, 15047.6, 112.07),
        ),
        0.20,
    ),
    Preset(
        "llama-3-70b-4xh100",
        LatencyModel(
            base=20.2e-3, prefill=69.5e-6, context=1.29e-9, decode=30.3e-6, decode_context=40e-9
        ),
        (
            Measurement(200, 200, 1, 34.6, 18.83),
            Measurement(200, 200, 10, 165.1, 20.76),
            Measurement(200, 200, 50, 569.8, 23.42),
            Measurement(200, 2000, 1, 36.6, 19.43),
            Measurement(200, 2000, 10, 165.8, 21.97),
            Measurement(200, 2000, 50, 615.7, 24.14),
            Measurement(2000, 200, 1, 160.8, 20.06),
            Measurement(2000, 2000, 1, 163.5, 20.63),
            Measurement(2000, 2000, 10, 1324.8, 24.49),
            Measurement(2000, 2000, 50, 4158.0, 29.38),
            Measurement(7000, 1000, 1, 550.4, 23.73),
            Measurement(7000, 1000, 10, 3217.3, 32.69),
            Measurement(7000, 1000, 50, 6224.9, 57.64),
        ),
        0.14,
    ),
    Preset(
        "llama-3-70b-8xh100",
        LatencyModel(
            base=15.6e-3, prefill=44.3e-6, context=0.822e-9, decode=41.2e-6, decode_context=22e-9
        ),
        (
            Measurement(200, 200, 1, 28.7, 14.22),
            Measurement(200, 200, 10, 117.5, 15.09),
            Measurement(200, 200, 50, 342.6, 20.14),
            Measurement(200, 2000, 1, 30.5, 14.96),
            Measurement(200, 2000, 10, 113.5, 15.74),
            Measurement(200, 2000, 50, 416.3, 20.32),
            Measurement(2000, 200, 1, 111.5, 15.60),
            Measurement(2000, 200, 10, 836.5, 16.92),
            Measurement(2000, 2000, 1, 113.0, 16.01),
            Measurement(2000, 2000, 10, 833.3, 16.94),
            Measurement(2000, 2000, 50, 2510.8, 23.52),
            Measurement(7000, 1000, 1, 333.6, 19.11),
            Measurement(7000, 1000, 10, 1854.0, 21.33),
            Measurement(7000, 1000, 50, 2811.1, 39.51),
        ),
        0.22,
    ),
    # Derived, not measured: the L4's data sheet (300 GB/s, 121 TFLOPS of dense fp16), 16 GB of weights,
    # 16 GFLOP a token, 128 KiB of keys and values a token, and the shares of these speeds that the A100
    # and H100 above reach: 64 % reading weights, 75 % computing prompts, 48 % reading keys and values.
    Preset(
        "llama-3-8b-l4",
        LatencyModel(
            base=83.6e-3, prefill=177e-6, context=5.78e-9, decode=20e-6, decode_context=910e-9
        ),
        (),
        0.0,
    ),
    # The policy study (`lab.simulate.study`) chose it; it is not measured. The four H100 above confirm
    # all constants except `decode`: they need a fifth of this time for a sequence.
    Preset("study-70b-tp4", LatencyModel(), (), 0.0),
)

PRESETS: Mapping[str, Preset] = {preset.name: preset for preset in _PRESETS}

DEFAULT_PRESET = "study-70b-tp4"
