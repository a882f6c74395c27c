"""Who goes first of those that wait, and who gives way where the queue is full (beside a plain rule over a list)."""

from collections import Counter
from itertools import count, islice
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.examples import examples
from tests.router.consistent import check
from tests.router.pick.picker_parts import PROMPT
from warmpath.router.config.schema import QueueTable
from warmpath.router.pick.eligible import Wanted, field_of
from warmpath.router.pick.weigh import Ask
from warmpath.router.queue.crowd import Crowd
from warmpath.router.queue.order import Order
from warmpath.router.queue.request import Waiting

NUMBERS = count()
LANE = Wanted("m")
LIMITS = QueueTable(max_requests=6, max_bytes=60, shares={"a": 2.0})


def waiting(tenant: str = "", *, lane: Wanted = LANE, size: int = 1, **fields: Any) -> Waiting:
    ask = Ask(PROMPT, field_of(()), lane)
    fields = {"number": next(NUMBERS), "uncached": 1000} | fields
    return Waiting(ask, 0.0, 1.0, tenant=tenant, size=size, **fields)


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
        one = next(order.in_order({*order.lanes}))
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
    small = [waiting("small", key=float(n)) for n in range(40)]
    large = [waiting("large", key=float(n), uncached=4000) for n in range(40)]
    gone = served(order_of(*small, *large), 40)
    assert Counter(one.tenant for one in gone) == {"small": 32, "large": 8}


def test_tenants_get_tokens_by_their_weights() -> None:
    requests = [waiting(name) for name in ("a", "b") for _ in range(40)]
    gone = served(order_of(*requests, a=3.0), 40)
    assert Counter(one.tenant for one in gone) == {"a": 30, "b": 10}


def test_who_was_idle_has_no_credit_for_it() -> None:
    order = order_of(*(waiting("busy") for _ in range(60)))
    served(order, 20)
    for _ in range(30):
        order.add(waiting("back"))
    assert Counter(one.tenant for one in served(order, 20)) == {"busy": 10, "back": 10}


def test_who_has_had_more_than_its_share_still_owes_it_when_it_comes_back() -> None:
    order = order_of(*(waiting("poor") for _ in range(20)))
    order.add(waiting("rich", key=-1.0, uncached=10_000))
    [first] = served(order, 1)
    if first.tenant != "rich":
        served(order, 1)
    order.add(waiting("rich", key=-1.0, uncached=10_000))
    assert {one.tenant for one in served(order, 8)} == {"poor"}


def test_tenants_of_one_pass_take_turns_as_if_each_were_served() -> None:
    requests = [waiting(name, key=float(name == "b")) for name in ("a", "b") for _ in range(5)]
    order = order_of(*requests)
    tenants = [one.tenant for one in order.in_order({LANE})]
    assert tenants == ["a", "b"] * 5
    check(order)


def test_a_lane_that_is_full_is_skipped_from_then_on() -> None:
    other = Wanted("m", named=("pod-1",))
    requests = [waiting(key=float(n), lane=lane) for n in range(5) for lane in (LANE, other)]
    order = order_of(*requests)
    lanes = {LANE, other}
    seen = []
    for one in order.in_order(lanes):
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
    assert len([*islice(order.in_order(lanes), 10)]) == 10
    assert Counted.looks < 50


class AnyCrowd(RuleBasedStateMachine):
    """Requests that come and go, beside a list of them."""

    def __init__(self) -> None:
        super().__init__()
        self.crowd = Crowd(LIMITS)
        self.all: list[Waiting] = []

    @rule(
        tenant=st.sampled_from("abc"),
        caller=st.sampled_from("xy"),
        priority=st.integers(0, 2),
        size=st.integers(0, 80),
    )
    def comes(self, tenant: str, caller: str, priority: int, size: int) -> None:
        newcomer = waiting(tenant, caller=caller, priority=priority, size=size)
        max_bytes = max(LIMITS.max_bytes, size if not self.all else 0, self.crowd.bytes)
        gone = self.crowd.squeeze_in(newcomer)
        assert len(self.crowd) == 1 or self.crowd.bytes <= max_bytes
        assert gone == self.expected(newcomer)
        self.all = [one for one in [*self.all, newcomer] if one not in gone]

    def expected(self, newcomer: Waiting) -> list[Waiting]:
        left, gone = [*self.all, newcomer], list[Waiting]()
        most = max(LIMITS.max_requests, len(self.all))
        max_bytes = max(LIMITS.max_bytes, sum(one.size for one in self.all))
        while len(left) > 1 and (len(left) > most or sum(one.size for one in left) > max_bytes):
            lowest = min(one.priority for one in left)
            group = [one for one in left if one.priority == lowest]
            for name, weights in (("caller", {}), ("tenant", LIMITS.shares)):
                parts = Counter[str]()
                for one in group:
                    parts[getattr(one, name)] += LIMITS.max_bytes + one.size * LIMITS.max_requests
                by_weight = {key: part / weights.get(key, 1.0) for key, part in parts.items()}
                largest = {
                    key for key, part in by_weight.items() if part == max(by_weight.values())
                }
                own = getattr(newcomer, name)
                chosen = own if newcomer in group and own in largest else max(largest)
                group = [one for one in group if getattr(one, name) == chosen]
            gone.append(group[-1])
            left.remove(group[-1])
            if gone[-1] is newcomer:
                return [newcomer]
        return gone

    @rule(limit=st.integers(1, 6))
    def limits_are_lowered(self, limit: int) -> None:
        lower = QueueTable(max_requests=limit, max_bytes=10 * limit, shares=LIMITS.shares)
        crowd = Crowd(lower)
        for one in self.all:
            crowd.add(one)
        newcomer = waiting("c", caller="z", size=0)
        gone = crowd.squeeze_in(newcomer)
        assert len(gone) <= 1 or len(self.all) <= limit
        check(crowd)

    @precondition(lambda self: self.all)
    @rule(data=st.data())
    def goes(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.all))
        self.crowd.remove(one)
        self.all.remove(one)

    @invariant()
    def it_has_the_requests_of_the_list(self) -> None:
        check(self.crowd)
        assert sorted(one.number for one in self.crowd) == [one.number for one in self.all]
        assert len(self.crowd) == len(self.all)
        assert self.crowd.counts() == Counter(one.priority for one in self.all)
        assert len(self.all) <= LIMITS.max_requests


TestAnyCrowd = AnyCrowd.TestCase
TestAnyCrowd.settings = settings(max_examples=examples(100), stateful_step_count=30)
