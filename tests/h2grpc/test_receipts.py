"""Which answers a client has not read: each is told of at most once, and none that may have been used."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.examples import examples
from warmpath.h2grpc.receipts import Receipts

MOST = 4


class AnyOrder(RuleBasedStateMachine):
    """Answers, pings, resets and losses in any order, beside a list of what happened."""

    def __init__(self) -> None:
        super().__init__()
        self.receipts = Receipts(MOST)
        self.sent: list[int] = []
        self.pinged: list[int] | None = None
        """The streams that were answered before the ping that is on its way."""
        self.read: set[int] = set()
        self.gone: list[int] = []
        self.lost: set[int] = set()
        """Streams of connections that are lost."""

    @rule()
    def answer(self) -> None:
        stream = 2 * len(self.sent) + 1
        self.sent.append(stream)
        self.receipts.sent(stream, lambda: self.gone.append(stream))

    @rule()
    def ask(self) -> None:
        if self.pinged is None and self.receipts.ask():
            self.pinged = [*self.sent]

    @rule()
    def pong(self) -> None:
        self.receipts.answered()
        self.read |= {*(self.pinged or ())}
        self.pinged = None

    @rule(stream=st.integers(0, 12).map(lambda number: 2 * number + 1))
    def reset(self, stream: int) -> None:
        before = {*self.gone}
        self.receipts.reset(stream)
        assert {*self.gone} - before <= {stream}
        if stream in self.sent[-MOST:]:
            assert stream in self.gone or stream in self.lost

    @rule()
    def lose(self) -> None:
        before = {*self.gone}
        self.receipts.lost()
        told = {*self.gone} - before
        assert not told & self.read, "an answer that was read outlasts its connection"
        if not self.read:
            assert told | before >= {*self.sent[-MOST:]} - self.lost
        self.lost |= {*self.sent}
        self.pinged = None

    @invariant()
    def each_is_told_of_at_most_once(self) -> None:
        assert len(self.gone) == len({*self.gone})
        assert len(self.receipts) <= MOST


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=examples(50), stateful_step_count=30)
