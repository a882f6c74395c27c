"""`warmpath explain`, `decisions` and `doctor`: what a user types, and what they see."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc.aio
import pytest

from tests.cli.conftest import Output
from warmpath.cli import doctor
from warmpath.cli.picks import NO_PICKS, _candidates, _went, decisions_main, explain_main
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc

Context = grpc.aio.ServicerContext[object, object]
REASON = (
    "pod-a has 800 of 1,600 tokens cached and nothing waiting; the rest is [bold]no markup[/bold]."
)


def candidate() -> pb.Candidate:
    trust = pb.Trust(level=pb.Trust.EXACT, reason="followed from the first batch")
    one = pb.Candidate(
        pod="pod-a",
        matched_tokens=960,
        believed_tokens=160,
        cost=0.66,
        trust=trust,
        predicted_ttft=0.64,
    )
    one.details.CopyFrom(
        pb.CandidateDetails(
            tiers=[pb.TierTokens(tier="gpu", tokens=800)], arriving_tokens=960, counted_tokens=959,
            prefill_seconds=0.64, in_flight=3, waiting=1, calibration=1.5,
            load_source="engine", load_age=1.2, queue=4,
            terms=[pb.Term(name="wait"), pb.Term(name="prefill", value=0.64)],
        )
    )  # fmt: skip
    return one


class Router(router_pb2_grpc.RouterServicer):
    """Answers with what a test has set, and keeps what was asked."""

    def __init__(self) -> None:
        self.address = ""
        self.asked: list[object] = []
        self.pods = [pb.Pod(id="pod-a", model="m", ready=True)]
        self.diagnosis = pb.DiagnoseResponse()
        self.decisions: list[pb.Decision] = []

    async def run(self, main: Callable[[list[str]], int], *args: str) -> int:
        return await asyncio.to_thread(main, ["--router", self.address, *args])

    async def Explain(  # noqa: N802
        self, request: pb.ExplainRequest, context: Context
    ) -> pb.ExplainResponse:
        self.asked.append(request)
        if request.policy == "x":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "policy: no policy 'x'")
        response = pb.ExplainResponse(
            candidates=[candidate()],
            reason=REASON,
            prompt_tokens=1600,
            policy="warmpath",
            utilisation=0.5,
        )
        if request.disaggregated:
            response.decode_candidates.append(pb.Candidate(pod="pod-d"))
            response.source.CopyFrom(pb.Source(pod="pod-s", matched_tokens=1200))
        return response

    async def ListDecisions(  # noqa: N802
        self, request: pb.ListDecisionsRequest, context: Context
    ) -> pb.ListDecisionsResponse:
        del context
        self.asked.append(request)
        return pb.ListDecisionsResponse(decisions=self.decisions)

    async def ListPods(  # noqa: N802
        self, request: pb.ListPodsRequest, context: Context
    ) -> pb.ListPodsResponse:
        del request, context
        return pb.ListPodsResponse(pods=self.pods)

    async def Diagnose(  # noqa: N802
        self, request: pb.DiagnoseRequest, context: Context
    ) -> pb.DiagnoseResponse:
        if request.model == "x":
            await context.abort(grpc.StatusCode.NOT_FOUND, "model 'x' is not served")
        return self.diagnosis


@pytest.fixture
async def router() -> AsyncIterator[Router]:
    server = grpc.aio.server()
    router = Router()
    router_pb2_grpc.add_RouterServicer_to_server(router, server)
    router.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    yield router
    await server.stop(None)


def finding(router: Router, kind: str, text: str, pod: str = "") -> None:
    router.diagnosis.findings.add(pod=pod, model="m", kind=kind, text=text)


async def test_an_explanation_shows_each_candidate_and_the_sentence_why_one_won(
    router: Router, output: Output
) -> None:
    args = ["--model=m", "--session=s", "--policy=warmpath", "--pod=pod-a", "--pod=pod-b", "hello"]
    assert await router.run(explain_main, *args) == 0
    printed = output.words()
    for part in ("1,600 tokens, policy warmpath, utilisation 50%", "pod-a"):
        assert part in printed
    assert REASON in printed
    assert "decode" not in printed
    assert router.asked == [
        pb.ExplainRequest(
            prompt=pb.Prompt(model="m", text="hello"),
            pods=["pod-a", "pod-b"],
            policy="warmpath",
            session_id="s",
        )
    ]


def test_a_candidates_row_has_all_that_its_cost_is_made_of() -> None:
    from rich.console import Console

    console = Console(width=300)
    with console.capture() as capture:
        console.print(_candidates("title", [candidate()]))
    line = next(line for line in capture.get().splitlines() if "pod-a" in line)
    cells = [cell.strip() for cell in line.split("│")[1:-1]]
    assert cells == [
        "1",
        "pod-a",
        "960 (gpu 800, arriving 960)",
        "959",
        "-",
        "0.64 s (x1.5)",
        "3 (1 waiting)",
        "0.66",
        "prefill 0.64",
        "engine, 1.2 s old: queue 4, KV 0%",
        "exact",
    ]


async def test_a_disaggregated_explanation_shows_where_to_decode_and_the_source(
    router: Router, tmp_path: Path, output: Output
) -> None:
    ids = tmp_path / "ids"
    ids.write_text("1 2 3")
    args = ["--disaggregated", "--token-ids-file", str(ids)]
    assert await router.run(explain_main, *args) == 0
    printed = output.out()
    assert "where to decode" in printed
    assert "pod-d" in printed
    assert "pod-s holds 1,200 tokens that could be pulled" in printed


async def test_an_explanation_in_json_has_the_contracts_own_names(
    router: Router, output: Output
) -> None:
    assert await router.run(explain_main, "--json", "hello") == 0
    answer = output.json()
    assert answer["reason"] == REASON
    assert answer["candidates"][0]["details"]["counted_tokens"] == 959


async def test_an_unknown_policy_is_said(router: Router, output: Output) -> None:
    assert await router.run(explain_main, "--policy=x", "hello") == 1
    assert output.err() == "warmpath: INVALID_ARGUMENT: policy: no policy 'x'\n"


async def test_decisions_are_listed_with_what_became_of_them(
    router: Router, output: Output
) -> None:
    common = {"at": 3661.5, "model": "m", "prompt_tokens": 1600, "candidates": [candidate()]}
    router.decisions = [
        pb.Decision(
            **common,
            pod="pod-b",
            state=pb.Decision.FINISHED,
            cached_tokens=640,
            ttft=0.5,
            reason=REASON,
        ),
        pb.Decision(**common, pod="pod-a", state=pb.Decision.FIRST_TOKEN, shadow=True),
    ]
    args = ["--limit=7", "--model=m", "--pod=pod-a"]
    assert await router.run(decisions_main, *args) == 0
    printed = output.words()
    for part in ("01:01:01.500", "960 / 640", "0.64 s / 0.5 s", "finished", "first token"):
        assert part in printed
    assert "960 / ?" in printed
    assert router.asked == [pb.ListDecisionsRequest(limit=7, model="m", pod="pod-a")]


def test_where_a_request_went_is_told_beside_where_it_was_picked_to_go() -> None:
    moved = pb.Decision(pod="pod-b", rank=1)
    assert _went(moved, candidate()) == "pod-a, went to pod-b rank 1"
    assert _went(pb.Decision(pod="pod-a", shadow=True), candidate()) == "pod-a (shadow)"


def test_a_request_that_waits_went_nowhere_yet() -> None:
    assert _went(pb.Decision(state=pb.Decision.WAITING), candidate()) == "pod-a"


async def test_no_decisions_are_said_to_be_none(router: Router, output: Output) -> None:
    assert await router.run(decisions_main) == 0
    assert output.out() == f"{NO_PICKS}\n"
    assert await router.run(decisions_main, "--limit=-1") == 2


async def test_the_doctor_finds_nothing_and_says_what_it_looked_at(
    router: Router, output: Output
) -> None:
    router.diagnosis.attributions.add(
        pod="pod-a",
        model="m",
        requests=50,
        prompt_tokens=1000,
        available_tokens=800,
        captured_tokens=750,
        reported_requests=40,
        reported_prompt_tokens=500,
        predicted_tokens=400,
        delivered_tokens=390,
    )
    assert await router.run(doctor.main) == 0
    printed = output.words()
    for part in (
        "80.0%",
        "75.0%",
        "78.0%",
        "Nothing looks wrong. Pods: 1; reports with an engine's cached tokens: 40.",
    ):
        assert part in printed


@pytest.mark.parametrize(("told", "is_said"), [(2, True), (75, True), (77, False)])
async def test_the_doctor_says_how_few_requests_tell_what_was_cached(
    router: Router, output: Output, told: int, is_said: bool
) -> None:
    for pod, requests, reported in (("pod-a", 100, told), ("pod-b", 52, 0)):
        router.diagnosis.attributions.add(
            pod=pod, model="m", requests=requests, reported_requests=reported
        )
    assert await router.run(doctor.main) == 0
    printed = output.words()
    said = f"{told} of 152 requests told how many tokens the engine found cached"
    assert (said in printed) == is_said
    assert ("include_usage" in printed) == is_said


async def test_the_doctor_tells_findings_in_sentences_and_by_its_exit_status(
    router: Router, output: Output
) -> None:
    for pod in ("pod-a", "pod-b", "pod-c"):
        text = f"only chats are predicted wrong on {pod}"
        finding(router, "template", text, pod)
    for text in ("one source cannot be asked", "another one cannot be asked"):
        finding(router, "source", text)
    assert await router.run(doctor.main) == 1
    printed = output.words()
    assert "source: m: one source cannot be asked." in printed
    assert "source: m: another one cannot be asked." in printed
    assert (
        "template: m pod-a: only chats are predicted wrong on pod-a. Likewise pod-b, pod-c."
    ) in printed
    assert "Nothing looks wrong" not in printed
    assert await router.run(doctor.main, "--json") == 1
    answer = output.json()
    assert [one["kind"] for one in answer["findings"]] == 3 * ["template"] + 2 * ["source"]
    assert [pod["id"] for pod in answer["pods"]] == ["pod-a"]


async def test_the_doctor_groups_only_pods_with_the_same_cause(
    router: Router, output: Output
) -> None:
    for pod, text in (
        ("pod-1", "it is not ready: cannot connect to 10.0.0.1:8000 for 5 s"),
        ("pod-2", "it is not ready: its publisher is pod-9's, not pod-2's"),
        ("pod-3", "it is not ready: cannot connect to 10.0.0.3:8000 for 61.5 s"),
    ):
        finding(router, "ready", text, pod)
    assert await router.run(doctor.main) == 1
    printed = output.words()
    assert "cannot connect to 10.0.0.1:8000 for 5 s. Likewise pod-3." in printed
    assert "ready: m pod-2: it is not ready: its publisher is pod-9's, not pod-2's." in printed


async def test_the_doctor_says_what_the_shadow_would_have_saved(
    router: Router, output: Output
) -> None:
    router.diagnosis.shadows.add(
        model="m",
        requests=10,
        prompt_tokens=1000,
        chosen_tokens=400,
        warmpath_tokens=700,
        chosen_ttft=5.0,
        warmpath_ttft=2.0,
        agreed=6,
    )
    for chosen, said in (
        (5.0, "comes 0.3 s earlier on average"),
        (1.0, "comes 0.1 s later on average"),
        (2.0, "predicted first token comes as soon."),
    ):
        router.diagnosis.shadows[0].chosen_ttft = chosen
        assert await router.run(doctor.main) == 0
        printed = output.words()
        assert said in printed
        assert "of 10 requests 6 went where warmpath would have sent them" in printed
        cached = "Where they went 40.0% of their tokens were cached, with warmpath's choice 70.0%"
        assert cached in printed


async def test_a_model_that_is_not_served_is_said(router: Router, output: Output) -> None:
    assert await router.run(doctor.main, "--model=x") == 1
    assert "NOT_FOUND: model 'x' is not served" in output.err()
