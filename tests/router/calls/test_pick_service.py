"""Picks over gRPC, of pods without events: nobody serves their addresses, and nobody looks.

One file: all tests ask one service.
"""

import asyncio
import math
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from tests.h2grpc.served import ends_with
from tests.router.pick_stand import QUIET, UNENDING, Stand, by_pod, pod, prompt, standing
from tests.router.running_router import metrics_of
from tests.waiting import until
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.calls.report import REPORTS_AT_ONCE
from warmpath.router.load.stuck import ENOUGH
from warmpath.router.pick.options import MOST_CANDIDATES

THREE = QUIET + pod("a") + pod("b") + pod("c")


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    async with standing(tmp_path, THREE) as stand:
        yield stand


@pytest.fixture
async def unending(tmp_path: Path) -> AsyncIterator[Stand]:
    """Return one whose pods have to do until it is reported what they did."""
    async with standing(tmp_path, THREE + UNENDING) as stand:
        yield stand


async def test_pick_ranks_all_candidates_and_books_the_first(unending: Stand) -> None:
    stand = unending
    first = await stand.pick(prompt())
    assert sorted(by_pod(first.candidates)) == ["a", "b", "c"]
    assert [one.cost for one in first.candidates] == sorted(one.cost for one in first.candidates)
    best = first.candidates[0]
    assert best.address == f"{best.pod}:80"
    assert first.prompt_tokens == 100
    assert best.outstanding_tokens == 0
    assert best.predicted_ttft == pytest.approx(60 + 100 * 70e-6)
    assert not best.HasField("details")
    second = await stand.pick(prompt(first=900))
    assert by_pod(second.candidates)[best.pod].outstanding_tokens == 100
    assert second.candidates[0].pod != best.pod


@pytest.mark.parametrize(("pods", "left_out"), [(3, 0), (MOST_CANDIDATES + 6, 6)])
async def test_pick_tells_of_the_best_candidates_and_counts_the_others(
    tmp_path: Path, pods: int, left_out: int
) -> None:
    async with standing(tmp_path, QUIET + "".join(pod(f"pod-{n}") for n in range(pods))) as stand:
        explained = (await stand.explain(prompt())).candidates
        picked = await stand.pick(prompt(), disaggregated=True)
    assert len(explained) == pods
    for told, others in (
        (picked.candidates, picked.candidates_left_out),
        (picked.decode_candidates, picked.decode_candidates_left_out),
    ):
        assert (len(told), others) == (pods - left_out, left_out)


async def test_a_prefill_takes_what_the_constants_say(stand: Stand) -> None:
    picked = await stand.pick(prompt())
    assert picked.candidates[0].predicted_ttft == pytest.approx(0.020 + 100 * 70e-6, rel=1e-3)


async def test_of_idle_pods_each_is_picked_and_never_by_their_order(stand: Stand) -> None:
    picked = []
    for one in range(60):
        answer = await stand.pick(prompt(first=1000 * one))
        picked.append(answer.candidates[0].pod)
        assert await stand.report(answer.booking_id, "FAILED")
    # One of them would be left out once in ten thousand million runs.
    assert set(picked) == {"a", "b", "c"}
    assert picked != sorted(picked)


async def test_explain_names_a_rank_that_answers_nothing_and_that_picks_avoid(stand: Stand) -> None:
    for one in range(2 * ENOUGH):
        name = (await stand.pick(prompt(first=1000 * one), pods=["a"])).booking_id
        await stand.report(name, "FIRST_TOKEN")
        await stand.report(name, "FINISHED")
    hung = await stand.pick(prompt(), pods=["a"])
    while "a" in by_pod((await stand.explain(prompt())).candidates):
        await asyncio.sleep(0.01)
    told = await stand.explain(prompt())
    assert "Rank 0 of a, which has answered nothing for " in told.reason
    assert (await stand.pick(prompt())).candidates[0].pod != "a"
    assert "left out" not in (await stand.explain(prompt(), pods=["a"])).reason
    await stand.report(hung.booking_id, "FIRST_TOKEN")
    told = await stand.explain(prompt())
    assert sorted(by_pod(told.candidates)) == ["a", "b", "c"]
    assert "left out" not in told.reason


