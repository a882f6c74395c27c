"""The small parts of a worker: balance, sleep, adapters."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.lab.simworker.state_machines import LONG
from warmpath.lab.simworker.engine import Load
from warmpath.lab.simworker.server.adapters import AdapterError, Adapters
from warmpath.lab.simworker.server.rank import Balancer, score
from warmpath.lab.simworker.server.sleep_state import LEVELS, TAGS, SleepState


def load(running: int = 0, waiting: int = 0, usage: float = 0.0) -> Load:
    return Load(running, waiting, usage, 0, 0, 0)


def test_equal_ranks_take_turns() -> None:
    balancer = Balancer(3)
    assert [balancer.choose([0.0, 0.0, 0.0]) for _ in range(6)] == [0, 1, 2, 0, 1, 2]


@given(st.lists(st.floats(0, 100), min_size=1, max_size=6), st.integers(0, 10))
def test_the_least_loaded_rank_is_chosen(scores: list[float], turns: int) -> None:
    balancer = Balancer(len(scores))
    for _ in range(turns):
        balancer.choose(scores)
    assert scores[balancer.choose(scores)] == min(scores)


def test_waiting_weighs_more_the_fuller_the_cache_is() -> None:
    assert score(load(running=4), 0) == 4.0
    assert score(load(running=4), 6) == 6.0
    assert score(load(waiting=2, usage=0.5), 0) == 2.0
    assert score(load(waiting=2, usage=0.75), 0) == 5.0
    assert score(load(waiting=2, usage=1.0), 0) == 8.0


WOKEN: list[list[str] | None] = [
    None, ["weights"], ["kv_cache"], ["weights", "kv_cache"], ["scheduling"], ["other"],
    ["weights", "other"], ["kv_cache", "scheduling"],
]  # fmt: skip


class Sleeping(RuleBasedStateMachine):
    """A worker that is put to sleep and woken in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.state = SleepState()
        self.resident = set(TAGS)
        self.paused = False

    @rule(level=st.sampled_from(LEVELS))
    def sleep(self, level: int) -> None:
        self.state.sleep(level)
        self.paused = True
        if level:
            self.resident.clear()

    @rule(tags=st.sampled_from(WOKEN))
    def wake(self, tags: list[str] | None) -> None:
        wanted = set(TAGS) - self.resident if tags is None else set(tags) - {"scheduling"}
        if tags is None or (not wanted & self.resident and wanted <= set(TAGS)):
            self.resident |= wanted
        awake = self.state.wake(tags)
        assert awake == (self.resident == set(TAGS))
        self.paused &= not awake

    @invariant()
    def it_sleeps_while_anything_does(self) -> None:
        self.state.check()
        assert (self.state.level is not None) == self.paused
        assert self.resident == set(TAGS) or self.state.level in {1, 2}


TestSleeping = Sleeping.TestCase
TestSleeping.settings = LONG


NAMED = ["base", "a", "b", "c", ""]
LOADED = list(itertools.product(NAMED, ["/x", "/y", ""], [False, True]))


class Loading(RuleBasedStateMachine):
    """Adapters that come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.adapters = Adapters("base")
        self.model: dict[str, str] = {}
        self.numbers: dict[str, int | None] = {}

    @rule(given=st.sampled_from(LOADED))
    def load(self, given: tuple[str, str, bool]) -> None:
        name, path, in_place = given
        good = name not in {"base", ""} and path and (in_place or name not in self.model)
        if not good:
            with pytest.raises(AdapterError):
                self.adapters.load(name, path, in_place=in_place)
            return
        before = self.adapters.number_of(name)
        self.adapters.load(name, path, in_place=in_place)
        self.model[name] = path
        assert before is None or before == self.adapters.number_of(name)

    @rule(name=st.sampled_from(NAMED))
    def unload(self, name: str) -> None:
        if name in self.model:
            self.adapters.unload(name)
            del self.model[name]
        else:
            with pytest.raises(AdapterError) as raised:
                self.adapters.unload(name)
            assert raised.value.unknown

    @invariant()
    def the_loaded_ones_are_there(self) -> None:
        self.adapters.check()
        assert {one.name: one.path for one in self.adapters.all()} == self.model
        assert all(self.adapters.get(name) for name in self.model)
        assert self.adapters.get("base") is None


TestLoading = Loading.TestCase
TestLoading.settings = LONG
