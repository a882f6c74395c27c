"""KV pulled from a peer, in the seconds of a prefill."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpath.scorer.prefill import PrefillModel
from warmpath.scorer.weigh import with_pull

TOKENS = 1000


def seconds(cached: list[int], held: int, model: PrefillModel) -> tuple[list[float], list[float]]:
    """Return the seconds on ranks with these cached tokens, without and with a pull."""
    without = np.array([model.seconds(TOKENS - one, one) for one in cached])
    given = np.array(cached, dtype=np.float64)
    return without.tolist(), with_pull(without, given, held, TOKENS, model).tolist()


def test_a_cold_rank_pulls_what_the_warmest_one_holds_and_computes_the_rest() -> None:
    model = PrefillModel(per_pulled_token=1e-5)
    _, [cold, warm] = seconds([0, 800], 800, model)
    assert cold == pytest.approx(model.seconds(200, 800) + 800 * 1e-5)
    assert warm == pytest.approx(model.seconds(200, 800))


@given(
    st.lists(st.integers(0, TOKENS - 1), min_size=1),
    st.integers(0, TOKENS - 1),
    st.floats(0, 1e-3),
)
def test_no_prefill_takes_longer_and_none_that_has_as_much_changes(
    cached: list[int], held: int, per_token: float
) -> None:
    without, pulled = seconds(cached, held, PrefillModel(per_pulled_token=per_token))
    for tokens, before, after in zip(cached, without, pulled, strict=True):
        assert after <= before
        if tokens >= held:
            assert after == before
