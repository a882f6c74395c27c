"""The oracle answers as a search through every moment does."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from tests.faults.history import Held, History
from warmpath.indexer.engines.event import Tier

KEYS = [*range(6)]


@dataclass
class Change:
    """A change of the cache between two moments, in whole seconds."""

    before: int
    after: int
    held: Held


@st.composite
def changes(draw: st.DrawFn) -> list[Change]:
    now, found = 0, []
    for _ in range(draw(st.integers(0, 8))):
        before = now + draw(st.integers(0, 3))
        now = before + draw(st.integers(0, 2))
        blocks = st.sets(st.sampled_from(KEYS))
        found.append(Change(before, now, {Tier.GPU: draw(blocks), Tier.CPU: draw(blocks)}))
    return found


def possible(made: list[Change], moment: int) -> list[set[int]]:
    """Return all that the cache may have held at a moment, in any tier."""
    contents = [set[int](), *(set().union(*one.held.values()) for one in made)]
    certain = sum(one.after < moment for one in made)
    begun = sum(one.before <= moment for one in made)
    return contents[certain : begun + 1]


def history_of(made: list[Change]) -> History:
    history = History()
    for one in made:
        history.changed(one.before, one.after, one.held)
    return history


def leading(keys: list[int], held: set[int]) -> int:
    found = 0
    while found < len(keys) and keys[found] in held:
        found += 1
    return found


@given(changes(), st.integers(-1, 30), st.lists(st.sampled_from(KEYS), unique=True))
def test_most_and_least_are_those_of_all_moments(
    made: list[Change], since: int, keys: list[int]
) -> None:
    history = history_of(made)
    found = [leading(keys, held) for moment in range(since, 50) for held in possible(made, moment)]
    assert history.most_held(keys, since) == max(found)
    assert history.least_held(keys, since) == min(found)


@given(changes(), st.integers(-1, 30), st.integers(0, 8))
def test_a_claim_is_true_as_long_as_the_cache_may_have_been_so(
    made: list[Change], since: int, which: int
) -> None:
    history = history_of(made)
    contents = [{Tier.GPU: set[int](), Tier.CPU: set[int]()}, *(one.held for one in made)]
    claimed = contents[which % len(contents)]
    blocks = leading(KEYS, set().union(*claimed.values()))
    flaw = history.flaw(KEYS, blocks, claimed, since)
    then = [content.held for content in history.since(since)]
    if claimed in then:
        assert not flaw
    if any(all(held[tier] != claimed[tier] for held in then) for tier in claimed):
        assert flaw


@given(changes(), st.integers(-1, 30))
def test_claims_beyond_the_most_and_the_least_are_wrong(made: list[Change], since: int) -> None:
    history = history_of(made)
    most, least = history.most_held(KEYS, since), history.least_held(KEYS, since)
    assert history.flaw(KEYS, most + 1, None, since) == "too high"
    assert history.flaw(KEYS, least - 1, None, since) == "too low"
    assert not any(history.flaw(KEYS, blocks, None, since) for blocks in (most, least))