async def test_reports_move_release_and_end_a_booking(unending: Stand) -> None:
    stand = unending
    answer = await stand.pick(prompt())
    name, best, other = answer.booking_id, answer.candidates[0].pod, answer.candidates[1].pod

    async def load() -> dict[str, tuple[float, int, int]]:
        told = (await stand.explain(prompt(first=900))).candidates
        return {
            one.pod: (one.details.wait_seconds > 0, one.details.waiting, one.details.in_flight)
            for one in told
        }

    assert (await load())[best] == (True, 1, 1)
    assert await stand.report(name, "STARTED", pod=other)
    assert (await load())[best] == (False, 0, 0)
    assert (await load())[other] == (True, 1, 1)
    assert await stand.report(name, "FIRST_TOKEN", cached_tokens=0, prompt_tokens=100)
    assert (await load())[other] == (False, 0, 1)
    assert await stand.report(name, "FINISHED", cached_tokens=0, prompt_tokens=100)
    assert set((await load()).values()) == {(False, 0, 0)}
    assert not await stand.report(name, "FINISHED")
    [decision] = await stand.decisions()
    assert (decision.pod, decision.candidates[0].pod) == (other, best)
    assert decision.state == pb.Decision.FINISHED
    assert decision.cached_tokens == 0
    assert decision.ttft > 0


async def test_what_is_never_reported_expires_though_no_other_pick_comes(tmp_path: Path) -> None:
    async with standing(tmp_path, THREE + "[booking]\nexpire-seconds = 0.01\n") as stand:
        await stand.pick(prompt())

        async def is_over() -> bool:
            [decision] = await stand.decisions()
            return decision.state == pb.Decision.EXPIRED

        await until(is_over)


async def test_bad_picks_are_refused_with_the_field_and_its_limit(stand: Stand) -> None:
    loads = [pb.PodLoad(pod="a"), pb.PodLoad(pod="b", kv_usage=1.5)]
    for fields, problem in [
        ({"session_id": "s" * 257}, "session_id: is longer than 256 bytes"),
        ({"session_id": "é" * 129}, "session_id: is longer than 256 bytes"),
        ({"tenant": "t" * 257}, "tenant: is longer than 256 bytes"),
        ({"loads": loads}, "loads[1].kv_usage: is 1.5, not 0 to 1"),
        ({"loads": [pb.PodLoad(kv_usage=math.nan)]}, "loads[0].kv_usage: is nan"),
        ({"loads": [pb.PodLoad(age=-1)]}, "loads[0].age: is -1.0 s, not 0 or more"),
        ({"loads": [pb.PodLoad(running=2**32 - 1)]}, "loads[0]: has more than"),
        ({"policy": "warmest"}, "policy: no policy 'warmest'; known: least-load, llmd-token"),
    ]:
        for call in (stand.pick, stand.explain):
            with ends_with(grpc.StatusCode.INVALID_ARGUMENT, problem):
                await call(prompt(), **fields)
    with ends_with(grpc.StatusCode.INVALID_ARGUMENT, "parent_session_id: is longer than 256 bytes"):
        await stand.pick(prompt(), parent_session_id="s" * 257)
    with ends_with(grpc.StatusCode.INVALID_ARGUMENT, "client: is longer than 1024 bytes"):
        await stand.pick(prompt(), client="c" * 1025)
    assert not await stand.decisions()


async def test_where_there_is_no_pod_it_is_said_which(stand: Stand) -> None:
    for fields, problem in [
        ({"pods": ["x", "y"]}, "none of the 2 named pods serves 'demo'"),
        ({"disaggregated": True, "pods": ["x"]}, "none of the 1 named pods serves 'demo'"),
    ]:
        with ends_with(grpc.StatusCode.UNAVAILABLE, problem):
            await stand.pick(prompt(), **fields)
    with ends_with(grpc.StatusCode.NOT_FOUND):
        await stand.pick(prompt(model="other"))
    answer = await stand.pick(prompt(), pods=["x", "b"])
    assert [one.pod for one in answer.candidates] == ["b"]


