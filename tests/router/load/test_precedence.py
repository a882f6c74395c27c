"""Short prompts go before longer ones, but not for ever: in the queue and in engines alike."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.router.pick.picker_parts import Parts, SizedPrompt
from warmpath.router.config.schema import QueueTable
from warmpath.router.load.overdue import FIRST_COME, Precedence
from warmpath.router.pick.picking import precedence_of
from warmpath.router.queue.standing import engine_priority

SECONDS = st.floats(0.0, 1e4)


@given(st.floats(0.0, 100.0), SECONDS, SECONDS, SECONDS, SECONDS)
def test_nobody_goes_before_one_that_arrived_more_than_the_bound_earlier(
    times: float, bound: float, prefill: float, later_prefill: float, later: float
) -> None:
    order = Precedence(times, bound)
    if later > bound:
        assert order.place(0.0, prefill) < order.place(later, later_prefill)


def test_a_shorter_prompt_goes_first_for_as_many_seconds_as_it_is_shorter_times_a_factor() -> None:
    order = Precedence(10.0, 60.0)
    assert order.place(0.0, 3.0) > order.place(19.9, 1.0)
    assert order.place(0.0, 3.0) < order.place(20.1, 1.0)
    assert FIRST_COME.place(0.0, 3.0) < FIRST_COME.place(0.1, 1.0)


@pytest.mark.parametrize(("bound", "milliseconds"), [(2.0, 2_000), (1e6, None)])
def test_an_engines_priority_is_the_place_in_milliseconds(
    bound: float, milliseconds: int | None
) -> None:
    parts = Parts(pods=1)
    placed = parts.picker.reserve(parts.ask(prompt=SizedPrompt(20_000)), parts.now)
    prefill, _ = placed.choice.options.cheapest()
    after = milliseconds or round(1000 * 10.0 * prefill)
    assert after == milliseconds or after > 2_000
    assert engine_priority(placed, Precedence(10.0, bound), 5.0) == 1_005_000 + after


def test_a_router_orders_by_its_configured_keys() -> None:
    assert precedence_of(QueueTable(prefill_times=3.0, passed_seconds=4.0)) == Precedence(3.0, 4.0)
    assert Parts(pods=1).picker.precedence == Precedence(10.0, 60.0) == precedence_of(QueueTable())
