"""Ranks that answer nothing are found, avoided, and tried again. One file: all tests use one fleet."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.router.consistent import check
from tests.router.load.reports import new_bookings, started_on
from warmpath.router.load.bookings import Booking, Work
from warmpath.router.load.engine_metrics import Observed
from warmpath.router.load.stuck import (
    ENOUGH,
    FIRST_SECONDS,
    LEAST_SECONDS,
    OPEN_SECONDS,
    RETRY_SECONDS,
    TIMES,
    UNTRIED_SECONDS,
    Ending,
)
from warmpath.router.load.table import LoadTable

PREFILL = 0.5
PATIENCE = TIMES * PREFILL + LEAST_SECONDS
FIRST_PATIENCE = TIMES * PREFILL + FIRST_SECONDS


class Fleet:
    """Bookings on ranks, by a gateway that shows whole exchanges or one that only reports."""

    def __init__(self, *, is_watched: bool = True, stream: bool = True, answers: int = 20) -> None:
        self.batches: dict[str, int] = {}
        """The last batch of each pod's events."""
        self.bookings = new_bookings(
            expects_first_tokens=False, batch=lambda pod, _: self.batches.get(pod)
        )
        self.table = LoadTable(self.bookings, 5.0)
        self.is_watched, self.stream = is_watched, stream
        for at in range(answers):
            self.answer(self.send("well", float(at)), at + PREFILL)
        self.now = float(answers)

    def send(self, pod: str, now: float, prefill: float = PREFILL, rank: int = 0) -> Booking:
        self.now = now
        work = Work("m", pod, rank, 100, 0, prefill)
        return self.bookings.book(work, now, is_watched=self.is_watched)

    def answer(self, booking: Booking, now: float) -> None:
        self.now = now
        if self.stream:
            self.bookings.first_token(booking.id, now)
        self.bookings.end(booking.id, now)

    def avoided(self, now: float) -> set[str]:
        check(self.bookings)
        return {pod for pod, _ in self.table.avoided(now)}


@pytest.fixture(params=[True, False], ids=["watched", "reported"])
def fleet(request: pytest.FixtureRequest) -> Fleet:
    return Fleet(is_watched=request.param)


def test_a_rank_that_gives_no_first_token_for_several_times_its_wait_is_avoided(
    fleet: Fleet,
) -> None:
    fleet.answer(fleet.send("hung", 90.0), 90.0 + PREFILL)
    one = fleet.send("hung", 100.0)
    assert fleet.avoided(100.0 + PATIENCE - 0.1) == set()
    assert fleet.avoided(100.0 + PATIENCE) == {"hung"}
    assert fleet.table.stuck_seconds("hung", 0, 110.0) == 10.0
    fleet.answer(one, 120.0)
    assert fleet.avoided(120.0) == set()
    assert fleet.table.stuck_seconds("hung", 0, 120.0) == 0.0


def test_silence_of_an_engine_is_not_taken_for_silence_of_gateways(fleet: Fleet) -> None:
    for at in range(100, 130):
        fleet.send("hung", float(at))
    for at in range(130, 500):
        fleet.answer(fleet.send("well", float(at)), at + PREFILL)
    assert fleet.bookings.hears_first_tokens
    assert fleet.bookings.stuck.seconds(("hung", 0), 500.0) == 400.0


@pytest.mark.parametrize("lost", [1000, 100])
def test_callers_that_never_report_hide_no_rank_that_hangs(lost: int) -> None:
    """Nobody reports of `elsewhere`; of each other rank the report of every `lost`-th request is lost."""
    fleet = Fleet(is_watched=False)
    for number in range(400):
        fleet.batches["elsewhere"] = number
        fleet.send("elsewhere", 100.0 + number)
        for pod in ("well", "hung"):
            one = fleet.send(pod, 100.0 + number)
            if number % lost != lost // 2:
                fleet.answer(one, 100.0 + number + PREFILL)
    assert not fleet.bookings.hears_first_tokens
    assert fleet.avoided(500.0) <= {"elsewhere"}
    for number in range(60):
        fleet.send("hung", 500.0 + number / 10)
        for _ in range(2):
            fleet.answer(fleet.send("well", 500.0 + number / 10), 500.0 + number / 10 + 0.01)
    assert fleet.avoided(506.0 + PATIENCE) - {"elsewhere"} == {"hung"}
    for number in range(520, 900):
        fleet.answer(fleet.send("well", float(number)), number + PREFILL)
        assert fleet.bookings.stuck.seconds(("hung", 0), float(number)) > 0


