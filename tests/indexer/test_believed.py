"""What is believed of ranks ends when it should, and the index holds exactly that."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby, pairwise

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.conformance.reference_index import ReferenceIndex
from tests.examples import examples
from tests.indexer.consistent import check
from tests.indexer.memory_index import MemoryIndex
from warmpath.indexer.believed import LASTING, Belief, Believed, Lasting
from warmpath.indexer.compiled.array_index import LEAST_BYTES, ArrayIndex
from warmpath.indexer.embedded import packed_keys
from warmpath.indexer.index.contract import Index
from warmpath.indexer.keys.key import Chain, pack_tokens

BACKENDS: dict[str, Callable[[], Index]] = {
    "reference": ReferenceIndex,
    "memory": MemoryIndex,
    "arrays": lambda: ArrayIndex(1 << 20),
}


@pytest.fixture(params=BACKENDS)
def believed(request: pytest.FixtureRequest) -> Believed:
    return Believed(BACKENDS[request.param](), max_blocks=100, assumed_seconds=60.0)


def prompt(*ids: int) -> Chain:
    """Return a prompt with a token a block, its keys made."""
    chain = Chain(7, pack_tokens(ids), 1, len(ids))
    return msgspec.structs.replace(chain, made=packed_keys(chain))


def leading(believed: Believed, chain: Chain, pod: str, how: str) -> int:
    """Return how many leading blocks of a prompt are believed of a pod."""
    found = {belief: (start, stop) for belief, start, stop in believed.match(chain)}
    start, stop = found.get(Belief(pod, 0, how), (0, 0))
    assert start == 0
    return stop


A = prompt(1, 2, 3, 4)
B = prompt(1, 2, 5, 6)


def test_a_prompt_just_picked_is_matched_by_the_next(believed: Believed) -> None:
    believed.arrive("p", 3, A.made, expires=10.0)
    assert believed.match(A) == [(Belief("p", 3, "arriving"), 0, 4)]
    assert believed.match(B) == [(Belief("p", 3, "arriving"), 0, 2)]
    assert believed.match(msgspec.structs.replace(B, made=b"")) == believed.match(B)


def test_what_is_new_of_a_prompt_is_added_and_goes_with_the_last_prompt_that_has_it(
    believed: Believed,
) -> None:
    tail = believed.arrive("p", 0, A.made, expires=10.0, held=3)
    assert believed.match(A, leading=False) == [(Belief("p", 0, "arriving"), 3, 4)]
    whole = believed.arrive("p", 0, A.made, expires=10.0)
    assert believed.arriving(believed.arrive("p", 0, A.made, expires=10.0, held=4)) == b""
    assert leading(believed, A, "p", "arriving") == 4
    believed.withdraw(whole)
    assert leading(believed, A, "p", "arriving") == 4
    check(believed)
    believed.withdraw(tail)
    assert believed._index.stats().entries == 0


def test_keys_cut_short_are_refused(believed: Believed) -> None:
    with pytest.raises(ValueError, match="multiple"):
        believed.arrive("p", 0, A.made[:-1], expires=10.0)
    check(believed)


def test_ranks_that_come_and_go_leave_nothing_behind(believed: Believed) -> None:
    for life in range(200):
        ticket = believed.arrive(f"pod-{life}", 0, A.made, expires=1e9)
        believed.assume(f"pod-{life}", 0, A.made, now=0.0, capacity=50)
        if life % 2:
            believed.withdraw(ticket)
        believed.forget(f"pod-{life}", 0)
        believed.expire(0.0)
    assert len(believed._beliefs) <= 4
    assert len(believed._ends) <= 64
    assert believed._earliest == []
    check(believed)


def test_a_prompt_longer_than_what_may_be_believed_is_believed_at_its_head(
    believed: Believed,
) -> None:
    long = prompt(*range(300))
    believed.arrive("p", 0, long.made, expires=10.0)
    assert leading(believed, long, "p", "arriving") == 50
    believed.assume("q", 0, long.made, now=0.0, capacity=1000)
    assert leading(believed, long, "q", "assumed") == 50
    check(believed)


def test_a_bound_that_leaves_no_room_is_refused() -> None:
    with pytest.raises(ValueError, match="max_blocks is 1"):
        Believed(ReferenceIndex(), max_blocks=1, assumed_seconds=1.0)


def test_nothing_is_looked_up_where_nothing_is_believed() -> None:
    unmade = Chain(7, bytes(2), 16, 5)
    believed = Believed(ArrayIndex(1 << 20), max_blocks=9, assumed_seconds=1.0)
    assert believed.match(unmade) == []
    believed.arrive("p", 0, A.made, expires=1.0)
    with pytest.raises(ValueError, match="buffer"):  # what hashing it comes to
        believed.match(unmade)


def test_an_index_with_less_room_holds_what_it_can() -> None:
    believed = Believed(ArrayIndex(LEAST_BYTES), max_blocks=1 << 20, assumed_seconds=60.0)
    tickets = []
    for n in range(100):
        chain = prompt(*range(1000 * n, 1000 * n + 500))
        tickets.append(believed.arrive("p", n % 7, chain.made, expires=10.0))
    assert believed._index.stats().evicted
    check(believed)
    last = leading(believed, prompt(*range(98_000, 98_500)), "p", "arriving")
    assert last > 0, "the heads are given up last"
    for ticket in tickets:
        believed.withdraw(ticket)
    check(believed)
    assert believed._index.stats().entries == 0


# Against an obviously right model

RANKS = st.tuples(st.sampled_from("abc"), st.integers(0, 1))
MOST = 24
SECONDS = 20
SMALL = 5

prompts = st.lists(st.integers(0, 2), max_size=9).map(lambda ids: prompt(*ids))


@dataclass
class ModelTicket:
    belief: Belief
    keys: list[int]
    ends: int
    confirmed: bool = False


class Model:
    """The same in lists. `now` is how much time has gone by, which is what clocks should say."""

    def __init__(self) -> None:
        self.now = 0
        self.tickets: dict[int, ModelTicket] = {}
        self.added: dict[Belief, set[int]] = defaultdict(set)
        """The keys that tickets have added, as long as any ticket has them."""
        self.assumed: dict[Belief, list[tuple[int, int]]] = {}
        """Keys and times, the least recently assumed first."""

    def blocks(self) -> int:
        return self.ticket_blocks() + sum(map(len, self.assumed.values()))

    def ticket_blocks(self) -> int:
        return sum(len(ticket.keys) for ticket in self.tickets.values())

    def arrive(self, ticket: int, belief: Belief, keys: list[int], ends: int, held: int) -> None:
        if new := keys[held : MOST // 2]:
            self.tickets[ticket] = ModelTicket(belief, keys[: MOST // 2], ends)
            self.added[belief].update(new)
        self.make_room()

    def confirm(self, ticket: int, until: int) -> None:
        if ticket in self.tickets:
            known = self.tickets[ticket]
            known.ends = min(known.ends, until) if known.confirmed else until
            known.confirmed = True

    def assume(self, belief: Belief, keys: list[int], capacity: int) -> None:
        keys = keys[: min(MOST, capacity)]
        old = [(key, time) for key, time in self.assumed.get(belief, []) if key not in keys]
        entries = old + [(key, self.now) for key in reversed(keys)]
        self.assumed[belief] = entries[max(0, len(entries) - capacity) :]
        self.make_room()

    def make_room(self) -> None:
        while self.blocks() > MOST and self.ticket_blocks() > MOST // 2:
            del self.tickets[min(self.tickets, key=lambda one: (self.tickets[one].ends, one))]
        while self.blocks() > MOST:
            oldest = min((of for of in self.assumed.values() if of), key=lambda of: of[0][1])
            del oldest[0]

    def forget(self, pod: str, rank: int) -> None:
        self.tickets = {n: t for n, t in self.tickets.items() if t.belief[:2] != (pod, rank)}
        self.assumed = {b: of for b, of in self.assumed.items() if b[:2] != (pod, rank)}

    def expire(self) -> None:
        self.tickets = {n: t for n, t in self.tickets.items() if t.ends > self.now}
        for belief, of in self.assumed.items():
            self.assumed[belief] = [(key, t) for key, t in of if t > self.now - SECONDS]

    def held(self) -> dict[Belief, set[int]]:
        held: dict[Belief, set[int]] = {}
        for ticket in self.tickets.values():
            held.setdefault(ticket.belief, set()).update(ticket.keys)
        for belief, added in self.added.items():
            added.intersection_update(held.get(belief, ()))
            held[belief] = {*added}
        held = {belief: keys for belief, keys in held.items() if keys}
        for belief, of in self.assumed.items():
            if of:
                held[belief] = {key for key, _ in of}
        return held

    def match(self, keys: list[int]) -> list[tuple[Belief, int, int]]:
        found = []
        for belief, held in self.held().items():
            runs = [len(list(run)) for _, run in groupby(key in held for key in keys)]
            edges = [sum(runs[:n]) for n in range(len(runs) + 1)]
            found += [(belief, *edge) for edge in pairwise(edges) if keys[edge[0]] in held]
        return sorted(found)


class AnyBeliefs(RuleBasedStateMachine):
    """Beliefs in any order, tickets old and unknown, and a clock that jumps both ways."""

    def __init__(self, index: Index) -> None:
        super().__init__()
        self.believed = Believed(index, max_blocks=MOST, assumed_seconds=float(SECONDS))
        self.model = Model()
        self.clock = 100
        self.issued: list[int] = [999]
        self.wait(0)

    @rule(rank=RANKS, chain=prompts, last=st.integers(-2, 30), held=st.integers(0, 9))
    def arrive(self, rank: tuple[str, int], chain: Chain, last: int, held: int) -> None:
        ends = float(self.clock + last)
        ticket = self.believed.arrive(*rank, chain.made, expires=ends, held=held)
        assert ticket not in self.issued[-20:]
        self.issued.append(ticket)
        belief = Belief(*rank, "arriving")
        self.model.arrive(ticket, belief, chain.keys(), self.model.now + last, held)

    @rule(which=st.integers(0, 99), last=st.integers(-2, 40))
    def confirm(self, which: int, last: int) -> None:
        ticket = self.issued[-1 - which % len(self.issued)]
        self.believed.confirm(ticket, float(self.clock + last))
        self.model.confirm(ticket, self.model.now + last)

    @rule(which=st.integers(0, 99))
    def withdraw(self, which: int) -> None:
        ticket = self.issued[-1 - which % len(self.issued)]
        self.believed.withdraw(ticket)
        self.model.tickets.pop(ticket, None)

    @rule(rank=RANKS, chain=prompts, capacity=st.integers(0, 12), kind=st.sampled_from(LASTING))
    def assume(self, rank: tuple[str, int], chain: Chain, capacity: int, kind: Lasting) -> None:
        # A moment later, since which goes first of what was assumed at once is not said.
        self.clock += 1
        self.model.now += 1
        now = float(self.clock)
        self.believed.assume(*rank, chain.made, now=now, capacity=capacity, kind=kind)
        self.model.assume(Belief(*rank, kind), chain.keys(), capacity)

    @rule(rank=RANKS)
    def forget(self, rank: tuple[str, int]) -> None:
        self.believed.forget(*rank)
        self.model.forget(*rank)

    @rule(seconds=st.integers(-50, 50) | st.just(-(10**6)) | st.just(10**6))
    def wait(self, seconds: int) -> None:
        self.clock += seconds
        self.model.now += max(0, seconds)
        for _ in range(2 * MOST):
            before = len(self.believed)
            self.believed.expire(float(self.clock), budget=SMALL)
            assert before - len(self.believed) <= 2 * SMALL + MOST // 2
        self.model.expire()

    @rule(chain=prompts, is_made=st.booleans())
    def ask(self, chain: Chain, is_made: bool) -> None:
        asked = chain if is_made else msgspec.structs.replace(chain, made=b"")
        assert sorted(self.believed.match(asked, leading=False)) == self.model.match(chain.keys())

    @invariant()
    def the_index_holds_what_is_believed(self) -> None:
        check(self.believed)
        assert len(self.believed) == self.model.blocks()
        assert len([*self.believed.arrivals()]) == len(self.model.tickets)
        held = {
            belief: {key for holders, key in self._holders() if slot in holders}
            for slot, belief in enumerate(self.believed._beliefs)
            if belief is not None
        }
        assert held == self.model.held()

    def _holders(self) -> list[tuple[set[int], int]]:
        keys = sorted({key for of in self.model.held().values() for key in of})
        index = self.believed._index
        return [({one.slot for one in index.stretches([key])}, key) for key in keys]


@pytest.mark.random
@pytest.mark.parametrize("backend", BACKENDS)
def test_beliefs_end_when_they_should(backend: str) -> None:
    run_state_machine_as_test(
        lambda: AnyBeliefs(BACKENDS[backend]()),
        settings=settings(max_examples=examples(60), stateful_step_count=40),
    )
