"""The oracle answers as a search through every moment does."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from indexer.engines.event import Tier
from tests.faults.history import Held, History

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


@given(changes(), st.integers(-1, 30), st.lists(st.sampled_from(KEYS), unique=True))
def test_most_and_least_are_those_of_all_moments(
    made: list[Change], since: int, keys: list[int]
) -> None:
    history = History()
    for one in made:
        history.changed(one.before, one.after, one.held)
    leading = []
    for moment in range(since, 50):
        for held in possible(made, moment):
            leading.append(0)
            while leading[-1] < len(keys) and keys[leading[-1]] in held:
                leading[-1] += 1
    assert history.most_held(keys, since) == max(leading)
    assert history.least_held(keys, since) == min(leading)
