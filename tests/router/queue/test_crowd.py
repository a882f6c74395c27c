"""Who gives way in a full queue, beside a plain rule over a list."""

from collections import Counter
from itertools import count

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
from warmpath.router.queue.request import Waiting

NUMBERS = count()
LIMITS = QueueTable(max_requests=6, max_bytes=60, shares={"a": 2.0})


def waiting(tenant: str = "", *, caller: str = "", priority: int = 0, size: int = 1) -> Waiting:
    ask = Ask(PROMPT, field_of(()), Wanted("m"))
    return Waiting(ask, 0.0, 1.0, priority, tenant, size, caller, number=next(NUMBERS))


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
