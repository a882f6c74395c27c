"""KV pulled from a peer: the seconds of a prefill on each rank if the best holder gives its blocks.

A rank pulls the beginning of a prompt from the rank that holds most of it, and computes the rest.
"""

import numpy as np

from warmpath.scorer.load_columns import Column
from warmpath.scorer.prefill import PrefillModel


def with_pull(
    prefill: Column, cached: Column, held: float, prompt_tokens: int, model: PrefillModel
) -> Column:
    """Return the seconds of each rank's prefill, with a pull where that is faster.

    `prefill` are the seconds without a pull, `cached` the tokens that count as cached on each rank,
    `held` those that the best holder gives.
    """
    pulled = np.maximum(0.0, held - cached)
    seconds = model.seconds(prompt_tokens - held, held) + pulled * model.per_pulled_token
    faster: Column = np.where(pulled > 0, np.minimum(prefill, seconds), prefill)
    return faster
