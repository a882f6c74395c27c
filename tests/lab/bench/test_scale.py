"""`python -m warmpath.lab.bench scale`."""

import json
import math
import shutil

import pytest

from warmpath.lab.bench import __main__ as command
from warmpath.lab.bench.scale import calls, picks, shared
from warmpath.lab.bench.scale.sizing import FULL, Router, redis
from warmpath.lab.bench.stand.look_up import TOKENS

SIZES = (8, 8000)
COSTS = {
    # Seconds of 1,000 each: a pick takes 1 ms at 8 ranks and 9 ms at 8,000, a report 0.1 ms.
    picks.pick_name(8): 1.0,
    picks.pick_name(8000): 9.0,
    calls.PICKS: 2.0,
    calls.REPORTS: 0.1,
    # 90,000 blocks take 0.18 s.
    calls.name_of(TOKENS, 10_000): 0.42,
    calls.name_of(TOKENS, 100_000): 0.6,
    **{
        name(ranks): seconds * ranks / 8
        for name, seconds in (
            (picks.write_name, 0.1),
            (picks.read_name, 0.05),
            (picks.renew_name, 0.3),
        )
        for ranks in SIZES
    },
    f"{shared.written(shared.PROMPTS)}: processor": 0.001,
    f"{shared.written(shared.STEPS)}: processor": 0.02,
    f"{shared.COPIED}: processor": 0.0003,
    f"{shared.STILL}: processor": 0.12,
    f"{shared.POLLED}: processor": 0.004,
    shared.POLLS: 0.02,
}


def test_a_small_cell_takes_one_router() -> None:
    router = Router(COSTS, SIZES, ranks=8, requests=20)
    assert router.picks == pytest.approx(20 * (0.002 + 3 * 0.0001))
    assert router.events == pytest.approx(20 * 135 * 2e-6)
    assert router.needed(shares=True) == 1


def test_the_routers_of_a_cell_have_a_core_each_that_is_not_full() -> None:
    router = Router(COSTS, SIZES, ranks=128, requests=1000)
    number = router.needed(shares=True)
    assert number is not None
    assert number > 1
    assert router.picks / number + router.events + router.sharing(number) <= FULL
    apart = router.needed(shares=False)
    assert apart is not None
    assert apart <= number
    fewer = number - 1
    assert router.picks / fewer + router.events + router.sharing(fewer) > FULL


def test_no_number_of_routers_is_enough_where_every_one_has_too_many_events() -> None:
    router = Router(COSTS, SIZES, ranks=8000, requests=20_000)
    assert router.events > 1
    assert router.needed(shares=False) is None


def test_shards_grow_with_the_requests_and_with_the_copies() -> None:
    written = 2 * (125 * 1e-6 + 10 * 2e-5)
    assert redis(COSTS, 100, 2000, 0) == math.ceil((2000 * written + 100 * 0.00012) / FULL)
    assert redis(COSTS, 100, 2000, 2) > redis(COSTS, 100, 2000, 0)


@pytest.mark.deep
@pytest.mark.timeout(900)
@pytest.mark.skipif(shutil.which("h2load") is None, reason="h2load is not installed")
def test_what_routers_and_redis_cost_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["scale", "--quick", "--json"]) == 0
    figures = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    for tokens in calls.LENGTHS:
        for pace in calls.PACES:
            assert figures[calls.name_of(tokens, pace)]["value"] > 0
    assert {one["unit"] for one in figures.values()} <= {"s", "MB", "kB", "%", ""}
    for beginning in ("memory: ", "Redis: ", "router: ", "virtual fleet of ", "cell of "):
        assert any(name.startswith(beginning) for name in figures)
