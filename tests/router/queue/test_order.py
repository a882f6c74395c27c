"""The order of waiting requests: classes, tenants' shares, keys."""

from collections import Counter
from itertools import count, islice

import pytest

from tests.router.consistent import check
from tests.router.pick.picker_parts import PROMPT
from warmpath.router.pick.eligible import Wanted, field_of
from warmpath.router.pick.weigh import Ask
from warmpath.router.queue.order import Order
from warmpath.router.queue.request import Waiting

NUMBERS = count()
LANE = Wanted("m")


def waiting(
    tenant: str = "",
    *,
    key: float = 0.0,
    uncached: int = 1000,
    priority: int = 0,
    lane: Wanted = LANE,
) -> Waiting:
    number = next(NUMBERS)
    ask = Ask(PROMPT, field_of(()), lane)
    return Waiting(ask, 0.0, 1.0, priority, tenant, number=number, uncached=uncached, key=key)


def order_of(*requests: Waiting, **shares: float) -> Order:
    order = Order(shares)
    for one in requests:
        order.add(one)
        check(order)
    return order


def served(order: Order, number: int) -> list[Waiting]:
    """Serve this number of requests, each the first one at its time."""
    gone = []
    for _ in range(number):
        one = next(order.passing({*order.lanes}))
        order.remove(one, is_served=True)
        check(order)
        gone.append(one)
    return gone


def test_the_least_key_goes_first_and_the_first_arrival_among_equals() -> None:
    late, first, second = waiting(key=2.0), waiting(key=1.0), waiting(key=1.0)
    assert served(order_of(late, second, first), 3) == [first, second, late]


def test_a_key_may_change() -> None:
    one, other = waiting(key=1.0), waiting(key=2.0)
    order = order_of(one, other)
    order.move(one, 3.0)
    check(order)
    assert served(order, 2) == [other, one]


def test_tenants_get_equal_uncached_tokens() -> None:
    small = [waiting("small", key=float(n), uncached=1000) for n in range(40)]
    large = [waiting("large", key=float(n), uncached=4000) for n in range(40)]
    gone = served(order_of(*small, *large), 40)
    assert Counter(one.tenant for one in gone) == {"small": 32, "large": 8}


def test_tenants_get_tokens_by_their_weights() -> None:
    requests = [waiting(name, uncached=1000) for name in ("a", "b") for _ in range(40)]
    gone = served(order_of(*requests, a=3.0), 40)
    assert Counter(one.tenant for one in gone) == {"a": 30, "b": 10}


def test_who_was_idle_has_no_credit_for_it() -> None:
    order = order_of(*(waiting("busy") for _ in range(60)))
    served(order, 20)
    for _ in range(30):
        order.add(waiting("back"))
    assert Counter(one.tenant for one in served(order, 20)) == {"busy": 10, "back": 10}


def test_who_has_had_more_than_its_share_still_owes_it_when_it_comes_back() -> None:
    order = order_of(*(waiting("poor", uncached=1000) for _ in range(20)))
    order.add(waiting("rich", key=-1.0, uncached=10_000))
    [first] = served(order, 1)
    if first.tenant != "rich":
        served(order, 1)
    order.add(waiting("rich", key=-1.0, uncached=10_000))
    assert {one.tenant for one in served(order, 8)} == {"poor"}


def test_tenants_of_one_pass_take_turns_as_if_each_were_served() -> None:
    requests = [waiting(name, key=float(name == "b")) for name in ("a", "b") for _ in range(5)]
    order = order_of(*requests)
    tenants = [one.tenant for one in order.passing({LANE})]
    assert tenants == ["a", "b"] * 5
    check(order)


def test_a_lane_that_is_full_is_skipped_from_then_on() -> None:
    other = Wanted("m", named=("pod-1",))
    requests = [waiting(key=float(n), lane=lane) for n in range(5) for lane in (LANE, other)]
    order = order_of(*requests)
    lanes = {LANE, other}
    seen = []
    for one in order.passing(lanes):
        seen.append(one.wanted)
        if len(seen) == 4:
            lanes.remove(LANE)
    assert seen == [LANE, other] * 2 + [other] * 3


@pytest.mark.deep
def test_a_pass_costs_the_same_whatever_number_waits() -> None:
    """Only the requests that are asked for are touched."""

    class Counted(dict):  # type: ignore[type-arg]
        looks = 0

        def __contains__(self, name: object) -> bool:
            Counted.looks += 1
            return super().__contains__(name)

    order = order_of(*(waiting(f"tenant {n}") for n in range(500)))
    lanes = Counted({LANE: ()})
    assert len([*islice(order.passing(lanes), 10)]) == 10
    assert Counted.looks < 50
