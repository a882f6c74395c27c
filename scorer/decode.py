"""The cost of decoding on a rank if another rank does the prefill.

The decoding rank receives the part of the prompt's KV cache that it lacks, and then reads the KV of all
its sequences at each step. So the cost, in seconds, is that transfer plus the time that the sequences in
flight add to the following steps. A rank whose KV cache is nearly full would have to preempt, which
costs a whole prefill.
"""

import numpy as np

from warmpath.scorer.candidate import Request
from warmpath.scorer.columns import Columns, Costs

MOVE_SECONDS_PER_TOKEN = 4e-6
"""320 KB of KV a token (a 70B model with grouped queries) over a link of 80 GB/s."""
STEPS = 300
"""Assumed decode steps of a request, since its real length is not known. The mean of the public
conversation trace is 343."""
STEP_SECONDS = 0.15e-3
"""Seconds that each further sequence adds to a step."""
STEP_SECONDS_PER_TOKEN = 35e-9
"""Seconds that each token of context adds to a step (both from a study of policies)."""
FULL = 0.9
"""Share of the KV cache in use above which preemption is likely."""


def decode_costs(request: Request, columns: Columns) -> Costs:
    """Return each candidate's cost of decoding, with up to a whole prefill if KV usage is above FULL."""
    load = columns.load
    step = load.in_flight * STEP_SECONDS + load.context_tokens * STEP_SECONDS_PER_TOKEN
    full = np.maximum(0.0, load.kv_usage - FULL) / (1 - FULL)
    return Costs.sum_of(
        ("move", (request.prompt_tokens - columns.cached) * MOVE_SECONDS_PER_TOKEN),
        ("decode", step * STEPS),
        ("full", full * columns.prefill),
    )
