"""A model's traffic of late: how busy its ranks are, and how many of its prefills are long."""

from hypothesis import given
from hypothesis import strategies as st

from router.pick.traffic import LEAST_PREFILLS, LONG, PREFILLS, Traffic


def after(*prefills: float) -> Traffic:
    traffic = Traffic()
    for number, prefill in enumerate(prefills):
        traffic.see(0.5, prefill, float(number))
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


def test_utilisation_follows_the_shares_within_half_a_minute_or_so() -> None:
    traffic = Traffic()
    assert traffic.utilisation(0.25, 0.0) == 0.25, "the first one is all that is known"
    for second in range(60):
        traffic.see(1.0 if second else 0.0, 1.0, float(second))
    assert 0.9 < traffic.utilisation(1.0, 60.0) < 1.0
    assert traffic.utilisation(0.0, 160.0) == 0.0
