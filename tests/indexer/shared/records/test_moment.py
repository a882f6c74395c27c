"""The moment that a record shows, against a reference that knows when everything happened."""

import math
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from warmpath.indexer.shared.layout.record import Record
from warmpath.indexer.shared.records.registry import Moment


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
