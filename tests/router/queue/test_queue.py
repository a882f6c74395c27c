"""The queue: who is held, who goes first, who leaves, and the lag of first tokens, measured where one was alone.

One file: all tests use one stand.
"""

import math
from typing import Any

import pytest

from tests.router.consistent import check
from tests.router.pick.picker_parts import KeyedPrompt
from tests.router.queue.queue_stand import BASE, HOLD, OWN_BASE, TOKEN, QueueStand, Sent
from warmpath.router.pick.eligible import NoPodError
from warmpath.router.pick.weigh import Choice
from warmpath.router.queue import order
from warmpath.router.queue.lag import LEAST, WINDOW
from warmpath.router.queue.queue import Hindrance
from warmpath.router.queue.request import QueueFullError, Waiting

LANES = 8


@pytest.fixture(autouse=True)
def few_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a release consider so few lanes that a crowd of them is checked quickly."""
    monkeypatch.setattr(order, "MOST_LANES", LANES)
    monkeypatch.setattr(order, "TURNS", LANES // 2)


def test_a_request_goes_at_once_where_a_pod_has_room() -> None:
    stand = QueueStand()
    waiting = stand.enter()
    [sent] = stand.sent
    assert sent.waiting is waiting
    assert not waiting.is_waiting
    assert sent.placed.booking is not None
    stand.queue.leave(waiting)
    assert len(stand.queue) == 0
    assert stand.release.next_at == math.inf


def test_a_request_waits_while_every_pod_is_booked_and_goes_with_the_first_token() -> None:
    stand = QueueStand()
    before = stand.fill()
    waiting = stand.enter()
    assert stand.sent == []
    assert waiting.is_waiting
    [sent] = stand.first_token(before[1], after=0.1)
    assert sent.waiting is waiting
    assert sent.placed.went == before[1].placed.went


def test_a_request_waits_though_a_pod_has_room_if_another_one_is_soon_better() -> None:
    stand = QueueStand()
    stand.enter(8_000, named=["pod-0"])
    stand.parts.warm(0, 800)
    # Pod 0 has little work, and more of the prompt than its wait is worth.
    waiting = stand.enter(prompt=KeyedPrompt(range(1, 1_001)))
    assert waiting.is_waiting
    until_room = BASE + 8_000 * TOKEN - HOLD
    assert stand.release.next_at - stand.parts.now == pytest.approx(until_room)
    [sent] = stand.look(after=until_room + 1e-6)
    assert sent.placed.went == ("pod-0", 0)


def next_ones(stand: QueueStand, before: Sent, number: int) -> list[Waiting]:
    """Report one first token after the other; return whom each of them lets go."""
    gone = []
    for _ in range(number):
        [before] = stand.first_token(before, after=0.3)
        gone.append(before.waiting)
    return gone


def test_the_least_arrival_plus_ten_prefills_goes_first() -> None:
    stand = QueueStand(pods=1)
    [before] = stand.fill()
    long = stand.enter(20_000)
    stand.look(after=1.0)
    short = stand.enter(8_000)
    assert next_ones(stand, before, 2) == [short, long]


def test_who_waits_for_long_is_no_longer_passed_over() -> None:
    stand = QueueStand(pods=1)
    [before] = stand.fill(400_000)
    long = stand.enter(20_000)
    stand.parts.now += 10 * (20_000 - 5_000) * TOKEN + 0.5
    short = stand.enter(5_000)
    assert next_ones(stand, before, 1) == [long]
    assert short.is_waiting


def test_nobody_is_passed_over_for_longer_than_the_bound() -> None:
    stand = QueueStand(pods=1, passed_seconds=2.0)
    [before] = stand.fill(200_000)
    long = stand.enter(100_000)
    stand.parts.now += 2.1
    stand.enter(500)
    assert next_ones(stand, before, 1) == [long]


def test_who_is_passed_over_counts_as_waiting_for_those_behind() -> None:
    stand = QueueStand(pods=2)
    before = stand.fill(30_000)
    at_1 = next(one for one in before if one.placed.went[0] == "pod-1")
    first = stand.enter(2_000, named=["pod-0"])
    # The pod that holds it is booked for a while, and the other one is about to be free.
    second = stand.enter(2_000)
    sent = stand.first_token(at_1, after=0.1)
    assert [one.waiting for one in sent] == [second]
    assert first.is_waiting


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
def test_lanes_in_any_number_never_hide_a_higher_class(turns: int) -> None:
    stand = QueueStand(pods=1)
    [before] = stand.fill()
    for number in range(4 * LANES):
        stand.enter(20_000, lora=f"made-up-{number}", tenant="evil")
    for _ in range(turns):
        stand.look(after=0.01)
    lower = stand.enter(20_000, lora="tuned", tenant="good", priority=1)
    highest = stand.enter(20_000, tenant="good", priority=2)
    assert next_ones(stand, before, 2) == [highest, lower]


def test_tenants_take_turns_whatever_the_number_of_their_lanes() -> None:
    stand = QueueStand(pods=1)
    [before] = stand.fill()
    for number in range(2 * LANES):
        stand.enter(20_000, lora=f"made-up-{number}", tenant="evil")
    for _ in range(4):
        stand.enter(20_000, tenant="good")
    gone = [one.tenant for one in next_ones(stand, before, 8)]
    assert gone.count("good") == 4


def test_lanes_without_room_keep_nobody_from_other_pods_whatever_their_number_and_class() -> None:
    stand = QueueStand(pods=2)
    before = stand.fill()
    for number in range(2 * LANES):
        stand.enter(20_000, lora=f"a-{number}", named=["pod-0"], priority=2)
    free = stand.enter(20_000, named=["pod-1"])
    [other] = [one for one in before if one.placed.went[0] == "pod-1"]
    stand.first_token(other)
    # The round that was begun before it came, and one more.
    for _ in range(8):
        stand.look(after=0.01)
    assert not free.is_waiting


def test_a_full_queue_refuses_the_latest_of_a_lower_class_for_a_higher_one() -> None:
    stand = QueueStand(pods=1, max_bytes=100)
    stand.fill()
    kept = stand.enter(size=50)
    lost = stand.enter(size=50)
    urgent = stand.enter(size=40, priority=1)
    [(refused, error)] = stand.release.refused.items()
    assert refused is lost
    assert isinstance(error, QueueFullError)
    assert stand.queue.refused == 1
    assert [one.is_waiting for one in (kept, urgent)] == [True, True]
    assert stand.queue.crowd.bytes == 90


def test_waiting_requests_are_refused_when_their_last_pod_goes() -> None:
    stand = QueueStand(pods=2)
    stand.fill()
    waiting = stand.enter()
    stand.pods = []
    stand.look()
    [(refused, error)] = stand.release.refused.items()
    assert refused is waiting
    assert isinstance(error, NoPodError)
    assert len(stand.queue) == 0


def test_a_pod_that_comes_takes_what_waits() -> None:
    stand = QueueStand(pods=1)
    stand.fill()
    waiting = stand.enter()
    stand.pods = [*stand.pods, stand.parts.pod("new")]
    [sent] = stand.look()
    assert sent.waiting is waiting
    assert sent.placed.went == ("new", 0)


@pytest.mark.parametrize("how", ["silent", "late", "drains"])
def test_nothing_is_held(how: str) -> None:
    stand = QueueStand(pods=1, most_looks=2)
    stand.fill(200_000)
    held = [stand.enter() for _ in range(3)]
    assert all(one.is_waiting for one in held)
    if how == "silent":
        stand.hears = False
    elif how == "drains":
        stand.queue.drain()
    else:
        late(stand, 1.0)
    assert [one.waiting for one in stand.look()] == held[:2]
    # A release sends only so many; the next one follows at once.
    assert stand.release.next_at <= stand.parts.now
    assert [one.waiting for one in stand.look()] == held[2:]


def late(stand: QueueStand, seconds: float) -> None:
    """Let first tokens on a rank without another request come late."""
    others = QueueStand(pods=1)
    for _ in range(WINDOW):
        [sent] = run(others, 500, seconds, times=1)
        stand.lag.picked(sent.placed, sent.choice)
        stand.lag.first_token(sent.placed, others.parts.now)


def test_more_is_booked_where_first_tokens_are_reported_late() -> None:
    stand = QueueStand(pods=1)
    assert stand.queue.hold_seconds == pytest.approx(HOLD)
    late(stand, 0.2)
    assert stand.queue.hold_seconds == pytest.approx(HOLD + 0.4, abs=0.05)


def test_the_reason_for_which_nothing_is_held_is_known() -> None:
    assert QueueStand(knows_lag=False).queue.hindrance is Hindrance.FEW_FIRST_TOKENS
    assert QueueStand(hears=False).queue.hindrance is Hindrance.UNREPORTED_FIRST_TOKENS
    stand = QueueStand()
    assert stand.queue.hindrance is None
    late(stand, 1.0)
    assert stand.queue.hindrance is Hindrance.LATE_FIRST_TOKENS
    stand.queue.drain()
    assert stand.queue.hindrance is Hindrance.ENDING


def test_a_standing_names_the_pod_and_the_time_and_changes_nothing() -> None:
    stand = QueueStand(pods=1)
    stand.fill()
    wait = stand.parts.wait(0)
    standing = stand.queue.standing(stand.entering(1_000), stand.parts.now)
    assert standing.behind == 0
    assert standing.seconds == pytest.approx(wait - HOLD)
    for _ in range(3):
        stand.enter(2_000)
    standing = stand.queue.standing(stand.entering(8_000), stand.parts.now)
    assert standing.behind == 3
    assert standing.seconds == pytest.approx(wait + 3 * (OWN_BASE + 2_000 * TOKEN) - HOLD, rel=0.01)
    assert len(stand.queue) == 3
    check(stand.queue)


def test_a_weighing_holds_while_only_time_passes() -> None:
    stand = QueueStand()
    stand.enter(8_000, named=["pod-0"])
    [before] = stand.sent
    stand.parts.warm(0, 800)
    waiting = stand.enter(prompt=KeyedPrompt(range(1, 1_001)))
    weighed = []
    weigh = stand.parts.picker.weigh

    def counted(*args: Any) -> Choice:
        weighed.append(args)
        return weigh(*args)

    stand.parts.picker.weigh = counted  # type: ignore[method-assign]
    # Pod 1 has room, so that the queue looks.
    assert stand.look(after=0.05) == []
    assert weighed == []
    [sent] = stand.first_token(before)
    assert sent.waiting is waiting
    assert len(weighed) == 1


def test_a_first_token_that_is_never_reported_costs_its_rank_no_room() -> None:
    stand = QueueStand(pods=1)
    stand.fill(30_000)
    waiting = stand.enter()
    assert stand.look(after=1.0) == []
    # Its prefill should have taken 2.1 s.
    [sent] = stand.look(after=1.0)
    assert sent.waiting is waiting


def test_to_ask_where_requests_stand_moves_no_turn_of_the_lanes() -> None:
    """More lanes than one release considers: each first token gives room to one of them."""

    def numbers_sent(*, asks: bool) -> list[int]:
        stand = QueueStand(LANES + 6)
        before = stand.fill()
        for one in before * 2:
            # Two for each pod, so that its lane stays when one of them goes.
            stand.enter(named=[one.placed.went[0]])
        sent = []
        for one in reversed(before):
            if asks:
                stand.queue.standings(stand.parts.now)
                stand.queue.standing(stand.entering(), stand.parts.now)
            sent.append(len(stand.first_token(one, after=0.01)))
        return sent

    sent = numbers_sent(asks=False)
    # Some lanes have to wait for their turn.
    assert 0 in sent
    assert numbers_sent(asks=True) == sent


def run(stand: QueueStand, tokens: int, lag: float, times: int = LEAST) -> list[Sent]:
    """Serve requests one after the other, whose first tokens are reported late."""
    found = []
    for _ in range(times):
        stand.enter(tokens)
        [sent] = stand.sent
        stand.first_token(sent, after=BASE + tokens * TOKEN + lag)
        found.append(sent)
    return found


def test_the_lag_is_the_median_time_beyond_the_predicted_prefill() -> None:
    stand = QueueStand(pods=1, knows_lag=False)
    run(stand, 500, 0.1)
    assert stand.lag.seconds == pytest.approx(0.1, abs=0.02)
    run(stand, 500, 0.4, times=64)
    assert stand.lag.seconds == pytest.approx(0.4, abs=0.05)


@pytest.mark.parametrize(
    "samples",
    [
        pytest.param([(500, 5.0, LEAST - 1)], id="a few are no evidence"),
        pytest.param([(5_000, -0.2, LEAST)], id="early ones are no negative lag"),
        pytest.param([(500, 0.0, LEAST), (50_000, 2.0, LEAST)], id="the shortest prefills count"),
    ],
)
def test_there_is_no_lag(samples: list[tuple[int, float, int]]) -> None:
    stand = QueueStand(pods=1, knows_lag=False)
    for tokens, lag, times in samples:
        run(stand, tokens, lag, times)
    assert 0.0 <= stand.lag.seconds < (0.02 if len(samples) > 1 else 1e-12)


def test_who_waited_behind_another_request_is_no_sample() -> None:
    stand = QueueStand(pods=1, hears=False, knows_lag=False)
    for _ in range(LEAST):
        stand.enter(500)
        first = stand.sent[0]
        stand.enter(500)
        second = stand.sent[0]
        stand.first_token(first, after=BASE + 500 * TOKEN)
        stand.first_token(second, after=7.0)
    assert stand.lag.seconds < 0.001


def test_who_went_elsewhere_or_ended_before_its_first_token_is_no_sample() -> None:
    stand = QueueStand(knows_lag=False)
    for number in range(2 * LEAST):
        stand.enter(500)
        [sent] = stand.sent
        name = sent.placed.booking_id
        if number % 2:
            elsewhere = "pod-1" if sent.placed.went[0] == "pod-0" else "pod-0"
            assert stand.parts.picker.started(name, stand.parts.now, (elsewhere, 0))
            stand.first_token(sent, after=3.0)
        stand.parts.now += 1.0
        assert stand.parts.picker.ended(name, "finished", stand.parts.now)
    assert stand.lag.seconds == 0.0
