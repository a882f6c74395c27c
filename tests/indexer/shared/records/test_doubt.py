"""How late the moment is that a record shows, and the doubt after losses, each against a model that knows."""

import math
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from tests.examples import examples
from warmpath.indexer.shared.layout.record import Record
from warmpath.indexer.shared.records.registry import Moment, Unconfirmed

EXAMPLES = examples(300)


@dataclass(frozen=True)
class Said:
    """A pod's record, as far as doubt goes."""

    token: int
    audits: int
    sound: bool


class Loss(RuleBasedStateMachine):
    """A writer, what it has written, a node that loses it, and a reader."""

    def __init__(self) -> None:
        super().__init__()
        self.history: list[Said] = []
        self.say(Said(token=1, audits=0, sound=True))
        self.token = 1
        """The writer's own."""
        self.is_lost = False
        """Whether any of what the writer believes to be stored is not."""
        self.found_whole: bool | None = None
        """What the audit under way has found; None while there is none."""
        self.is_written = False
        """Whether a new claim's content is stored, and not published yet."""
        self.happened = self.noticed = 0
        """Disruptions, and those that the reader's connections have noticed."""
        self.known = 0
        self.doubt = Unconfirmed()

    def say(self, said: Said) -> None:
        self.said = said
        self.history.append(said)

    # The writer

    @precondition(lambda self: self.said.sound and self.found_whole is None)
    @rule()
    def audit_begins(self) -> None:
        self.found_whole = not self.is_lost

    @precondition(lambda self: self.found_whole is not None)
    @rule()
    def audit_ends(self) -> None:
        whole, self.found_whole = self.found_whole, None
        if whole and self.said.token == self.token:
            self.say(Said(self.token, self.said.audits + 1, self.said.sound))
        else:
            self.claim()

    @precondition(lambda self: self.said.audits > 1)
    @rule()
    def claim(self) -> None:
        self.found_whole = None
        self.token = max(self.said.token, self.token) + 1
        self.say(Said(self.token, 0, sound=False))
        self.is_written = False

    @precondition(lambda self: not self.said.sound)
    @rule()
    def claim_goes_on(self) -> None:
        if self.said.token != self.token:
            self.claim()
        elif not self.is_written:
            self.is_lost = False
            self.is_written = True
        else:
            self.say(Said(self.token, 0, sound=True))

    # The nodes

    @rule()
    def blocks_are_lost(self) -> None:
        self.is_lost = True
        self.happened += 1

    @rule(back=st.integers(1, 3))
    def the_record_falls_back(self, back: int) -> None:
        self.said = self.history[-back:][0]
        self.blocks_are_lost()

    # The reader

    @rule(lost=st.sampled_from(["", "", "", "before", "after"]), elsewhere=st.booleans())
    def read(self, lost: str, *, elsewhere: bool) -> None:
        """Read as `Registry._take` does; what is read is lost before or after the record is read.

        Mostly another call has noticed by then what the connections have to tell.
        """
        if elsewhere:
            self.noticed = self.happened
        before = self.noticed
        if lost == "before":
            self.blocks_are_lost()
        said, content_is_whole = self.said, not self.is_lost
        if lost == "after":
            self.blocks_are_lost()
            content_is_whole = False
        self.noticed = self.happened
        if self.noticed != self.known:
            self.known = self.noticed
            self.doubt.lost()
        if before == self.noticed:
            self.doubt.read(said.token, said.audits)
        if said.sound and not self.doubt.holds:
            assert content_is_whole

    def teardown(self) -> None:
        """Whatever was lost, two audits after it the reader believes again."""
        self.claim()
        self.claim_goes_on()
        self.claim_goes_on()
        self.read("", elsewhere=True)
        for _ in range(2):
            self.audit_begins()
            self.audit_ends()
        self.read("", elsewhere=True)
        assert not self.doubt.holds


TestLoss = Loss.TestCase
TestLoss.settings = settings(max_examples=EXAMPLES, stateful_step_count=30)


def every_next(state: Loss) -> Iterator[Loss]:
    """Yield what one step makes of a state, for each step that can be taken."""
    auditing = state.found_whole is not None
    steps: list[tuple[bool, Callable[[Loss], None]]] = [
        (not auditing and state.said.sound, Loss.audit_begins),
        (auditing, Loss.audit_ends),
        (state.said.audits > 1, Loss.claim),
        (not state.said.sound, Loss.claim_goes_on),
        (True, Loss.blocks_are_lost),
        (True, lambda state: state.the_record_falls_back(2)),
        (True, lambda state: state.read("", elsewhere=True)),
        (True, lambda state: state.read("before", elsewhere=False)),
        (True, lambda state: state.read("after", elsewhere=True)),
    ]
    for possible, step in steps:
        if possible:
            following = copy(state)
            following.doubt = copy(state.doubt)
            following.history = list(state.history)
            step(following)
            yield following


