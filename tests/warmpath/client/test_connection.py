"""Channels are closed once, and never under a call, however certificates change."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.examples import examples
from warmpath.client.connection import Connection, Line


class Shown:
    """Credentials that a test changes."""

    def __init__(self) -> None:
        self.of_channel: object = object()

    def look(self, now: float) -> None:
        """Do nothing: the test says when they change."""


class Channel:
    """A channel that carries nothing."""

    def __init__(self, shown: object) -> None:
        self.shown = shown

    def unary_unary(self, *_: object, **__: object) -> None:
        """Return what makes a call, if a call were made."""

    unary_stream = stream_stream = unary_unary


class Channels(RuleBasedStateMachine):
    """One client's calls."""

    def __init__(self) -> None:
        super().__init__()
        self.shown = Shown()
        self.opened: list[Channel] = []
        self.closed: list[Channel] = []
        self.calls: list[Line] = []
        self.is_closed = False
        self.connection = Connection("127.0.0.1:1")
        self.connection._credentials = self.shown  # type: ignore[assignment]
        self.connection._open = self.open  # type: ignore[assignment,method-assign]

    def open(self, shown: object) -> Channel:
        self.opened.append(Channel(shown))
        return self.opened[-1]

    def close(self, channels: list[Channel]) -> None:
        for channel in channels:
            assert self.is_closed or channel not in [line.channel for line in self.calls]
            self.closed.append(channel)

    @precondition(lambda self: not self.is_closed)
    @rule()
    def call(self) -> None:
        line = self.connection._take()
        self.calls.append(line)
        assert line.channel.shown is self.shown.of_channel

    @precondition(lambda self: self.calls)
    @rule(which=st.integers(0, 9))
    def end(self, which: int) -> None:
        line = self.calls.pop(which % len(self.calls))
        self.close(self.connection._give_back(line))
        left = set(self.opened) - set(self.closed)
        newest = set() if self.is_closed else set(self.opened[-1:])
        assert left - newest <= {one.channel for one in self.calls}, "an idle channel stays open"

    @rule()
    def change(self) -> None:
        self.shown.of_channel = object()

    @precondition(lambda self: not self.is_closed)
    @rule()
    def shut(self) -> None:
        self.is_closed = True
        self.close(self.connection._end())

    @invariant()
    def no_channel_is_closed_twice(self) -> None:
        assert len(self.closed) == len(set(self.closed))


Channels.TestCase.settings = settings(max_examples=examples(300), stateful_step_count=30)
TestChannels = Channels.TestCase
