"""The latency model's constants for real machines, fitted to published measurements.

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
error is 5 to 9 %. tests/lab/simworker/test_latency.py compares the constants with some of the
measurements (tests/recorded/nim.csv).
"""

from collections.abc import Mapping

from warmpath.lab.simworker.latency import LatencyModel

PRESETS: Mapping[str, LatencyModel] = {
    "llama-3-8b-a100": LatencyModel(
        base=12.1e-3, prefill=64.1e-6, context=2.09e-9, decode=10.7e-6, decode_context=146e-9
    ),
    "llama-3-8b-h100": LatencyModel(
        base=7.64e-3, prefill=22.8e-6, context=0.744e-9, decode=17.7e-6, decode_context=74.6e-9
    ),
    "llama-3-70b-4xa100": LatencyModel(
        base=31.2e-3, prefill=177e-6, context=3.29e-9, decode=92.1e-6, decode_context=50.5e-9
    ),
    "llama-3-70b-4xh100": LatencyModel(
        base=20.2e-3, prefill=69.5e-6, context=1.29e-9, decode=30.3e-6, decode_context=40e-9
    ),
    "llama-3-70b-8xh100": LatencyModel(
        base=15.6e-3, prefill=44.3e-6, context=0.822e-9, decode=41.2e-6, decode_context=22e-9
    ),
    # Derived, not measured: the L4's data sheet (300 GB/s, 121 TFLOPS of dense fp16), 16 GB of weights,
    # 16 GFLOP a token, 128 KiB of keys and values a token, and the shares of these speeds that the A100
    # and H100 above reach: 64 % reading weights, 75 % computing prompts, 48 % reading keys and values.
    "llama-3-8b-l4": LatencyModel(
        base=83.6e-3, prefill=177e-6, context=5.78e-9, decode=20e-6, decode_context=910e-9
    ),
    # The policy study (`lab.simulate.study`) chose it; it is not measured. The four H100 above confirm
    # all constants except `decode`: they need a fifth of this time for a sequence.
    "study-70b-tp4": LatencyModel(),
}
"""The latency of a model and its GPUs, as the name has them: Llama 3 in fp16, SXM boards of 80 GB."""

DEFAULT_PRESET = "study-70b-tp4"