async def test_bad_reports_are_refused_and_change_nothing(stand: Stand) -> None:
    name = (await stand.pick(prompt())).booking_id
    for event, fields, problem in [
        ("EVENT_UNSPECIFIED", {}, "event: is missing; give STARTED, FIRST_TOKEN, FINISHED, FAILED"),
        ("EVENT_UNSPECIFIED", {"cached_tokens": 16}, "event: is missing"),
        ("STARTED", {"pod": "x"}, "pod: is 'x'; the router knows no such pod"),
        ("STARTED", {"pod": "a", "rank": 1}, "rank: is 1; the ranks of pod 'a' are 0 to 0"),
        ("FINISHED", {"cached_tokens": 91, "prompt_tokens": 90}, "cached_tokens: is 91; the prompt has 90 tokens"),
        ("FINISHED", {"loads": [pb.PodLoad(kv_usage=-1)]}, "loads[0].kv_usage: is -1.0"),
    ]:  # fmt: skip
        with ends_with(grpc.StatusCode.INVALID_ARGUMENT, problem):
            await stand.report(name, event, **fields)
    unknown = pb.ReportRequest(booking_id=name, event=77)  # type: ignore[arg-type]
    assert "event: is 77, not an event" in (await stand.refused(stand.stub.Report(unknown)))[1]
    assert "booking_id: is missing" in (await stand.refused(stand.report("", "FINISHED")))[1]
    [decision] = await stand.decisions()
    assert decision.state == pb.Decision.PICKED
    assert not decision.HasField("cached_tokens")
    assert await stand.report(name, "FIRST_TOKEN", prompt_tokens=120)
    assert await stand.report(name, "FINISHED", cached_tokens=110), (
        "an engine's template may make more tokens than ours: its end counts all the same"
    )


STARTED, FIRST_TOKEN, FINISHED = (
    pb.ReportRequest.STARTED, pb.ReportRequest.FIRST_TOKEN, pb.ReportRequest.FINISHED,
)  # fmt: skip


@pytest.mark.parametrize("transport", ["nghttp2", "grpcio"])
@pytest.mark.parametrize("picks", [2, REPORTS_AT_ONCE + 2])
async def test_reports_of_one_call_are_carried_out_in_their_order_and_each_is_answered_and_counted(
    tmp_path: Path, transport: str, picks: int
) -> None:
    async with standing(tmp_path, THREE, metrics="127.0.0.1:0", transport=transport) as stand:
        names = [(await stand.pick(prompt())).booking_id for _ in range(picks)]
        also = [pb.Report(booking_id=name, event=FINISHED) for name in names[1:]]
        also += [pb.Report(booking_id="?", event=FINISHED), also[-1]]
        request = pb.ReportRequest(booking_id=names[0], event=FIRST_TOKEN, also=also)
        answer = await stand.stub.Report(request)
        states = {one.booking_id: one.state for one in await stand.decisions()}
        counts = await metrics_of(stand.http_address)
    assert answer == pb.ReportResponse(known=True, also_known=[True] * (picks - 1) + [False] * 2)
    assert states == dict.fromkeys(names, pb.Decision.FINISHED) | {
        names[0]: pb.Decision.FIRST_TOKEN
    }
    assert counts['warmpath_requests_total{code="OK",method="Report"}'] == picks + 2


async def test_one_bad_report_of_a_call_refuses_it_whole_by_its_place(stand: Stand) -> None:
    name = (await stand.pick(prompt())).booking_id
    good = pb.Report(booking_id=name, event=FINISHED)
    for also, problem in [
        ([pb.Report(event=FINISHED)], "also[0].booking_id: is missing"),
        ([good, pb.Report(booking_id="x")], "also[1].event: is missing"),
        ([good, pb.Report(booking_id="x", event=STARTED, pod="x")], "also[1].pod: is 'x'; the router knows no such pod"),
        ([pb.Report(booking_id="x", event=FINISHED, served="s" * 4097)], "also[0].served: is longer than"),
        ([good] * 257, "also: has more than 256 entries"),
    ]:  # fmt: skip
        with ends_with(grpc.StatusCode.INVALID_ARGUMENT, problem):
            await stand.report(name, "FIRST_TOKEN", also=also)
    [decision] = await stand.decisions()
    assert decision.state == pb.Decision.PICKED
    assert await stand.report(name, "FIRST_TOKEN", also=[good] * 256)