def test_an_engine_whose_cache_events_go_on_is_not_stuck_though_a_caller_reports_nothing(
    fleet: Fleet,
) -> None:
    fleet.send("silent", 100.0)
    for at in range(100, 200):
        fleet.batches["silent"] = at
        assert fleet.avoided(float(at)) == set()
    fleet.avoided(199.0 + FIRST_PATIENCE)
    # Of a caller that only reports, the report that does not come counts as lost.
    assert fleet.avoided(199.0 + 2 * FIRST_PATIENCE) == ({"silent"} if fleet.is_watched else set())


def test_an_engine_with_a_long_queue_that_goes_on_is_not_stuck() -> None:
    fleet = Fleet()
    queue = [fleet.send("busy", 100.0) for _ in range(100)]
    for at, one in enumerate(queue, 101):
        # Ten times as slow as predicted.
        fleet.answer(one, 100.0 + (at - 100) * 10 * PREFILL)
        assert fleet.avoided(fleet.now) == set()


def test_a_long_prefill_is_not_stuck_before_several_times_its_prediction() -> None:
    fleet = Fleet()
    fleet.send("busy", 100.0, prefill=60.0)
    assert fleet.avoided(100.0 + TIMES * 60.0) == set()
    assert fleet.avoided(100.0 + TIMES * 60.0 + FIRST_SECONDS) == {"busy"}


def test_a_rank_may_take_longer_for_its_first_answer_and_after_each_start_of_its_engine() -> None:
    fleet = Fleet()
    for at in (100.0, 200.0):
        one = fleet.send("new", at)
        assert fleet.avoided(at + FIRST_PATIENCE - 0.1) == set()
        assert fleet.avoided(at + FIRST_PATIENCE) == {"new"}
        fleet.answer(one, at + 60.0)
        fleet.bookings.engine_ended("new", 0)


def test_gateways_that_report_nothing_make_no_rank_stuck() -> None:
    fleet = Fleet(is_watched=False, answers=0)
    for at in range(1000):
        fleet.send("a", float(at))
        assert fleet.avoided(float(at)) == set()


def test_gateways_that_report_ends_only_make_no_rank_stuck() -> None:
    fleet = Fleet(is_watched=False, stream=False)
    fleet.send("a", 100.0)
    assert fleet.avoided(500.0) == set()


@pytest.mark.parametrize("seconds", [1.0, 30.0])
def test_answers_that_do_not_stream_may_take_as_long_as_they_usually_do(seconds: float) -> None:
    fleet = Fleet(stream=False, answers=0)
    for at in range(100, 400, 10):
        fleet.answer(fleet.send("well", float(at)), at + seconds)
        assert fleet.avoided(at + seconds) == set()
    fleet.send("hung", 1000.0)
    assert fleet.avoided(1000.0 + seconds) == set()
    assert fleet.avoided(1000.0 + FIRST_PATIENCE + 1.6 * seconds) == {"hung"}


def test_a_report_that_is_lost_makes_no_rank_stuck_that_answered_a_later_request() -> None:
    fleet = Fleet(is_watched=False)
    fleet.send("a", 100.0)
    fleet.answer(fleet.send("a", 101.0), 101.0 + PREFILL)
    assert fleet.avoided(130.0) == set()
    fleet.send("a", 130.0)
    assert fleet.avoided(130.0 + LEAST_SECONDS) == set()
    assert fleet.avoided(140.0) == {"a"}, "this one came after its last answer"


def test_little_is_known_of_answers_before_some_have_come() -> None:
    fleet = Fleet(answers=ENOUGH - 1)
    fleet.send("a", 100.0)
    assert fleet.avoided(150.0) == set()
    fleet.answer(fleet.send("well", 150.0), 150.0 + PREFILL)
    assert fleet.avoided(150.0 + LEAST_SECONDS + 1.0) == {"a"}


