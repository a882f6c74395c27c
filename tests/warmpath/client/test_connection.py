"""Channels are closed once, and never under a call, however certificates change."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.examples import examples
from warmpath.client.connection import ClientConnection, Used


class Shown:
    """Credentials that a test changes."""

    def __init__(self) -> None:
        self.of_channel: object = object()

    def look(self, now: float) -> None:
        """Do nothing: the test says when they change."""


class Channels(RuleBasedStateMachine):
    """One client's calls."""

    def __init__(self) -> None:
        super().__init__()
        self.shown = Shown()
        self.opened: list[object] = []
        self.closed: list[int] = []
        self.calls: list[Used[int]] = []
        self.is_closed = False
        self.connection = ClientConnection(self.shown, self.open)  # type: ignore[arg-type]

    def open(self, shown: object) -> int:
        self.opened.append(shown)
        return len(self.opened) - 1

    def close(self, lines: list[int]) -> None:
        for line in lines:
            assert self.is_closed or line not in [used.line for used in self.calls]
            self.closed.append(line)

    @precondition(lambda self: not self.is_closed)
    @rule()
    def call(self) -> None:
        used = self.connection.take(0.0)
        self.calls.append(used)
        assert self.opened[used.line] is self.shown.of_channel

    @precondition(lambda self: self.calls)
    @rule(which=st.integers(0, 9))
    def end(self, which: int) -> None:
        used = self.calls.pop(which % len(self.calls))
        self.close(self.connection.give_back(used))
        left = set(range(len(self.opened))) - set(self.closed)
        newest = set() if self.is_closed else {len(self.opened) - 1}
        assert left - newest <= {one.line for one in self.calls}, "an idle channel stays open"

    @rule()
    def change(self) -> None:
        self.shown.of_channel = object()

    @precondition(lambda self: not self.is_closed)
    @rule()
    def shut(self) -> None:
        self.is_closed = True
        self.close(self.connection.close())

    @invariant()
    def no_channel_is_closed_twice(self) -> None:
        assert len(self.closed) == len(set(self.closed))


Channels.TestCase.settings = settings(max_examples=examples(300), stateful_step_count=30)
TestChannels = Channels.TestCase