async def test_explain_tells_what_a_cost_is_made_of_and_books_nothing(stand: Stand) -> None:
    load = pb.PodLoad(pod="b", running=3, waiting=2, kv_usage=0.5, age=0.5)
    await stand.pick(prompt(first=900), loads=[load])
    told = await stand.explain(prompt(), session_id="s")
    again = await stand.explain(prompt(), session_id="s")
    assert [one.pod for one in again.candidates] == [one.pod for one in told.candidates]
    assert len(await stand.decisions()) == 1, "explaining is no decision"
    for one in told.candidates:
        details = one.details
        names = [term.name for term in details.terms]
        assert names == ["wait", "prefill", "others", "decode", "displaced"]
        assert one.cost == pytest.approx(sum(term.value for term in details.terms))
        assert one.trust.level == pb.Trust.COLD
        assert "no events" in one.trust.reason
        assert details.calibration == 1.0
    loaded = by_pod(told.candidates)["b"].details
    assert loaded.load_source == "gateway"
    assert 0.5 <= loaded.load_age < 5
    assert (loaded.queue, loaded.kv_usage, loaded.waiting) == (2, 0.5, 2)
    assert loaded.in_flight >= 5
    assert loaded.wait_seconds > 0
    assert by_pod(told.candidates)["a"].details.load_source == "bookings"
    assert not by_pod(told.candidates)["a"].details.HasField("load_age")
    assert told.candidates[-1].pod == "b"
    assert told.policy == "warmpath"
    assert told.reason.startswith(
        f"no candidate has any of the 100 tokens cached, and {told.candidates[0].pod} has"
    )
    assert told.prompt_tokens == 100


async def test_a_pick_counts_for_the_client_that_its_caller_names(tmp_path: Path) -> None:
    async with standing(tmp_path, THREE, metrics="127.0.0.1:0") as stand:
        for client in ("own-cli/1.2 (x)", "own-cli", ""):
            await stand.pick(prompt(), client=client)
        told = await metrics_of(stand.http_address)
    counted = {
        client: told[
            f'warmpath_client_prompt_tokens_total{{client="{client}",model="demo",tenant=""}}'
        ]
        for client in ("own-cli", "")
    }
    assert counted["own-cli"] == 2 * counted[""] > 0


@pytest.mark.parametrize("is_on", [True, False])
async def test_a_chat_names_its_session_where_the_caller_does_not(
    tmp_path: Path, *, is_on: bool
) -> None:
    keys = "" if is_on else "[endpoint-picker]\nsession-in-body = false\n"
    async with standing(tmp_path, keys + THREE) as stand:
        body = b'{"messages": [{"role": "user", "content": "hi"}], "prompt_cache_key": "key"}'
        for prompt in (
            pb.Prompt(model="demo", chat_body=body),
            pb.Prompt(
                model="demo", completions_body=b'{"prompt": [1, 2], "prompt_cache_key": "key"}'
            ),
        ):
            for given, session in (("", "key" * is_on), ("own", "own")):
                await stand.pick(prompt, session_id=given)
                assert (await stand.decisions(limit=1))[0].session_id == session


