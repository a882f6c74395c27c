"""The log of decisions: a line for each drawn pick when its request ends, and never more than may wait."""

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.router.pick.weighed import choice, option, placed
from warmpath.router.diagnosis import decisions as decision_log
from warmpath.router.diagnosis.decisions import DecisionLog
from warmpath.router.pick.pick import Pick


def pick(log: DecisionLog) -> Pick:
    made = choice(option("a", 800), option("b", 960, wait=5.0))
    one = placed(made)
    log.picked(one, made)
    return one


def test_a_line_has_the_caller_s_id_of_the_request_and_the_trace() -> None:
    log = DecisionLog(1.0, Random(1), wall_offset=lambda: 0.0)
    made = choice(option("a", 800))
    one = placed(made)
    one.request_id, one.trace_id = "r-1", "0af7651916cd43dd8448eb211c80319c"
    log.picked(one, made)
    log.ended(one, "finished", 102.0)
    [raw] = log.taken()[0]
    line = json.loads(raw)
    assert (line["request_id"], line["trace_id"]) == (one.request_id, one.trace_id)


def test_a_pick_has_a_line_once_its_request_ends() -> None:
    log = DecisionLog(1.0, Random(1), wall_offset=lambda: 1000.0)
    one = pick(log)
    log.started(one)
    log.first_token(one, 101.0)
    log.found_cached(one, 790, None)
    assert log.taken()[0] == []
    log.ended(one, "finished", 102.0)
    [raw] = log.taken()[0]
    assert raw.endswith(b"\n")
    line = json.loads(raw)
    assert (line["pod"], line["state"], line["cached_tokens"]) == ("a", "finished", 790)
    assert (line["at"], line["ttft"]) == (1100.0, 1.0)
    assert [one["pod"] for one in line["candidates"]] == ["a", "b"]
    assert "a has 800 of" in line["reason"]
    assert log.taken()[0] == []


def test_a_pick_that_reached_nobody_has_a_line_at_once() -> None:
    log = DecisionLog(1.0, Random(1), wall_offset=lambda: 0.0)
    made = choice(option("a", 800))
    log.withdrawn(placed(made), made)
    [raw] = log.taken()[0]
    assert json.loads(raw)["state"] == "cancelled"


@given(st.integers(0, 60), st.sampled_from([0.0, 0.3, 1.0]), st.integers(0, 2**32))
def test_only_drawn_picks_have_lines(picks: int, share: float, seed: int) -> None:
    log = DecisionLog(share, Random(seed), wall_offset=lambda: 0.0)
    draw = Random(seed)
    drawn = sum(draw.random() < share for _ in range(picks))
    for one in [pick(log) for _ in range(picks)]:
        log.ended(one, "finished", 200.0)
    assert len(log.taken()[0]) == drawn


def test_lines_without_room_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_log, "MOST_LINES", 2)
    log = DecisionLog(1.0, Random(1), wall_offset=lambda: 0.0)
    for one in [pick(log) for _ in range(5)]:
        log.ended(one, "failed", 200.0)
    lines, dropped = log.taken()
    assert (len(lines), dropped, log.lost) == (2, 3, 3)
    assert (log.taken(), log.lost) == (([], 0), 3)
