"""`warmpath explain`, `decisions` and `doctor`: what a user types, and what they see."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc.aio
import pytest

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
    details = one.details
    details.tiers.add(tier="gpu", tokens=800)
    details.arriving_tokens = 960
    details.counted_tokens = 959
    details.prefill_seconds = 0.64
    details.in_flight = 3
    details.waiting = 1
    details.calibration = 1.5
    details.is_session = True
    details.load_source = "engine"
    details.load_age = 1.2
    details.queue = 4
    details.terms.add(name="wait", value=0.0)
    details.terms.add(name="prefill", value=0.64)
    return one


class Router(router_pb2_grpc.RouterServicer):
    """Answers with what a test has set, and keeps what was asked."""

    def __init__(self) -> None:
        self.asked: list[object] = []
        self.pods = [pb.Pod(id="pod-a", model="m", ready=True)]
        self.diagnosis = pb.DiagnoseResponse()
        self.decisions: list[pb.Decision] = []

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
async def router() -> AsyncIterator[tuple[Router, str]]:
    server = grpc.aio.server()
    servicer = Router()
    router_pb2_grpc.add_RouterServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield servicer, f"127.0.0.1:{port}"
    await server.stop(None)


async def run(main: Callable[[list[str]], int], address: str, *args: str) -> int:
    return await asyncio.to_thread(main, ["--router", address, *args])


async def test_an_explanation_shows_each_candidate_and_the_sentence_why_one_won(
    router: tuple[Router, str], capsys: pytest.CaptureFixture[str]
) -> None:
    servicer, address = router
    args = ["--model=m", "--session=s", "--policy=warmpath", "--pod=pod-a", "--pod=pod-b", "hello"]
    assert await run(explain_main, address, *args) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for part in ("1,600 tokens, policy warmpath, utilisation 50%", "pod-a", "(session)"):
        assert part in printed
    assert REASON in printed
    assert "decode" not in printed
    assert servicer.asked == [
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
        "pod-a (session)",
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
    router: tuple[Router, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = tmp_path / "ids"
    ids.write_text("1 2 3")
    args = ["--disaggregated", "--token-ids-file", str(ids)]
    assert await run(explain_main, router[1], *args) == 0
    printed = capsys.readouterr().out
    assert "where to decode" in printed
    assert "pod-d" in printed
    assert "pod-s holds 1,200 tokens that could be pulled" in printed


async def test_an_explanation_in_json_has_the_contracts_own_names(
    router: tuple[Router, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run(explain_main, router[1], "--json", "hello") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["reason"] == REASON
    assert answer["candidates"][0]["details"]["counted_tokens"] == 959


async def test_an_unknown_policy_is_said(
    router: tuple[Router, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run(explain_main, router[1], "--policy=x", "hello") == 1
    assert capsys.readouterr().err == "warmpath: INVALID_ARGUMENT: policy: no policy 'x'\n"


def test_an_explanation_of_no_prompt_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain_main([]) == 2
    assert capsys.readouterr().err.startswith("warmpath explain: give exactly one of")


async def test_decisions_are_listed_with_what_became_of_them(
    router: tuple[Router, str], capsys: pytest.CaptureFixture[str]
) -> None:
    servicer, address = router
    common = {"at": 3661.5, "model": "m", "prompt_tokens": 1600, "candidates": [candidate()]}
    servicer.decisions = [
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
    assert await run(decisions_main, address, *args) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for part in ("01:01:01.500", "960 / 640", "0.64 s / 0.5 s", "finished", "first token"):
        assert part in printed
    assert "960 / ?" in printed
    assert servicer.asked == [pb.ListDecisionsRequest(limit=7, model="m", pod="pod-a")]


def test_where_a_request_went_is_told_beside_where_it_was_picked_to_go() -> None:
    moved = pb.Decision(pod="pod-b", rank=1)
    assert _went(moved, candidate()) == "pod-a, went to pod-b rank 1"
    assert _went(pb.Decision(pod="pod-a", shadow=True), candidate()) == "pod-a (shadow)"


def test_a_request_that_waits_went_nowhere_yet() -> None:
    assert _went(pb.Decision(state=pb.Decision.WAITING), candidate()) == "pod-a"


async def test_no_decisions_are_said_to_be_none(
    router: tuple[Router, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run(decisions_main, router[1]) == 0
    assert capsys.readouterr().out == f"{NO_PICKS}\n"
    assert await run(decisions_main, router[1], "--limit=-1") == 2


async def test_the_doctor_finds_nothing_and_says_what_it_looked_at(
    router: tuple[Router, str], capsys: pytest.CaptureFixture[str]
) -> None:
    servicer, address = router
    servicer.diagnosis.attributions.add(
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
    assert await run(doctor.main, address) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for part in (
        "80.0%",
        "75.0%",
        "78.0%",
        "Nothing looks wrong. Pods: 1; reports with an engine's cached tokens: 40.",
    ):
        assert part in printed


@pytest.mark.parametrize(("told", "is_said"), [(2, True), (75, True), (77, False)])
async def test_the_doctor_says_how_few_requests_tell_what_was_cached(
    router: tuple[Router, str], capsys: pytest.CaptureFixture[str], told: int, is_said: bool
) -> None:
    servicer, address = router
    for pod, requests, reported in (("pod-a", 100, told), ("pod-b", 52, 0)):
        servicer.diagnosis.attributions.add(
            pod=pod, model="m", requests=requests, reported_requests=reported
        )
    assert await run(doctor.main, address) == 0
    printed = " ".join(capsys.readouterr().out.split())
    said = f"{told} of 152 requests told how many tokens the engine found cached"
    assert (said in printed) == is_said
    assert ("include_usage" in printed) == is_said


async def test_the_doctor_tells_findings_in_sentences_and_by_its_exit_status(
    router: tuple[Router, str], capsys: pytest.CaptureFixture[str]
) -> None:
    servicer, address = router
    for pod in ("pod-a", "pod-b", "pod-c"):
        text = f"only chats are predicted wrong on {pod}"
        servicer.diagnosis.findings.add(pod=pod, model="m", kind="template", text=text)
    for text in ("one source cannot be asked", "another one cannot be asked"):
        servicer.diagnosis.findings.add(model="m", kind="source", text=text)
    assert await run(doctor.main, address) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "source: m: one source cannot be asked." in printed
    assert "source: m: another one cannot be asked." in printed
    assert (
        "template: m pod-a: only chats are predicted wrong on pod-a. Likewise pod-b, pod-c."
    ) in printed
    assert "Nothing looks wrong" not in printed
    assert await run(doctor.main, address, "--json") == 1
    answer = json.loads(capsys.readouterr().out)
    assert [one["kind"] for one in answer["findings"]] == 3 * ["template"] + 2 * ["source"]
    assert [pod["id"] for pod in answer["pods"]] == ["pod-a"]


async def test_the_doctor_groups_only_pods_with_the_same_cause(
    router: tuple[Router, str], capsys: pytest.CaptureFixture[str]
) -> None:
    servicer, address = router
    for pod, text in (
        ("pod-1", "it is not ready: cannot connect to 10.0.0.1:8000 for 5 s"),
        ("pod-2", "it is not ready: its publisher is pod-9's, not pod-2's"),
        ("pod-3", "it is not ready: cannot connect to 10.0.0.3:8000 for 61.5 s"),
    ):
        servicer.diagnosis.findings.add(pod=pod, model="m", kind="ready", text=text)
    assert await run(doctor.main, address) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "cannot connect to 10.0.0.1:8000 for 5 s. Likewise pod-3." in printed
    assert "ready: m pod-2: it is not ready: its publisher is pod-9's, not pod-2's." in printed


async def test_the_doctor_says_what_the_shadow_would_have_saved(
    router: tuple[Router, str], capsys: pytest.CaptureFixture[str]
) -> None:
    router[0].diagnosis.shadows.add(
        model="m",
        requests=10,
        prompt_tokens=1000,
        chosen_tokens=400,
        warmpath_tokens=700,
        chosen_ttft=5.0,
        warmpath_ttft=2.0,
        agreed=6,
    )
    assert await run(doctor.main, router[1]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "of 10 requests 6 went where warmpath would have sent them" in printed
    assert (
        "Where they went 40.0% of their tokens were cached, with warmpath's choice 70.0%" in printed
    )
    assert "comes 0.3 s earlier on average" in printed
    router[0].diagnosis.shadows[0].chosen_ttft = 1.0
    assert await run(doctor.main, router[1]) == 0
    assert "comes 0.1 s later on average" in " ".join(capsys.readouterr().out.split())
    router[0].diagnosis.shadows[0].chosen_ttft = 2.0
    assert await run(doctor.main, router[1]) == 0
    assert "predicted first token comes as soon." in " ".join(capsys.readouterr().out.split())


async def test_a_router_that_does_not_answer_is_neither_well_nor_ill(
    router: tuple[Router, str], held_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run(doctor.main, f"127.0.0.1:{held_port}") == 3
    assert "no router answers" in capsys.readouterr().err
    assert await run(doctor.main, router[1], "--model=x") == 1
    assert "NOT_FOUND: model 'x' is not served" in capsys.readouterr().err