async def test_decisions_are_listed_newest_first_by_model_pod_and_session_without_the_prompt(
    tmp_path: Path, model_folder: Path
) -> None:
    other = '[[models]]\nname = "other"\n'
    pods = THREE + pod("d").replace('"demo"', '"other"')
    secret = "the launch code is the name of my first hamster"
    folder = f'tokenizer = "{model_folder}"'
    async with standing(tmp_path, other + pods, models=folder) as stand:
        text = pb.Prompt(model="demo", text=secret)
        for asked in (prompt(), text, prompt(first=500), prompt(model="other")):
            await stand.pick(asked, session_id=f"of {asked.model}")
        listed = await stand.decisions()
        assert [one.prompt_tokens for one in listed][::3] == [100, 100]
        assert [one.at for one in listed] == sorted((one.at for one in listed), reverse=True)
        assert [one.model for one in await stand.decisions(limit=2)] == ["other", "demo"]
        assert len(await stand.decisions(model="demo")) == 3
        assert [one.model for one in await stand.decisions(pod="d")] == ["other"]
        assert {one.model for one in await stand.decisions(session_id="of demo")} == {"demo"}
        chosen = listed[-1].candidates[0].pod
        assert listed[-1] in await stand.decisions(pod=chosen)
        assert not await stand.decisions(pod="nowhere")
        whole = b"".join(one.SerializeToString() for one in listed) + str(listed).encode()
        assert b"hamster" not in whole
        assert prompt().token_ids_packed[:8] not in whole
        assert b"100, 101" not in whole
        for one in listed:
            assert one.reason
            assert one.policy == "warmpath"
            assert len(one.candidates) == (1 if one.model == "other" else 3)
            assert not one.candidates[0].HasField("details") or one.candidates[0].details.terms


async def test_the_policy_of_a_request_is_used_and_named(stand: Stand) -> None:
    turns = [(await stand.pick(prompt(), policy="round-robin")).candidates[0].pod for _ in range(6)]
    assert sorted(turns[:3]) == ["a", "b", "c"]
    assert turns[3:] == turns[:3]
    assert (await stand.decisions(limit=1))[0].policy == "round-robin"
    told = await stand.explain(prompt(), policy="llmd-token")
    assert told.policy == "llmd-token"
    assert told.reason.startswith("llmd-token puts")


async def test_pods_without_events_are_believed_to_hold_what_was_sent_to_them(stand: Stand) -> None:
    answer = await stand.pick(prompt(1000))
    home = answer.candidates[0].pod
    assert answer.candidates[0].matched_tokens == 0
    await stand.report(answer.booking_id, "FIRST_TOKEN")
    await stand.report(answer.booking_id, "FINISHED", cached_tokens=0, prompt_tokens=1000)
    again = await stand.pick(prompt(1200))
    assert again.candidates[0].pod == home
    assert again.candidates[0].matched_tokens == 960, "whole blocks of 64 tokens"
    assert again.candidates[0].believed_tokens == 960
    scores = (await stand.stub.Score(pb.ScoreRequest(prompt=prompt(1200)))).scores
    found = {one.pod: (one.matched_tokens, one.believed_tokens) for one in scores}
    assert found.pop(home)[1] > 0
    assert set(found.values()) == {(0, 0)}
    details = by_pod((await stand.explain(prompt(1200))).candidates)[home].details
    assert details.assumed_tokens == 1152, "the second prompt was sent there too"
    assert details.tiers == []


async def test_a_prompt_that_fills_its_last_block_is_assumed_to_leave_it_to_longer_ones(
    stand: Stand,
) -> None:
    home = (await stand.pick(prompt(1024))).candidates[0].pod
    same = by_pod((await stand.explain(prompt(1024))).candidates)[home].details
    assert same.assumed_tokens == 960, "the last token is computed anew"
    longer = by_pod((await stand.explain(prompt(1200))).candidates)[home].details
    assert longer.assumed_tokens == 1024


async def test_another_salt_and_another_adapter_are_not_assumed(stand: Stand) -> None:
    await stand.pick(prompt(1000, cache_salt="mine"))
    for asked in (prompt(1000), prompt(1000, cache_salt="x"), prompt(1000, lora="tuned")):
        told = await stand.explain(asked)
        assert all(not one.matched_tokens for one in told.candidates)


