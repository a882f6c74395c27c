"""The last decisions: their ring, candidates as messages, the log and its file, and the clock of their times."""

import json
import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.examples import examples
from tests.router.consistent import check
from tests.router.pages.stand import pods
from tests.router.pick.weighed import choice, option, placed
from tests.router.pick_stand import QUIET, pod, prompt, standing
from tests.router.running_router import running_router
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc
from warmpath.router.diagnosis import decisions as decision_log
from warmpath.router.diagnosis.decisions import (
    ENDS,
    KEPT_CANDIDATES,
    STEP_SECONDS,
    DecisionLog,
    Decisions,
    wall_offset_of,
    write_now,
)
from warmpath.router.load.correction import Part
from warmpath.router.pick.messages import candidate_message, source_message
from warmpath.router.pick.pick import End, Pick


def test_a_candidate_as_pick_gives_it_has_no_details() -> None:
    one = candidate_message(option("pod-a", 800, arriving=960, wait=0.25), 1000.0)
    assert not one.HasField("details")
    assert (one.pod, one.rank, one.address) == ("pod-a", 0, "pod-a:8000")
    assert (one.matched_tokens, one.believed_tokens, one.outstanding_tokens) == (960, 160, 70)
    assert one.predicted_ttft == one.cost == 0.25 + 0.64
    assert (one.trust.level, one.trust.since) == (pb.Trust.EXACT, 1005.0)


def test_details_say_what_the_cost_is_made_of_and_where_the_load_is_from() -> None:
    parts = [Part("booked wait", 0.25, "bookings", 0.0), Part("queue", 3, "engine", 1.5)]
    details = candidate_message(option("pod-a", 800, arriving=960, wait=0.25), 0.0, parts).details
    assert details.tiers == [pb.TierTokens(tier="gpu", tokens=800)]
    assert (details.arriving_tokens, details.assumed_tokens) == (960, 0)
    assert (details.wait_seconds, details.prefill_seconds) == (0.25, 0.64)
    assert (details.load_source, details.load_age) == ("engine", 1.5)
    assert {term.name: term.value for term in details.terms} == {"wait": 0.25, "prefill": 0.64}
    booked = candidate_message(option("pod-a"), 0.0, parts[:1]).details
    assert booked.load_source == "bookings"
    assert not booked.HasField("load_age")


def test_a_context_beyond_what_a_message_holds_is_told_as_the_most() -> None:
    big = option("pod-a")
    load = big.candidate.load._replace(context_tokens=1 << 40)
    big = big._replace(candidate=big.candidate._replace(load=load))
    assert candidate_message(big, 0.0, ()).details.context_tokens == (1 << 32) - 1


def test_the_source_is_told_with_what_it_is_known_to_hold() -> None:
    made = choice(option("cold"), option("busy", 800, arriving=960, wait=9.0))
    assert made.source is not None
    told = source_message(made.source)
    assert told == pb.Source(pod="busy", address="busy:8000", matched_tokens=800)


def pick(decisions: Decisions, pods: Sequence[str] = "ab", model: str = "m") -> Pick:
    made = choice(*(option(pod, 800 - 16 * at) for at, pod in enumerate(pods)))
    one = placed(made, model=model)
    decisions.picked(one, made)
    return one


def end(decisions: Decisions, one: Pick, how: End) -> None:
    one.end = how
    decisions.ended(one, how, 200.0)


def test_a_decision_keeps_its_best_candidates_and_the_reason() -> None:
    decisions = Decisions(wall_offset=lambda: 1000.0)
    pick(decisions, "abcdef")
    (told,) = decisions.listed()
    assert [one.pod for one in told.candidates] == list("abcd")
    assert all(one.HasField("details") for one in told.candidates)
    assert told.reason.startswith("a has 800 of 1,600 tokens cached")
    assert told.at == 1100.0
    assert (told.state, told.pod) == (pb.Decision.PICKED, "a")
    assert not told.HasField("cached_tokens")
    assert not told.HasField("ttft")


@pytest.mark.parametrize("most", [0, 3])
def test_only_the_last_ones_are_kept(most: int) -> None:
    decisions = Decisions(most)
    picks = [pick(decisions) for _ in range(5)]
    for one in picks:
        end(decisions, one, "expired")
    last = [one.booking_id for one in picks[::-1]][:most]
    assert [one.booking_id for one in decisions.listed()] == last
    check(decisions)


