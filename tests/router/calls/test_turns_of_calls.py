"""A call that goes over very much lets others have their turn, however large the fleet is."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.router.consistent import check
from tests.router.pick.picker_parts import Parts
from tests.router.prompt.turns import turns_and_result
from warmpath.indexer.trust import Level
from warmpath.process import loop
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.wire.v1 import score_request_pb2 as wire
from warmpath.router.calls.pick import CANDIDATES_AT_ONCE as AT_ONCE
from warmpath.router.calls.pick import PickAnswerer
from warmpath.router.calls.score import Answerer
from warmpath.router.diagnosis.attribution import Attribution
from warmpath.router.diagnosis.decisions import Decisions
from warmpath.router.match.match import Scorer
from warmpath.router.pick.messages import LEVELS
from warmpath.router.pods.table import PodTable
from warmpath.router.prompt.limits import BadRequestError
from warmpath.router.prompt.token_prompt import ReadPrompt, TokenPrompt

PODS = 300


class Reader:
    """Reads every prompt as one without ids."""

    async def read(
        self,
        message: pb.Prompt,
        timeout: float,
        trace: None = None,
        *,
        may_reckon: bool = False,
        fields: None = None,
    ) -> ReadPrompt:
        del timeout, trace, may_reckon, fields
        return ReadPrompt(TokenPrompt(message.model, b""), 0)

    def troubles(self) -> dict[str, str]:
        return {}


class Fleet:
    """What answers for a large fleet."""

    def __init__(self) -> None:
        self.decisions = Decisions()
        self.parts = Parts(PODS, witnesses=(self.decisions,))
        pods = PodTable(self.parts.pods)
        self.pods = Answerer(
            Reader(),  # type: ignore[arg-type]
            Scorer(self.parts.ingest, ""),
            pods,
            clock=lambda: 0.0,
            wall_offset=lambda: 0.0,
        )
        self.picks = PickAnswerer(
            Reader(),  # type: ignore[arg-type]
            pods,
            self.parts.ingest,
            self.parts.picking,
            decisions=self.decisions,
            attribution=Attribution(),
            clock=lambda: self.parts.now,
            wall_offset=lambda: 0.0,
        )


def test_who_lists_pods_gives_turns() -> None:
    turns, listed = turns_and_result(Fleet().pods.list_pods(pb.ListPodsRequest(model="m")))
    assert [pod.id for pod in listed.pods] == [f"pod-{number}" for number in range(PODS)]
    assert turns >= PODS // 128


def test_who_names_many_pods_that_nobody_knows_gives_turns_and_is_told_of_each() -> None:
    names = [f"other-{number}" for number in range(1024)]
    for wanted, at_least in ([], 0), (names, 2):
        request = wire.ScoreRequest(prompt=wire.Prompt(model="m"), pods=wanted)
        turns, scored = turns_and_result(Fleet().pods.score(request, 1.0))
        scores = pb.ScoreResponse.FromString(scored.response).scores
        assert turns >= at_least
        assert [one.pod for one in scores] == (wanted or [f"pod-{at}" for at in range(PODS)])
        assert all(one.trust.reason == "no such pod serves the model" for one in scores if wanted)


def test_a_score_of_a_large_fleet_shows_the_trust_of_the_moment_of_its_matches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop, "MANY_RANKS", PODS - 1)
    fleet = Fleet()
    rank = fleet.parts.pods[0].ranks[0]
    before = rank.trust
    call = fleet.pods.score(wire.ScoreRequest(prompt=wire.Prompt(model="m")), 1.0)
    call.send(None)
    rank.limit("a batch is missing")
    assert (before.level, rank.trust.level) == (Level.EXACT, Level.DEGRADED)
    taken, scored = turns_and_result(call)
    assert taken == 0
    first = pb.ScoreResponse.FromString(scored.response).scores[0]
    assert (first.trust.level, first.trust.reason) == (LEVELS[before.level], before.reason)


def test_who_diagnoses_gives_turns() -> None:
    turns, told = turns_and_result(Fleet().picks.diagnose(pb.DiagnoseRequest()))
    assert not told.attributions
    assert turns >= PODS // 128


def test_who_lists_decisions_gives_turns_and_lists_those_of_when_it_began() -> None:
    fleet = Fleet()
    names = [fleet.parts.choose()[0] for _ in range(130)]
    call = fleet.picks.list_decisions(pb.ListDecisionsRequest())
    call.send(None)
    fleet.parts.choose()
    turns, listed = turns_and_result(call)
    assert [one.booking_id for one in listed.decisions] == names[::-1]
    assert turns >= 130 // 32


def test_who_tells_the_loads_of_all_ranks_gives_turns() -> None:
    fleet = Fleet()
    loads = [pb.PodLoad(pod=f"pod-{number}", running=number) for number in range(PODS)]
    request = pb.ExplainRequest(prompt=pb.Prompt(model="m"), loads=loads)
    without, _ = turns_and_result(
        fleet.picks.explain(pb.ExplainRequest(prompt=request.prompt), 0.0)
    )
    turns, told = turns_and_result(fleet.picks.explain(request, 0.0))
    assert {one.pod: one.details.in_flight for one in told.candidates} == {
        one.pod: one.running for one in loads
    }
    assert turns - without >= PODS // 128
    check(fleet.parts.loads)


class Work:
    """Counts what each step of a call does, by the method that does it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self._done: Counter[str] = Counter()

    def count(self, owner: Any, name: str) -> None:
        method: Callable[..., Any] = getattr(owner, name)

        def counted(*args: Any, **fields: Any) -> Any:
            self._done[name] += 1
            return method(*args, **fields)

        self._patch.setattr(owner, name, counted)

    def steps(self, call: Coroutine[Any, Any, Any]) -> list[dict[str, int]]:
        async def run() -> list[dict[str, int]]:
            steps = []
            is_over = False
            while not is_over:
                self._done.clear()
                try:
                    call.send(None)
                except StopIteration:
                    is_over = True
                steps.append(dict(self._done))
            return steps

        return asyncio.run(run())


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    return Work(monkeypatch)


