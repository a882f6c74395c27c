"""Unix time of monotonic times: the machine's clock may be wrong at the start and set later."""

from functools import partial
from pathlib import Path

import pytest

from tests.router.pick_stand import QUIET, pod, prompt, standing
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.diagnosis.decisions import STEP_SECONDS, WallOffset


class Clock:
    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def test_the_offset_follows_the_clock_that_is_set_and_not_its_noise() -> None:
    wall, steady = Clock(100.0), Clock(7.0)
    offset = WallOffset(wall, steady)
    assert offset() == 93.0
    wall.now += STEP_SECONDS / 2
    assert offset() == 93.0
    wall.now += 1e9
    assert offset() == pytest.approx(1e9 + 93.0, abs=STEP_SECONDS)
    wall.now, steady.now = 0.0, 8.0
    assert offset() == -8.0


async def test_all_times_that_a_router_tells_follow_its_machines_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = Clock(1000.0)
    monkeypatch.setattr("warmpath.router.assemble.picks.WallOffset", partial(WallOffset, begun))
    async with standing(tmp_path, QUIET + pod("a") + '[pick]\nqueue = "on"\n') as stand:

        async def times() -> list[float]:
            picked = await stand.stub.Pick(pb.PickRequest(prompt=prompt(50)), timeout=30)
            [listed] = await stand.pods()
            decisions = await stand.stub.ListDecisions(pb.ListDecisionsRequest(), timeout=30)
            scored = await stand.stub.Score(pb.ScoreRequest(prompt=prompt(50)), timeout=30)
            explained = await stand.stub.Explain(pb.ExplainRequest(prompt=prompt(50)), timeout=30)
            return [
                picked.engine_priority / 1000,
                picked.candidates[0].trust.since,
                listed.ranks[0].trust.since,
                *(one.at for one in decisions.decisions),
                decisions.decisions[-1].candidates[0].trust.since,
                scored.scores[0].trust.since,
                explained.candidates[0].trust.since,
            ]

        for one in await times():
            assert abs(one - 1000.0) < 1e5
        begun.now = 2e9
        for one in await times():
            assert abs(one - 2e9) < 1e5