def test_a_session_is_listed_with_its_sub_agents() -> None:
    decisions = Decisions()
    picks = [pick(decisions) for _ in range(4)]
    for one, session, parent in zip(picks, ("s", "agent", "t", ""), ("", "s", "", ""), strict=True):
        one.session, one.parent_session = session, parent
    for session, found in (
        ("s", [1, 0]),
        ("agent", [1]),
        ("t", [2]),
        ("u", []),
        ("", [3, 2, 1, 0]),
    ):
        listed = decisions.listed(pb.ListDecisionsRequest(session_id=session))
        assert [one.booking_id for one in listed] == [picks[at].booking_id for at in found]


class AnyReports(RuleBasedStateMachine):
    """Picks and reports in any order, of decisions that are kept and of others."""

    def __init__(self) -> None:
        super().__init__()
        self.decisions = Decisions(4)
        self.picks: list[Pick] = []
        self.states: dict[str, int] = {}

    @rule(pods=st.permutations("abcdef"), count=st.integers(1, 6))
    def pick(self, pods: list[str], count: int) -> None:
        one = pick(self.decisions, pods[:count])
        self.picks.append(one)
        self.states[one.booking_id] = pb.Decision.PICKED

    @precondition(lambda self: self.picks)
    @rule(data=st.data(), event=st.sampled_from(["started", "first_token", *ENDS]))
    def report(self, data: st.DataObject, event: str) -> None:
        one = data.draw(st.sampled_from(self.picks))
        state = self.states[one.booking_id]
        if event == "started":
            one.is_started = True
            state = max(state, pb.Decision.STARTED)
        elif event == "first_token":
            one.first_token_at = 102.0
            state = pb.Decision.FIRST_TOKEN
        else:
            # The picker tells nothing after an end.
            self.picks.remove(one)
            end(self.decisions, one, event)  # type: ignore[arg-type]
            state = ENDS[event]  # type: ignore[index]
        self.states[one.booking_id] = state

    @invariant()
    def the_last_ones_are_listed_as_they_are(self) -> None:
        check(self.decisions)
        last = list(self.states.items())[::-1][:4]
        listed = self.decisions.listed()
        assert [(one.booking_id, one.state) for one in listed] == last
        assert all(len(one.candidates) <= KEPT_CANDIDATES for one in listed)


TestAnyReports = AnyReports.TestCase
TestAnyReports.settings = settings(max_examples=examples(30), stateful_step_count=30, deadline=None)


def logged(log: DecisionLog) -> Pick:
    made = choice(option("a", 800), option("b", 960, wait=5.0))
    one = placed(made)
    log.picked(one, made)
    return one


def test_a_line_has_the_ids_of_the_request_its_trace_and_its_session() -> None:
    log = DecisionLog(1.0, Random(1), wall_offset=lambda: 0.0)
    made = choice(option("a", 800))
    one = placed(made)
    one.request_id, one.trace_id = "r-1", "0af7651916cd43dd8448eb211c80319c"
    one.session, one.parent_session, one.ends_session = "agent", "s", True
    log.picked(one, made)
    end(log, one, "finished")
    [raw] = log.taken()[0]
    line = json.loads(raw)
    assert (line["request_id"], line["trace_id"]) == (one.request_id, one.trace_id)
    told = [line[name] for name in ("session_id", "parent_session_id", "session_final")]
    assert told == ["agent", "s", True]


def test_a_pick_has_a_line_once_its_request_ends() -> None:
    log = DecisionLog(1.0, Random(1), wall_offset=lambda: 1000.0)
    one = logged(log)
    one.is_started, one.first_token_at, one.cached_tokens = True, 101.0, 790
    assert log.taken()[0] == []
    end(log, one, "finished")
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
    one = placed(made)
    one.end = "cancelled"
    log.withdrawn(one, made)
    [raw] = log.taken()[0]
    assert json.loads(raw)["state"] == "cancelled"


@given(st.integers(0, 60), st.sampled_from([0.0, 0.3, 1.0]), st.integers(0, 2**32))
def test_only_drawn_picks_have_lines(picks: int, share: float, seed: int) -> None:
    log = DecisionLog(share, Random(seed), wall_offset=lambda: 0.0)
    draw = Random(seed)
    drawn = sum(draw.random() < share for _ in range(picks))
    for one in [logged(log) for _ in range(picks)]:
        end(log, one, "finished")
    assert len(log.taken()[0]) == drawn