LOADS = [pb.PodLoad(pod=f"pod-{number}", running=number) for number in range(PODS)]


def test_explain_weighs_in_one_step_and_tells_some_candidates_in_each_that_follows(
    work: Work,
) -> None:
    fleet = Fleet()
    work.count(fleet.parts.picker, "weigh")
    work.count(fleet.parts.loads, "explain")
    asked = pb.ExplainRequest(prompt=pb.Prompt(model="m"))
    steps = [one for one in work.steps(fleet.picks.explain(asked, 0.0)) if one]
    assert steps[0] == {"weigh": 1}
    assert sum(one["explain"] for one in steps[1:]) == PODS
    assert max(one["explain"] for one in steps[1:]) <= AT_ONCE


@pytest.mark.parametrize("method", ["pick", "report"])
def test_loads_of_all_ranks_are_taken_note_of_in_steps_before_the_one_that_answers(
    work: Work, method: str
) -> None:
    fleet = Fleet()
    work.count(fleet.parts.loads, "observe")
    work.count(fleet.parts.picker, "reserve")
    work.count(fleet.parts.picker, "ended")

    async def pick() -> None:
        await fleet.picks.pick(pb.PickRequest(prompt=pb.Prompt(model="m"), loads=LOADS), 0.0)

    report = pb.ReportRequest(booking_id="x", event=pb.ReportRequest.FAILED, loads=LOADS)
    call = pick() if method == "pick" else fleet.picks.report(report, 0.0, 0.0)
    steps = [one for one in work.steps(call) if one]
    answers = "reserve" if method == "pick" else "ended"
    assert steps[-1] == {answers: 1}
    assert sum(one["observe"] for one in steps[:-1]) == PODS
    assert max(one["observe"] for one in steps[:-1]) <= AT_ONCE


def test_impossible_loads_are_refused_before_any_is_taken_note_of() -> None:
    fleet = Fleet()
    loads = [*LOADS, pb.PodLoad(pod="pod-0", kv_usage=2.0)]
    report = pb.ReportRequest(booking_id="x", event=pb.ReportRequest.FAILED, loads=loads)
    with pytest.raises(BadRequestError, match=rf"loads\[{PODS}\]\.kv_usage: is 2\.0, not 0 to 1"):
        asyncio.run(fleet.picks.report(report, 0.0, 0.0))
    assert not fleet.parts.loads._seen
