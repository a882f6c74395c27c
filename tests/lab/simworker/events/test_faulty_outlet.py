"""Live batches that are spoiled on their way, and what a consumer can make of them."""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.lab.simworker.state_machines import LONG
from warmpath.lab.simworker.events.faulty_outlet import EventFaults, FaultError, FaultyOutlet, Frame
from warmpath.lab.simworker.events.publisher import Journal


def sent(faults: EventFaults, count: int = 6) -> list[list[int]]:
    """Return what goes out at each of `count` batches, a second apart."""
    outlet = FaultyOutlet(faults)
    return [
        [frame.sequence for frame in outlet.push(float(number), Frame(number, b""))]
        for number in range(count)
    ]


def test_without_faults_every_batch_goes_out_at_once() -> None:
    assert sent(EventFaults()) == [[0], [1], [2], [3], [4], [5]]


def test_the_next_batches_are_dropped_and_then_no_more() -> None:
    assert sent(EventFaults(drop_next=2)) == [[], [], [2], [3], [4], [5]]


def test_a_duplicate_follows_its_original() -> None:
    assert sent(EventFaults(duplicate_next=1), 2) == [[0, 0], [1]]


def test_a_reordered_batch_follows_the_one_after_it() -> None:
    assert sent(EventFaults(reorder_next=1, delay_seconds=5.0), 3) == [[], [1, 0], [2]]


def test_a_reordered_batch_that_none_follows_goes_out_late() -> None:
    outlet = FaultyOutlet(EventFaults(reorder_next=1, delay_seconds=5.0))
    assert outlet.push(0.0, Frame(0, b"")) == []
    assert outlet.due == 5.0
    assert outlet.release(4.9) == []
    assert outlet.release(5.0) == [Frame(0, b"")]
    assert outlet.due is None


def test_a_delayed_batch_holds_up_those_behind_it() -> None:
    faults = EventFaults(delay_next=1, delay_seconds=2.5)
    assert sent(faults) == [[], [], [], [0, 1, 2, 3], [4], [5]]


def test_rates_do_what_their_share_says_and_the_same_again() -> None:
    faults = EventFaults(drop=0.25, seed=7)
    once = sent(faults, 4000)
    assert once == sent(faults, 4000)
    assert once != sent(EventFaults(drop=0.25, seed=8), 4000)
    assert 0.2 < sum(not out for out in once) / 4000 < 0.3


def test_one_rate_does_not_change_which_batches_another_meets() -> None:
    dropped = {number for number, out in enumerate(sent(EventFaults(drop=0.3), 500)) if not out}
    both = sent(EventFaults(drop=0.3, duplicate=0.5), 500)
    assert {number for number, out in enumerate(both) if not out} == dropped
    assert any(len(out) == 2 for out in both)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"drop": 1.5}, "events.drop: a number from 0 to 1"),
        ({"drop": "all"}, "events.drop: a number"),
        ({"duplicate": True}, "events.duplicate: a number"),
        ({"drop_next": -1}, "events.drop_next: a whole number from 0"),
        ({"drop_next": 0.5}, "events.drop_next: a whole number"),
        ({"delay_seconds": 1e9}, "events.delay_seconds: a number from 0 to 3600"),
        ({"lose": 1}, "events.lose: is not a field; the fields are delay"),
    ],
)
def test_faults_that_cannot_be_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FaultError, match=message):
        EventFaults().changed(changes)


def test_a_change_leaves_the_other_faults() -> None:
    changed = EventFaults(drop=0.5, seed=3).changed({"delay_next": 2})
    assert changed == EventFaults(drop=0.5, seed=3, delay_next=2)


FATES: list[dict[str, Any]] = [
    *(
        {kind: rate}
        for kind in ("drop", "duplicate", "delay", "reorder")
        for rate in (0.0, 0.5, 1.0)
    ),
    {"drop": 0.3, "duplicate": 0.3, "delay": 0.3, "reorder": 0.3, "seed": 1},
    {"drop_next": 2},
    {"reorder_next": 3, "duplicate_next": 1},
    {"delay_seconds": 0.0},
    {"delay_seconds": 3.0},
]


class Spoiled(RuleBasedStateMachine):
    """Any faults, lives and pauses; a consumer who asks the journal for what it misses."""

    def __init__(self) -> None:
        super().__init__()
        self.journal = Journal(1000)
        self.outlet = FaultyOutlet()
        self.now = 0.0
        self.life = 0
        self.published: list[Frame] = []
        self.received: list[Frame] = []

    @rule(faults=st.sampled_from(FATES))
    def configure(self, faults: dict[str, Any]) -> None:
        self.outlet.configure(self.outlet.faults.changed(faults))

    @rule()
    def publish(self) -> None:
        frame = self.journal.append(f"{self.life}:{self.journal.next_sequence}".encode())
        self.published.append(frame)
        self.received += self.outlet.push(self.now, frame)

    @rule(seconds=st.sampled_from([0.1, 1.0, 10.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.received += self.outlet.release(self.now)

    @rule()
    def restart(self) -> None:
        self.life += 1
        self.journal.begin_life()
        self.outlet.begin_life()
        self.published, self.received = [], []

    @invariant()
    def nothing_is_made_up(self) -> None:
        assert set(self.received) <= set(self.published)

    @invariant()
    def replay_has_the_truth(self) -> None:
        assert self.journal.since(0) == self.published

    @invariant()
    def it_holds_together(self) -> None:
        self.journal.check()
        self.outlet.check()
        assert self.outlet.due is None or self.outlet.due > self.now

    @invariant()
    def all_that_was_not_dropped_arrives_in_the_end(self) -> None:
        counts = self.outlet.counts
        distinct = len(set(self.received)) + self.held_for_the_first_time()
        assert distinct == counts["taken"] - counts["drop"]

    def held_for_the_first_time(self) -> int:
        held = {frame for _, frame in self.outlet._line}
        if self.outlet._overtaken:
            held |= set(self.outlet._overtaken[1])
        return len(held - set(self.received))


TestSpoiled = Spoiled.TestCase
TestSpoiled.settings = LONG