def test_lines_without_room_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_log, "MOST_LINES", 2)
    log = DecisionLog(1.0, Random(1), wall_offset=lambda: 0.0)
    for one in [logged(log) for _ in range(5)]:
        end(log, one, "failed")
    lines, dropped = log.taken()
    assert (len(lines), dropped, log.lost) == (2, 3, 3)
    assert (log.taken(), log.lost) == (([], 0), 3)


def ended() -> DecisionLog:
    log = DecisionLog(1.0, Random(1), wall_offset=lambda: 0.0)
    made = choice(option("a", 800))
    one = placed(made)
    log.picked(one, made)
    end(log, one, "finished")
    return log


async def test_lines_are_appended_also_after_the_file_was_moved_away(tmp_path: Path) -> None:
    file, old = tmp_path / "decisions.jsonl", tmp_path / "decisions.1"
    for _ in range(2):
        await write_now(ended(), file.name, tmp_path)
    file.rename(old)
    await write_now(ended(), file.name, tmp_path)
    await write_now(DecisionLog(1.0, Random(1), wall_offset=lambda: 0.0), file.name, tmp_path)
    assert (len(old.read_text().splitlines()), len(file.read_text().splitlines())) == (2, 1)
    assert file.stat().st_mode & 0o777 == 0o600


async def test_standard_output_gets_lines(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    await write_now(ended(), "-", tmp_path)
    assert json.loads(capfdbinary.readouterr().out)["pod"] == "a"


async def test_lines_that_cannot_be_written_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = ended()
    with caplog.at_level(logging.WARNING):
        await write_now(kept, "missing/decisions.jsonl", tmp_path)
    assert "pick.decision-log: 1 decisions are not logged: " in caplog.text
    assert "missing/decisions.jsonl: there is no such file or folder" in caplog.text
    assert kept.lost == 1


async def test_lines_without_room_are_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision_log, "MOST_LINES", 0)
    kept = ended()
    for _ in range(2):
        await write_now(kept, "decisions.jsonl", tmp_path)
    [said] = [one.getMessage() for one in caplog.records]
    assert "1 decisions are not logged: more than" in said


async def test_a_router_logs_its_decisions_and_no_prompt(tmp_path: Path) -> None:
    tables = '[pick]\ndecision-log = "decisions.jsonl"\n' + pods("pod-1")
    prompt = pb.Prompt(model="demo", text="an unmistakable word")
    async with running_router(tmp_path, tables) as (_, channel):
        stub = router_pb2_grpc.RouterStub(channel)
        picked = await stub.Pick(pb.PickRequest(prompt=prompt))
        event = pb.ReportRequest.FINISHED
        await stub.Report(pb.ReportRequest(booking_id=picked.booking_id, event=event))
    written = (tmp_path / "decisions.jsonl").read_text()
    assert json.loads(written)["booking_id"] == picked.booking_id
    assert "unmistakable" not in written


class Clock:
    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def test_the_offset_follows_the_clock_that_is_set_and_not_its_noise() -> None:
    wall, steady = Clock(100.0), Clock(7.0)
    offset = wall_offset_of(wall, steady)
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
    monkeypatch.setattr(
        "warmpath.router.assemble.picks.wall_offset_of", partial(wall_offset_of, begun)
    )
    async with standing(tmp_path, QUIET + pod("a") + '[pick]\nqueue = "on"\n') as stand:

        async def times() -> list[float]:
            picked = await stand.stub.Pick(pb.PickRequest(prompt=prompt(50)), timeout=30)
            [listed] = await stand.pods()
            decisions = await stand.stub.ListDecisions(pb.ListDecisionsRequest(), timeout=30)
            scored = await stand.stub.Score(pb.ScoreRequest(prompt=prompt(50)), timeout=30)
            explained = await stand.stub.Explain(pb.ExplainRequest(prompt=prompt(50)), timeout=30)
            return [
                picked.engine_priority / 1000, picked.candidates[0].trust.since,
                listed.ranks[0].trust.since, *(one.at for one in decisions.decisions),
                decisions.decisions[-1].candidates[0].trust.since, scored.scores[0].trust.since,
                explained.candidates[0].trust.since,
            ]  # fmt: skip

        for one in await times():
            assert abs(one - 1000.0) < 1e5
        begun.now = 2e9
        for one in await times():
            assert abs(one - 2e9) < 1e5