def test_clients_that_lose_patience_first_hide_no_stuck_rank_which_is_tried_again() -> None:
    fleet = Fleet()
    for at in range(100, 108, 2):
        fleet.bookings.end(fleet.send("hung", float(at)).id, at + 5.0, "failed")
    assert fleet.avoided(111.0) == {"hung"}
    assert fleet.avoided(111.0 + RETRY_SECONDS - 0.1) == {"hung"}
    assert fleet.avoided(111.0 + RETRY_SECONDS) == set(), "one more request may try"
    one = fleet.send("hung", 121.5)
    assert fleet.avoided(121.5) == {"hung"}
    fleet.answer(one, 122.0)
    assert fleet.avoided(122.0) == set()


@pytest.mark.parametrize(
    ("is_watched", "patience"), [(True, 0.05), (True, 0.5), (True, 1.0), (False, 0.5), (False, 1.0)]
)
@pytest.mark.parametrize("refusals", [False, True])
def test_no_client_is_too_impatient_for_a_hung_rank_to_be_found(
    is_watched: bool, patience: float, refusals: bool
) -> None:
    fleet = Fleet(is_watched=is_watched)
    at, waited = 100.0, 0.0
    while not fleet.avoided(at):
        assert waited <= FIRST_PATIENCE + 2 * patience
        if refusals:
            # Engines refuse what they cannot read before their loop, which hangs, would see it.
            fleet.bookings.end(fleet.send("hung", at).id, at + 0.01, "refused")
        fleet.bookings.end(fleet.send("hung", at + 0.01).id, at + 0.01 + patience, "failed")
        at, waited = at + 0.01 + patience + 0.3, waited + patience
    one = fleet.send("hung", at)
    fleet.answer(one, at + PREFILL)
    assert fleet.avoided(fleet.now) == set()


def test_a_client_that_leaves_early_makes_no_rank_stuck_where_nobody_waits(fleet: Fleet) -> None:
    fleet.bookings.end(fleet.send("idle", 100.0).id, 100.5, "failed")
    assert fleet.avoided(500.0) == set()
    one = fleet.send("idle", 500.0, prefill=60.0)
    assert fleet.avoided(500.0 + TIMES * 60.0) == set()
    assert fleet.avoided(500.0 + TIMES * 60.0 + FIRST_SECONDS) == {"idle"}
    fleet.answer(one, 800.0)
    assert fleet.avoided(800.0) == set()


def test_refusals_release_an_engine_and_requests_that_never_went_there_do_too(fleet: Fleet) -> None:
    for at in range(100, 200):
        fleet.bookings.end(fleet.send("a", float(at)).id, at + 0.9, "refused")
        fleet.bookings.end(fleet.send("b", float(at)).id, at + 0.9, "unsent")
        started_on(fleet.bookings, fleet.send("c", float(at)).id, at + 0.9, "well")
        assert fleet.avoided(at + 0.9) == set()
        for one in [*fleet.bookings.ranks["well", 0].in_flight]:
            fleet.bookings.end(one, at + 0.95)


def test_a_rank_that_no_request_tries_again_is_not_named_for_ever() -> None:
    fleet = Fleet()
    one = fleet.send("hung", 100.0)
    assert fleet.table.stuck_seconds("hung", 0, 500.0) == 400.0, "a request waits"
    fleet.bookings.end(one.id, 500.0, "failed")
    assert fleet.table.stuck_seconds("hung", 0, 499.0 + UNTRIED_SECONDS) > 0
    assert fleet.table.stuck_seconds("hung", 0, 500.0 + UNTRIED_SECONDS) == 0
    check(fleet.bookings)


def test_a_rank_whose_requests_stay_open_is_tried_now_and_then() -> None:
    fleet = Fleet()
    fleet.send("hung", 100.0)
    tries = 0
    for at in range(110, 410):
        if not fleet.avoided(float(at)):
            fleet.send("hung", float(at))
            tries += 1
    assert tries == 300 // OPEN_SECONDS - 1


@pytest.mark.parametrize(("is_watched", "failure"), [(True, "refused"), (False, "failed")])
def test_requests_that_are_refused_at_once_do_not_make_a_rank_stuck(
    is_watched: bool, failure: Ending
) -> None:
    fleet = Fleet(is_watched=is_watched)
    for at in range(100, 200):
        fleet.bookings.end(fleet.send("a", float(at)).id, at + 0.01, failure)
        assert fleet.avoided(at + 0.5) == set()


