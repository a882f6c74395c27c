"""What waits to be followed: in order, whole from some message on, and within its bytes."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.examples import examples
from tests.indexer.consistent import check
from warmpath.indexer.follow.backlog import Backlog

BOUND = 100


class Waiting(RuleBasedStateMachine):
    """A backlog beside a list of what was put and neither taken nor dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.backlog = Backlog(BOUND)
        self.waiting: list[tuple[int, list[list[bytes]]]] = []

    @rule(
        messages=st.lists(st.lists(st.binary(max_size=4), max_size=3), min_size=1, max_size=4),
        size=st.integers(1, BOUND + 10),
    )
    def put(self, messages: list[list[bytes]], size: int) -> None:
        has_room = sum(each for each, _ in self.waiting) + size <= BOUND
        let_go = 0 if has_room else sum(len(one) for _, one in self.waiting)
        assert self.backlog.put(messages, size) == let_go
        self.waiting = [*(self.waiting if has_room else []), (size, messages)]

    @precondition(lambda self: self.waiting)
    @rule()
    def take(self) -> None:
        _, messages = self.waiting.pop(0)
        assert self.backlog.take() == messages

    @invariant()
    def adds_up(self) -> None:
        check(self.backlog)
        assert bool(self.backlog) == bool(self.waiting)


TestWaiting = Waiting.TestCase
TestWaiting.settings = settings(max_examples=examples(200), stateful_step_count=30)


def test_what_has_no_end_is_known_by_its_bytes_since_messages_were_let_go() -> None:
    backlog = Backlog(BOUND)
    backlog.put([[b""]], BOUND)
    assert not backlog.is_endless(0), "all of it has room"
    backlog.put([[b""]], 60)
    assert not backlog.is_endless(0)
    backlog.put([[b""]], 41)
    assert backlog.is_endless(0)
    assert not backlog.is_endless(1)
    backlog.emptied()
    backlog.put([[b""]], BOUND - 41)
    assert not backlog.is_endless(0)


def test_what_is_added_and_not_to_be_let_go_is_full_from_its_bytes_on_but_never_of_one() -> None:
    backlog = Backlog(BOUND)
    backlog.add([[b"1"]], 2 * BOUND)
    assert not backlog.is_full
    backlog.add([[b"2"]], 1)
    assert backlog.is_full
    assert [backlog.take(), backlog.take()] == [[[b"1"]], [[b"2"]]]
