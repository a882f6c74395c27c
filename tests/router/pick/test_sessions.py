"""A session's last pick is known while it is young, and no more of them than may be."""

from collections import OrderedDict

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.examples import examples
from tests.router.consistent import check
from warmpath.router.pick.sessions import Sessions


def test_a_session_that_pauses_too_long_is_forgotten() -> None:
    sessions = Sessions(most=10, seconds=60.0)
    sessions.put("s", "p", 0, 0.0)
    sessions.put("s", "p", 0, 50.0)
    assert sessions.get("s", 109.9) == ("p", 0)
    assert sessions.get("s", 110.0) is None
    assert len(sessions) == 0


def test_what_is_past_its_time_makes_room_unasked() -> None:
    sessions = Sessions(most=10, seconds=60.0)
    sessions.put("s", "p", 0, 0.0)
    sessions.put("t", "p", 0, 60.0)
    assert len(sessions) == 1


def test_requests_without_a_session_have_none_in_common() -> None:
    sessions = Sessions(most=10, seconds=60.0)
    sessions.put("", "p", 0, 0.0)
    assert sessions.get("", 0.0) is None


def test_a_clock_that_is_set_back_keeps_no_session_for_longer() -> None:
    sessions = Sessions(most=10, seconds=60.0)
    sessions.put("s", "p", 0, 1000.0)
    assert sessions.get("s", 0.0) is None


class AnyPicks(RuleBasedStateMachine):
    """Picks and pods that go, beside a plain list of what should be known."""

    def __init__(self) -> None:
        super().__init__()
        self.sessions = Sessions(most=3, seconds=10.0)
        self.expected: OrderedDict[str, tuple[str, int, float]] = OrderedDict()
        self.now = 0.0

    @rule(session=st.sampled_from("abcde"), pod=st.sampled_from("pq"), rank=st.integers(0, 1))
    def put(self, session: str, pod: str, rank: int) -> None:
        self.sessions.put(session, pod, rank, self.now)
        self.expected[session] = pod, rank, self.now
        self.expected.move_to_end(session)
        young = [one for one, (_, _, at) in self.expected.items() if self.now - at < 10.0]
        self.expected = OrderedDict((one, self.expected[one]) for one in young[-3:])

    @rule(pod=st.sampled_from("pq"))
    def forget(self, pod: str) -> None:
        self.sessions.forget(pod)
        self.expected = OrderedDict(
            (session, pick) for session, pick in self.expected.items() if pick[0] != pod
        )

    @rule(seconds=st.floats(0, 6))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(session=st.sampled_from("abcde"))
    def get(self, session: str) -> None:
        pod, rank, at = self.expected.get(session, ("", 0, -99.0))
        known = (pod, rank) if self.now - at < 10.0 else None
        assert self.sessions.get(session, self.now) == known

    @invariant()
    def views_agree(self) -> None:
        check(self.sessions)


AnyPicks.TestCase.settings = settings(max_examples=examples(100), deadline=None)
TestAnyPicks = AnyPicks.TestCase