def told(state: Loss) -> tuple[object, ...]:
    """Return all that matters of a state."""
    doubt = state.doubt
    return (
        *(state.said, state.token, state.is_lost, state.found_whole, state.is_written),
        *(state.happened > state.known, state.noticed > state.known, doubt.holds, doubt._first),
        *state.history[-2:],
    )


def test_no_order_of_twelve_steps_lets_a_lost_write_be_believed() -> None:
    states = {told(start := Loss()): start}
    for _ in range(12):
        states |= {told(one): one for state in states.values() for one in every_next(state)}
    assert any(not state.doubt.holds for state in states.values())


@pytest.mark.parametrize(
    "story",
    [
        pytest.param([(1, 7), (1, 8), True, (1, 9), False], id="after a loss two audits"),
        pytest.param([(1, 7), (2, 0), True, (2, 1), False], id="after a later claim one"),
        pytest.param([(0, 0), (1, 1), False], id="without a record a claim and one"),
        pytest.param([(1, 7), (1, 9), None, True, (1, 9), True], id="after each loss anew"),
    ],
)
def test_doubt_ends_with_the_audits_of(story: list[tuple[int, int] | bool | None]) -> None:
    """A story has what is read of a record, its token and audits; losses; and whether there is doubt."""
    doubt = Unconfirmed()
    for step in story:
        if step is None:
            doubt.lost()
        elif isinstance(step, tuple):
            doubt.read(*step)
        else:
            assert doubt.holds is step


@dataclass(frozen=True)
class Confirmed:
    """What Redis has, and what only the test knows: which moment of the engine the index shows."""

    token: int
    number: int
    behind: float | None
    """How late the confirmation before this one was, at most."""
    shows: float


def record_of(said: Confirmed) -> Record:
    return Record(
        token=said.token, claim=None, applied=0, audits=0, sound=said.number > 0,
        confirmation=said.number, behind=said.behind, reason="", states={}, blocks={},
        building=False, owner="",
    )  # fmt: skip


PAUSE = st.floats(0, 4)
WAY = st.floats(0, 2)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("confirm"), PAUSE, st.floats(0, 4), st.floats(0, 1)),
        st.tuples(st.just("claim"), PAUSE, st.just(0.0), st.just(0.0)),
        st.tuples(st.just("unsound"), PAUSE, st.just(0.0), st.just(0.0)),
        # How long the question is on its way, and the reply.
        st.tuples(st.just("read"), PAUSE, WAY, WAY),
        st.tuples(st.just("lost on its way"), PAUSE, WAY, WAY),
    ),
    max_size=40,
)


@given(STEPS, st.floats(-1000, 1000))
@settings(max_examples=examples(2000))
def test_it_is_never_later_than_what_the_index_shows(
    steps: list[tuple[str, float, float, float]], ahead: float
) -> None:
    """The reader's clock is `ahead` of the writer's, which only the test knows."""
    now = 0.0
    token = number = 0
    held = Confirmed(0, 0, None, -math.inf)
    late = 0.0
    moment = Moment()
    for what, pause, one, two in steps:
        now += pause
        if what == "claim":
            token, number = token + 1, 0
            held = Confirmed(token, 0, None, -math.inf)
        elif what == "unsound":
            held = Confirmed(token, 0, None, -math.inf)
        elif what == "confirm":
            number += 1
            held = Confirmed(token, number, late if held.number else None, now - one)
            # The writer may say more than the truth, and never less.
            late = one + two
        else:
            asked_at = now
            now += one
            said = held
            now += two
            if what == "read":
                assert moment.read(record_of(said), asked_at + ahead)
                if said.number:
                    assert moment.at - ahead <= said.shows + 1e-6


@given(st.lists(st.floats(0.3, 0.7), min_size=4, max_size=60), st.floats(0, 2), st.floats(0, 0.2))
@settings(max_examples=examples(300))
def test_it_is_as_late_as_the_last_poll_but_two_allows(
    pauses: list[float], behind: float, way: float
) -> None:
    moment = Moment()
    now, asked = 0.0, []
    for number, pause in enumerate(pauses):
        now += pause
        asked.append(now)
        moment.read(record_of(Confirmed(1, number + 1, behind, 0.0)), now)
        now += way
    assert moment.at == asked[-3] - behind


def test_a_record_that_goes_back_is_told_once() -> None:
    moment = Moment()
    assert moment.read(record_of(Confirmed(2, 5, 0.0, 0.0)), 1.0)
    assert moment.read(record_of(Confirmed(2, 7, 0.0, 0.0)), 2.0)
    assert moment.at == 1.0
    for earlier in (Confirmed(2, 5, 0.0, 0.0), Confirmed(1, 9, 0.0, 0.0)):
        assert not moment.read(record_of(earlier), 3.0)
        assert moment.at == -math.inf
        assert moment.read(record_of(earlier), 4.0)
