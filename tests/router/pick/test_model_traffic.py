"""A model's traffic of late: how busy and full its ranks are, and how many of its prefills are long."""

from hypothesis import given
from hypothesis import strategies as st

from tests.scorer.ranked import columns_of
from warmpath.router.pick.traffic import (
    FULL,
    LEAST_PREFILLS,
    LONG,
    PREFILLS,
    SECONDS,
    Shares,
    Traffic,
    shares_of,
)
from warmpath.scorer.candidate import Load


def after(*prefills: float) -> Traffic:
    traffic = Traffic()
    for number, prefill in enumerate(prefills):
        traffic.see(Shares(0.5, 0.0), prefill, float(number))
    return traffic


@given(st.lists(st.floats(0.0, 100.0), min_size=LEAST_PREFILLS, max_size=LEAST_PREFILLS + 50))
def test_prefills_are_long_by_the_mean_of_the_latest(prefills: list[float]) -> None:
    whole = [round(one * 1e9) for one in prefills]
    mean = sum(whole) / len(whole)
    share = sum(one > LONG * mean for one in whole) / len(whole)
    assert abs(after(*prefills).long_share - share) < 1e-9


def test_all_may_be_long_until_enough_are_known() -> None:
    assert Traffic().long_share == 1
    assert after(*[1.0] * (LEAST_PREFILLS - 1)).long_share == 1
    assert after(*[1.0] * LEAST_PREFILLS).long_share == 0


def test_prefills_of_long_ago_are_forgotten() -> None:
    earlier, latest = [1.0, 50.0] * PREFILLS, [1.0] * PREFILLS
    assert after(*earlier, *latest).long_share == 0


def test_averages_follow_the_shares_within_half_a_minute_or_so() -> None:
    traffic = Traffic()
    assert traffic.average(Shares(0.25, 0.5), 0.0) == (0.25, 0.5), (
        "the first one is all that is known"
    )
    for second in range(60):
        share = 1.0 if second else 0.0
        traffic.see(Shares(share, 1 - share), 1.0, float(second))
    busy, full = traffic.average(Shares(1.0, 0.0), 60.0)
    assert 0.9 < busy < 1.0
    assert 0.0 < full < 0.1
    assert traffic.average(Shares(0.0, 1.0), 160.0) == (0.0, 1.0)


SHARES = st.builds(Shares, busy=st.floats(0, 1), full=st.floats(0, 1))


@given(st.lists(st.tuples(st.floats(0, 2 * SECONDS), SHARES), min_size=1, max_size=20))
def test_an_average_lies_between_the_shares_that_were_seen(
    steps: list[tuple[float, Shares]],
) -> None:
    traffic, now = Traffic(), 0.0
    for seconds, shares in steps:
        now += seconds
        traffic.see(shares, 1.0, now)
    found = traffic.average(steps[-1][1], now)
    for average, seen in zip(
        found, zip(*(shares for _, shares in steps), strict=True), strict=True
    ):
        assert min(seen) - 1e-9 <= average <= max(seen) + 1e-9


def test_a_rank_is_busy_with_a_prefill_to_do_and_full_without_memory_left() -> None:
    loads = [
        Load(waiting=1, in_flight=1),
        Load(in_flight=9, kv_usage=FULL),
        Load(waiting=2, in_flight=2, kv_usage=1.0),
        Load(kv_usage=FULL - 0.01),
        Load(),
    ]
    assert shares_of(columns_of(loads)) == (0.4, 0.4)