async def test_shadow_picks_follow_the_caller_and_tell_what_was_missed(stand: Stand) -> None:
    first = await stand.pick(prompt(1000), shadow=True, session_id="s")
    told = await stand.explain(prompt(1000), session_id="s")
    assert all(not one.details.in_flight for one in told.candidates), "nothing is booked yet"
    assert all(not one.matched_tokens for one in told.candidates)
    assert await stand.report(first.booking_id, "STARTED", pod="a")
    details = by_pod((await stand.explain(prompt(1000), session_id="s")).candidates)["a"].details
    assert (details.in_flight, details.assumed_tokens) == (1, 960)
    await stand.report(first.booking_id, "FIRST_TOKEN")
    await stand.report(first.booking_id, "FINISHED", cached_tokens=0, prompt_tokens=1000)
    second = await stand.pick(prompt(1000), shadow=True)
    assert second.candidates[0].pod == "a"
    await stand.report(second.booking_id, "STARTED", pod="b")
    await stand.report(second.booking_id, "FINISHED", cached_tokens=0, prompt_tokens=1000)
    diagnosis = await stand.diagnose()
    [saved] = diagnosis.shadows
    assert (saved.model, saved.requests, saved.prompt_tokens) == ("demo", 2, 2000)
    assert (saved.chosen_tokens, saved.warmpath_tokens) == (0, 960)
    assert saved.warmpath_ttft < saved.chosen_ttft
    rows = {one.pod: one for one in diagnosis.attributions}
    assert rows["b"].available_tokens == 960
    assert rows["b"].captured_tokens == 0
    assert {one.shadow for one in await stand.decisions()} == {True}


async def test_attribution_counts_what_was_there_caught_foretold_and_found(stand: Stand) -> None:
    for cached in (0, 900):
        answer = await stand.pick(prompt(1000))
        await stand.report(answer.booking_id, "FIRST_TOKEN")
        counts = {"cached_tokens": cached, "prompt_tokens": 1000, "output_tokens": 50}
        await stand.report(answer.booking_id, "FINISHED", **counts)
    [row] = (await stand.diagnose()).attributions
    assert row.pod == answer.candidates[0].pod
    assert (row.requests, row.prompt_tokens) == (2, 2000)
    assert (row.available_tokens, row.captured_tokens) == (960, 960)
    assert 0 < row.average_tokens < row.captured_tokens
    assert (row.reported_requests, row.reported_prompt_tokens) == (2, 2000)
    assert (row.predicted_tokens, row.delivered_tokens) == (960, 900)
    assert row.output_tokens == 100


async def test_prefill_and_decoding_are_placed_apart_by_role(tmp_path: Path) -> None:
    pods = "".join(
        pod(f"{role[0]}{n}", role=role) for role in ("prefill", "decode") for n in (1, 2)
    )
    async with standing(tmp_path, QUIET + pods) as stand:
        answer = await stand.pick(prompt(1000), disaggregated=True)
        assert sorted(one.pod for one in answer.candidates) == ["p1", "p2"]
        assert sorted(one.pod for one in answer.decode_candidates) == ["d1", "d2"]
        second = await stand.pick(prompt(1000, first=5000), disaggregated=True)
        assert second.candidates[0].pod != answer.candidates[0].pod
        assert second.decode_candidates[0].pod != answer.decode_candidates[0].pod
        await stand.report(answer.booking_id, "FIRST_TOKEN")
        told = await stand.explain(prompt(1000, first=9000), disaggregated=True)
        prefill = by_pod(told.candidates)[answer.candidates[0].pod].details
        decode = by_pod(told.decode_candidates)[answer.decode_candidates[0].pod].details
        assert prefill.in_flight == 0
        assert decode.in_flight == 1
        assert [term.name for term in decode.terms] == ["move", "decode", "full"]
        await stand.report(answer.booking_id, "FINISHED")
        await stand.report(second.booking_id, "FAILED")
        told = await stand.explain(prompt(1000, first=9000), disaggregated=True)
        both = [*told.candidates, *told.decode_candidates]
        assert all(not one.details.in_flight for one in both)
        problem = "no pod of 'demo' that may be picked has the role decode"
        with ends_with(grpc.StatusCode.UNAVAILABLE, problem):
            await stand.pick(prompt(), disaggregated=True, pods=["p1", "p2"])
