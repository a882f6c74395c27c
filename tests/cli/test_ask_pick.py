"""`warmpath explain`, `decisions` and `doctor`: what a user types, and what they see; tables of `pods` and `score`."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import pytest

from tests.cli.conftest import Output
from tests.warmpath.client.scripted_router import Refuse, ScriptedRouter, scripted
from warmpath.cli import doctor
from warmpath.cli.asking import _pods_table, _score_table, print_rich
from warmpath.cli.picks import NO_PICKS, _candidates, _went, decisions_main, explain_main
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb

REASON = (
    "pod-a has 800 of 1,600 tokens cached and nothing waiting; the rest is [bold]no markup[/bold]."
)


def candidate() -> pb.Candidate:
    trust = pb.Trust(level=pb.Trust.EXACT, reason="followed from the first batch")
    one = pb.Candidate(
        pod="pod-a", matched_tokens=960, believed_tokens=160, cost=0.66, trust=trust,
        predicted_ttft=0.64,
    )  # fmt: skip
    one.details.CopyFrom(
        pb.CandidateDetails(
            tiers=[pb.TierTokens(tier="gpu", tokens=800)], arriving_tokens=960, counted_tokens=959,
            prefill_seconds=0.64, in_flight=3, waiting=1, calibration=1.5,
            load_source="engine", load_age=1.2, queue=4,
            terms=[pb.Term(name="wait"), pb.Term(name="prefill", value=0.64)],
        )
    )  # fmt: skip
    return one


def explained(*, disaggregated: bool = False) -> pb.ExplainResponse:
    response = pb.ExplainResponse(
        candidates=[candidate()], reason=REASON, prompt_tokens=1600, policy="warmpath", utilisation=0.5
    )  # fmt: skip
    if disaggregated:
        response.decode_candidates.append(pb.Candidate(pod="pod-d"))
        response.source.CopyFrom(pb.Source(pod="pod-s", matched_tokens=1200))
    return response


@pytest.fixture
async def router() -> AsyncIterator[ScriptedRouter]:
    async with scripted() as router:
        yield router


async def run(router: ScriptedRouter, main: Callable[[list[str]], int], *args: str) -> int:
    return await asyncio.to_thread(main, ["--router", router.address, *args])


async def examined(
    router: ScriptedRouter, diagnosis: pb.DiagnoseResponse, *args: str, status: int = 0
) -> None:
    """Run the doctor on a router of one pod with a diagnosis."""
    pods = pb.ListPodsResponse(pods=[pb.Pod(id="pod-a", model="m", ready=True)])
    router.script.extend([pods, diagnosis])
    assert await run(router, doctor.main, *args) == status


async def test_an_explanation_shows_each_candidate_and_the_sentence_why_one_won(
    router: ScriptedRouter, output: Output
) -> None:
    args = ["--model=m", "--session=s", "--policy=warmpath", "--pod=pod-a", "--pod=pod-b", "hello"]
    router.script.append(explained())
    assert await run(router, explain_main, *args) == 0
    printed = output.words()
    for part in ("1,600 tokens, policy warmpath, utilisation 50%", "pod-a"):
        assert part in printed
    assert REASON in printed
    assert "decode" not in printed
    asked = pb.ExplainRequest(
        prompt=pb.Prompt(model="m", text="hello"), pods=["pod-a", "pod-b"], policy="warmpath", session_id="s"
    )  # fmt: skip
    assert router.asked == [("Explain", asked)]


def test_a_candidates_row_has_all_that_its_cost_is_made_of() -> None:
    from rich.console import Console

    console = Console(width=300)
    with console.capture() as capture:
        console.print(_candidates("title", [candidate()]))
    line = next(line for line in capture.get().splitlines() if "pod-a" in line)
    cells = [cell.strip() for cell in line.split("│")[1:-1]]
    assert cells == [
        "1", "pod-a", "960 (gpu 800, arriving 960)", "959", "-", "0.64 s (x1.5)", "3 (1 waiting)",
        "0.66", "prefill 0.64", "engine, 1.2 s old: queue 4, KV 0%", "exact",
    ]  # fmt: skip


async def test_a_disaggregated_explanation_shows_where_to_decode_and_the_source(
    router: ScriptedRouter, tmp_path: Path, output: Output
) -> None:
    ids = tmp_path / "ids"
    ids.write_text("1 2 3")
    args = ["--disaggregated", "--token-ids-file", str(ids)]
    router.script.append(explained(disaggregated=True))
    assert await run(router, explain_main, *args) == 0
    printed = output.out()
    assert "where to decode" in printed
    assert "pod-d" in printed
    assert "pod-s holds 1,200 tokens that could be pulled" in printed


async def test_an_explanation_in_json_has_the_contracts_own_names(
    router: ScriptedRouter, output: Output
) -> None:
    router.script.append(explained())
    assert await run(router, explain_main, "--json", "hello") == 0
    answer = output.json()
    assert answer["reason"] == REASON
    assert answer["candidates"][0]["details"]["counted_tokens"] == 959


async def test_an_unknown_policy_is_said(router: ScriptedRouter, output: Output) -> None:
    router.script.append(Refuse(grpc.StatusCode.INVALID_ARGUMENT, "policy: no policy 'x'"))
    assert await run(router, explain_main, "--policy=x", "hello") == 1
    assert output.err() == "warmpath: INVALID_ARGUMENT: policy: no policy 'x'\n"


async def test_decisions_are_listed_with_what_became_of_them(
    router: ScriptedRouter, output: Output
) -> None:
    common = {"at": 3661.5, "model": "m", "prompt_tokens": 1600, "candidates": [candidate()]}
    decisions = [
        pb.Decision(
            **common, pod="pod-b", state=pb.Decision.FINISHED, cached_tokens=640, ttft=0.5, reason=REASON
        ),
        pb.Decision(**common, pod="pod-a", state=pb.Decision.FIRST_TOKEN, shadow=True),
    ]  # fmt: skip
    router.script.append(pb.ListDecisionsResponse(decisions=decisions))
    args = ["--limit=7", "--model=m", "--pod=pod-a", "--session=s"]
    assert await run(router, decisions_main, *args) == 0
    printed = output.words()
    for part in ("01:01:01.500", "960 / 640", "0.64 s / 0.5 s", "finished", "first token"):
        assert part in printed
    assert "960 / ?" in printed
    asked = pb.ListDecisionsRequest(limit=7, model="m", pod="pod-a", session_id="s")
    assert router.asked == [("ListDecisions", asked)]


def test_where_a_request_went_is_told_beside_where_it_was_picked_to_go() -> None:
    moved = pb.Decision(pod="pod-b", rank=1)
    assert _went(moved, candidate()) == "pod-a, went to pod-b rank 1"
    assert _went(pb.Decision(pod="pod-a", shadow=True), candidate()) == "pod-a (shadow)"


def test_a_request_that_waits_went_nowhere_yet() -> None:
    assert _went(pb.Decision(state=pb.Decision.WAITING), candidate()) == "pod-a"


async def test_no_decisions_are_said_to_be_none(router: ScriptedRouter, output: Output) -> None:
    assert await run(router, decisions_main) == 0
    assert output.out() == f"{NO_PICKS}\n"
    assert await run(router, decisions_main, "--limit=-1") == 2


async def test_the_doctor_finds_nothing_and_says_what_it_looked_at(
    router: ScriptedRouter, output: Output
) -> None:
    diagnosis = pb.DiagnoseResponse()
    diagnosis.attributions.add(
        pod="pod-a", model="m", requests=50, prompt_tokens=1000, available_tokens=800, captured_tokens=750,
        reported_requests=40, reported_prompt_tokens=500, predicted_tokens=400, delivered_tokens=390,
    )  # fmt: skip
    await examined(router, diagnosis)
    printed = output.words()
    fine = "Nothing looks wrong. Pods: 1; reports with an engine's cached tokens: 40."
    for part in ("80.0%", "75.0%", "78.0%", fine):
        assert part in printed


@pytest.mark.parametrize(("told", "is_said"), [(2, True), (75, True), (77, False)])
async def test_the_doctor_says_how_few_requests_tell_what_was_cached(
    router: ScriptedRouter, output: Output, told: int, is_said: bool
) -> None:
    diagnosis = pb.DiagnoseResponse()
    for pod, requests, reported in (("pod-a", 100, told), ("pod-b", 52, 0)):
        diagnosis.attributions.add(
            pod=pod, model="m", requests=requests, reported_requests=reported
        )
    await examined(router, diagnosis)
    printed = output.words()
    said = f"{told} of 152 requests told how many tokens the engine found cached"
    assert (said in printed) == is_said
    assert ("include_usage" in printed) == is_said


async def test_the_doctor_tells_findings_in_sentences_and_by_its_exit_status(
    router: ScriptedRouter, output: Output
) -> None:
    diagnosis = pb.DiagnoseResponse()
    for pod in ("pod-a", "pod-b", "pod-c"):
        text = f"only chats are predicted wrong on {pod}"
        diagnosis.findings.add(pod=pod, model="m", kind="template", text=text)
    for text in ("one source cannot be asked", "another one cannot be asked"):
        diagnosis.findings.add(model="m", kind="source", text=text)
    await examined(router, diagnosis, status=1)
    printed = output.words()
    assert "source: m: one source cannot be asked." in printed
    assert "source: m: another one cannot be asked." in printed
    assert (
        "template: m pod-a: only chats are predicted wrong on pod-a. Likewise pod-b, pod-c."
    ) in printed
    assert "Nothing looks wrong" not in printed
    await examined(router, diagnosis, "--json", status=1)
    answer = output.json()
    assert [one["kind"] for one in answer["findings"]] == 3 * ["template"] + 2 * ["source"]
    assert [pod["id"] for pod in answer["pods"]] == ["pod-a"]


async def test_the_doctor_groups_only_pods_with_the_same_cause(
    router: ScriptedRouter, output: Output
) -> None:
    diagnosis = pb.DiagnoseResponse()
    for pod, text in (
        ("pod-1", "it is not ready: cannot connect to 10.0.0.1:8000 for 5 s"),
        ("pod-2", "it is not ready: its publisher is pod-9's, not pod-2's"),
        ("pod-3", "it is not ready: cannot connect to 10.0.0.3:8000 for 61.5 s"),
    ):
        diagnosis.findings.add(pod=pod, model="m", kind="ready", text=text)
    await examined(router, diagnosis, status=1)
    printed = output.words()
    assert "cannot connect to 10.0.0.1:8000 for 5 s. Likewise pod-3." in printed
    assert "ready: m pod-2: it is not ready: its publisher is pod-9's, not pod-2's." in printed


async def test_the_doctor_says_what_the_shadow_would_have_saved(
    router: ScriptedRouter, output: Output
) -> None:
    diagnosis = pb.DiagnoseResponse()
    diagnosis.shadows.add(
        model="m", requests=10, prompt_tokens=1000, chosen_tokens=400, warmpath_tokens=700, warmpath_ttft=2.0,
        agreed=6,
    )  # fmt: skip
    for chosen, said in (
        (5.0, "comes 0.3 s earlier on average"),
        (1.0, "comes 0.1 s later on average"),
        (2.0, "predicted first token comes as soon."),
    ):
        diagnosis.shadows[0].chosen_ttft = chosen
        await examined(router, diagnosis)
        printed = output.words()
        assert said in printed
        assert "of 10 requests 6 went where warmpath would have sent them" in printed
        cached = "Where they went 40.0% of their tokens were cached, with warmpath's choice 70.0%"
        assert cached in printed


async def test_a_model_that_is_not_served_is_said(router: ScriptedRouter, output: Output) -> None:
    refused = Refuse(grpc.StatusCode.NOT_FOUND, "model 'x' is not served")
    router.script.extend([pb.ListPodsResponse(), refused])
    assert await run(router, doctor.main, "--model=x") == 1
    assert "NOT_FOUND: model 'x' is not served" in output.err()


NAME = "pod-1[/b]"


def test_names_and_addresses_in_brackets_are_shown_as_they_are(output: Output) -> None:
    listed = pb.ListPodsResponse()
    listed.pods.add(id=NAME, address="[fd00::5]:8000", model="m[bold]").ranks.add()
    print_rich(_pods_table(listed))
    shown = output.out()
    assert all(name in shown for name in (NAME, "[fd00::5]:8000", "m[bold]"))
    scored = pb.ScoreResponse()
    scored.scores.add(pod=NAME)
    print_rich(_score_table(scored))
    assert NAME in output.out()