def test_an_engine_that_began_anew_owes_nothing() -> None:
    fleet = Fleet()
    fleet.send("hung", 100.0)
    assert fleet.avoided(110.0) == {"hung"}
    fleet.bookings.engine_ended("hung", 0)
    assert fleet.avoided(110.0) == set()
    assert fleet.avoided(500.0) == set()


def test_one_of_several_ranks_may_be_stuck() -> None:
    fleet = Fleet()
    fleet.send("a", 100.0, rank=1)
    fleet.answer(fleet.send("a", 106.0, rank=0), 107.0)
    assert fleet.table.avoided(108.0) == {("a", 1)}


def test_a_pod_that_decodes_owes_the_first_token_too() -> None:
    fleet = Fleet()
    prefill = fleet.send("prefill", 100.0)
    work = Work("m", "decode", 0, 100, 100, 0.0)
    decode = fleet.bookings.book(work, 100.0, behind=prefill, is_watched=True)
    assert fleet.avoided(100.0 + FIRST_PATIENCE) == {"prefill", "decode"}
    fleet.bookings.first_token(decode.id, 120.0)
    fleet.answer(prefill, 120.0)
    assert fleet.avoided(120.0) == set()


def test_gauges_end_no_request_whose_exchange_is_open_or_that_came_after_the_last_answer() -> None:
    fleet = Fleet()
    one = fleet.send("hung", 100.0)
    fleet.bookings.first_token(one.id, 101.0)
    fleet.table.observe("hung", 0, Observed(0, 0, 0.0, 110.0))
    assert fleet.table.load("hung", 0, 110.0).in_flight == 1
    fleet = Fleet(is_watched=False)
    for at in range(100, 105):
        fleet.send("hung", float(at))
    fleet.table.observe("hung", 0, Observed(1, 0, 0.0, 110.0))
    assert fleet.table.load("hung", 0, 110.0).in_flight == 5
    fleet.bookings.first_token(fleet.send("hung", 111.0).id, 112.0)
    fleet.table.observe("hung", 0, Observed(1, 0, 0.0, 114.0))
    assert fleet.table.load("hung", 0, 114.0).in_flight == 1, "now reports of the others are lost"


@pytest.mark.parametrize("moves", [False, True])
def test_gauges_that_stand_still_while_requests_come_count_no_more(moves: bool) -> None:
    fleet = Fleet()
    for at in range(100, 120, 2):
        fleet.send("hung", at + 0.5)
        fleet.table.observe("hung", 0, Observed(90 + moves * at, 0, 0.5, float(at)))
    parts = fleet.table.explain("hung", 0, 119.0)
    assert any(part.is_observed for part in parts) is moves
    load = fleet.table.load("hung", 0, 119.0)
    assert load.in_flight == (209 if moves else 10)
    assert (load.kv_usage > 0) is moves
    fleet.table.observe("hung", 0, Observed(3, 0, 0.5, 121.0))
    assert fleet.table.load("hung", 0, 121.0).kv_usage == 0.5, "they move again"


def test_gauges_of_an_engine_that_answers_may_stand_still() -> None:
    fleet = Fleet()
    for at in range(100, 120):
        one = fleet.send("steady", float(at))
        fleet.table.observe("steady", 0, Observed(1, 0, 0.5, at + 0.9))
        assert fleet.table.load("steady", 0, at + 0.9).kv_usage == 0.5
        fleet.answer(one, at + 0.95)


@given(
    st.lists(st.tuples(st.floats(0, 50), st.floats(0, 20), st.floats(0, 4)), min_size=1),
    st.booleans(),
)
def test_every_rank_that_stops_answering_is_found(
    requests: list[tuple[float, float, float]], is_watched: bool
) -> None:
    fleet = Fleet(is_watched=is_watched)
    for at, prefill, _ in sorted(requests):
        fleet.send("hung", 100.0 + at, prefill)
    longest = TIMES * sum(prefill for _, prefill, _ in requests)
    assert fleet.bookings.stuck.seconds(("hung", 0), 0.0) == 0.0
    fleet.bookings.expire(150.0 + min(longest, 400.0) + FIRST_SECONDS + 1.0)
    assert ("hung", 0) in fleet.bookings.stuck or longest > 400.0
