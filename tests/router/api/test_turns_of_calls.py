"""A call that goes over very much lets others have their turn, however large the fleet is."""

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

from router.api.pick import PickAnswerer
from router.api.score import Answerer
from router.diagnosis.attribution import Attribution
from router.diagnosis.decisions import Decisions
from router.pb.warmpath.v1 import router_pb2 as pb
from router.pods.table import PodTable
from router.prompt.reader import ReadPrompt
from router.prompt.token_prompt import TokenPrompt
from tests.router.pick.picker_parts import Parts

PODS = 300


class Reader:
    """Reads every prompt as one without ids."""

    async def read(self, message: pb.Prompt, timeout: float, *, may_reckon: bool) -> ReadPrompt:
        del timeout, may_reckon
        return ReadPrompt(TokenPrompt(message.model, b""), 0)

    def troubles(self) -> dict[str, str]:
        return {}


class Fleet:
    """What answers for a large fleet."""

    def __init__(self) -> None:
        self.parts = Parts(PODS)
        self.decisions = Decisions()
        self.parts.picker._witnesses = (self.decisions,)
        pods = PodTable(self.parts.pods)
        self.pods = Answerer(None, None, pods, clock=lambda: 0.0, wall_offset=0.0)  # type: ignore[arg-type]
        self.picks = PickAnswerer(
            Reader(),  # type: ignore[arg-type]
            pods,
            self.parts.ingest,
            picker=self.parts.picker,
            window=SimpleNamespace(choose=None),  # type: ignore[arg-type]
            loads=self.parts.loads,
            decisions=self.decisions,
            attribution=Attribution(),
            clock=lambda: self.parts.now,
            wall_offset=0.0,
        )


def turns_and_answer(call: Coroutine[Any, Any, Any]) -> tuple[int, Any]:
    """Return how often a call lets others have their turn, and its answer."""

    async def run() -> tuple[int, Any]:
        turns = 0
        while True:
            try:
                call.send(None)
            except StopIteration as end:
                return turns, end.value
            turns += 1

    return asyncio.run(run())


def test_who_lists_pods_gives_turns() -> None:
    turns, listed = turns_and_answer(Fleet().pods.list_pods(pb.ListPodsRequest(model="m")))
    assert [pod.id for pod in listed.pods] == [f"pod-{number}" for number in range(PODS)]
    assert turns >= PODS // 128


def test_who_diagnoses_gives_turns() -> None:
    turns, told = turns_and_answer(Fleet().picks.diagnose(pb.DiagnoseRequest()))
    assert not told.attributions
    assert turns >= PODS // 128


def test_who_lists_decisions_gives_turns_and_lists_those_of_when_it_began() -> None:
    fleet = Fleet()
    names = [fleet.parts.choose()[0] for _ in range(130)]
    call = fleet.picks.list_decisions(pb.ListDecisionsRequest())
    call.send(None)
    fleet.parts.choose()
    turns, listed = turns_and_answer(call)
    assert [one.booking_id for one in listed.decisions] == names[::-1]
    assert turns >= 130 // 32


def test_who_tells_the_loads_of_all_ranks_gives_turns() -> None:
    fleet = Fleet()
    loads = [pb.PodLoad(pod=f"pod-{number}", running=number) for number in range(PODS)]
    request = pb.ExplainRequest(prompt=pb.Prompt(model="m"), loads=loads)
    without, _ = turns_and_answer(
        fleet.picks.explain(pb.ExplainRequest(prompt=request.prompt), 0.0)
    )
    turns, told = turns_and_answer(fleet.picks.explain(request, 0.0))
    assert {one.pod: one.details.in_flight for one in told.candidates} == {
        one.pod: one.running for one in loads
    }
    assert turns - without >= PODS // 128
    assert fleet.parts.loads._corrections.keys() == {(one.pod, 0) for one in loads}
    fleet.parts.loads.check()
