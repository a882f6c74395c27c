"""The lag of first tokens, measured where a request was alone."""

import pytest

from tests.router.queue.queue_stand import BASE, TOKEN, QueueStand
from warmpath.router.queue.lag import LEAST


def run(stand: QueueStand, tokens: int, lag: float, times: int = LEAST) -> None:
    for _ in range(times):
        stand.enter(tokens)
        [sent] = stand.sent
        stand.first_token(sent, after=BASE + tokens * TOKEN + lag)


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


def test_nothing_is_held_before_the_lag_is_known() -> None:
    stand = QueueStand(pods=1, knows_lag=False)
    stand.enter(200_000)
    assert not stand.enter(200_000).is_waiting


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
