"""Which rank should decode, where another one does the prefill.

It has to take over the prompt's KV but for what it holds already, and then reads all of its
sequences' KV at each step. So the cost, in seconds, is moving the rest of the prompt, and what the
sequences in flight make of each of the steps that follow. A rank whose KV cache is nearly full would
have to preempt, which costs a whole prefill.
"""

import numpy as np

from scorer.candidate import Request
from scorer.columns import Columns, Costs

MOVE_SECONDS_PER_TOKEN = 4e-6
"""320 KB of KV a token (a 70B model with grouped queries) over a link of 80 GB/s."""
STEPS = 300
"""Decode steps that a request lasts; its real length is not known. The mean of the public
conversation trace is 343."""
STEP_SECONDS = 0.15e-3
"""What a sequence more costs a step."""
STEP_SECONDS_PER_TOKEN = 35e-9
"""What a token of context more costs a step (both as in `shared/bench/policy-study.md`)."""
FULL = 0.9
"""The share of the KV cache from which on preemption is near."""


def decode_costs(request: Request, columns: Columns) -> Costs:
    """Return what decoding costs on each candidate. Its prefill counts only where the cache is full."""
    load = columns.load
    step = load.in_flight * STEP_SECONDS + load.context_tokens * STEP_SECONDS_PER_TOKEN
    full = np.maximum(0.0, load.kv_usage - FULL) / (1 - FULL)
    return Costs.sum_of(
        ("move", (request.prompt_tokens - columns.cached) * MOVE_SECONDS_PER_TOKEN),
        ("decode", step * STEPS),
        ("full", full * columns.prefill),
    )
