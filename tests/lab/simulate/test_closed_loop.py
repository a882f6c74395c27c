"""Sessions in a closed loop: each request follows the answer before it."""

import heapq
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lab.simulate.cells import outcome
from warmpath.lab.simulate.cell import Cell
from warmpath.lab.simulate.closed_loop import START_GAP, ClosedLoop
from warmpath.lab.simulate.command import main
from warmpath.lab.simulate.traffic.access_log import read_traffic
from warmpath.lab.simulate.traffic.requests import LoggedRequest
from warmpath.lab.simulate.traffic.sessions import Session, Thread, sessions_of

ANSWER = 2.0
PAUSES = st.lists(st.floats(0, 50), min_size=1, max_size=4)
SESSIONS = st.lists(
    st.tuples(PAUSES, st.lists(st.tuples(st.integers(0, 3), st.floats(0, 20), PAUSES), max_size=2)),
    min_size=1,
    max_size=6,
)


def made(pauses: Sequence[float]) -> list[LoggedRequest]:
    return [LoggedRequest(0.0, 64, 1, (1,), pause=pause) for pause in pauses]


@given(found=SESSIONS, at_once=st.integers(0, 3), seed=st.integers(0, 9))
def test_each_request_follows_the_answer_before_it(
    found: Sequence[Any], at_once: int, seed: int
) -> None:
    sessions = [
        Session(
            str(number),
            [Thread(made(own))]
            + [Thread(made(of), min(at, len(own) - 1), delay) for at, delay, of in agents],
        )
        for number, (own, agents) in enumerate(found)
    ]
    loop = ClosedLoop(sessions, at_once=at_once, rate=0.5, rng=Random(seed))
    sent: dict[int, float] = {}
    under_way: dict[int, int] = {}
    most = 0
    heap = [(due.at, due.number, False) for due in loop.begin(0.0)]
    heapq.heapify(heap)
    while heap:
        now, number, ends = heapq.heappop(heap)
        place = loop.session[number]
        if ends:
            under_way[place] -= 1
            dues = loop.ended(number, now)
        else:
            assert number not in sent
            sent[number] = now
            under_way[place] = under_way.get(place, 0) + 1
            heapq.heappush(heap, (now + ANSWER, number, True))
            dues = loop.sent(number, now)
        for due in dues:
            heapq.heappush(heap, (due.at, due.number, False))
        most = max(most, len({loop.session[one] for one in sent} - loop.took.keys()))
    assert sent.keys() == set(range(len(loop.requests)))
    if at_once:
        assert most <= at_once
    first = 0
    for place, session in enumerate(sessions):
        begins = first
        last = 0.0
        for thread in session.threads:
            at = sent[first]
            if first > begins:
                assert at == pytest.approx(sent[begins + thread.follows] + thread.delay)
            for step, one in enumerate(thread.requests[1:], 1):
                assert one.pause is not None
                assert sent[first + step] == pytest.approx(
                    sent[first + step - 1] + ANSWER + one.pause
                )
            first += len(thread.requests)
            last = max(last, sent[first - 1] + ANSWER)
        assert loop.took[place] == pytest.approx((sent[begins], last))
    if at_once:
        assert min(sent.values()) <= START_GAP * at_once


def turn(at: float, pause: float, tokens: int, answer: int) -> dict[str, object]:
    runs = [[1, tokens // 64]] if tokens >= 64 else []
    return {"at": at, "pause": pause, "in": tokens, "out": answer, "blocks": runs}


OWN = {
    "session": "s",
    "model": "m",
    "tool_tokens": 128,
    "system_tokens": 128,
    "requests": [turn(0, 0, 1280, 200), turn(9, 4.0, 1920, 20), turn(20, 5.0, 2560, 20)],
}
AGENT = {"session": "s.1", "parent": "s", "starts": 10.0, "requests": [turn(0, 0, 640, 10)]}
ALIKE = {**OWN, "session": "other"}


def write(path: Path, *lines: Mapping[str, object]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_recorded_sessions_begin_alike_and_have_blocks_of_their_own(tmp_path: Path) -> None:
    traffic = read_traffic(write(tmp_path / "a", OWN, AGENT, ALIKE))
    assert (traffic.is_closed, traffic.block_size) == (True, 64)
    own, other = sessions_of(traffic.requests, 64, 4.5)
    assert [[one.pause for one in thread.requests] for thread in own.threads] == [[0, 4, 4.5], [0]]
    # The sub-agent came a second after the second request.
    assert (own.threads[1].follows, own.threads[1].delay) == (1, 1.0)
    first, second = own.threads[0].requests[:2]
    assert second.keys[:20] == first.keys
    assert first.answer_keys == second.keys[20:23], "1,280 tokens and an answer of 200"
    assert other.threads[0].requests[0].keys[:3] == first.keys[:3], "3/4 of 256 tokens"
    assert not {*other.threads[0].requests[0].keys[3:]} & {*first.keys}


def test_a_session_by_itself_takes_its_time_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "a", OWN, AGENT, ALIKE)
    found = outcome(Cell(path, "warmpath", 2, 1000, sessions=1))
    assert (found.sessions, found.requests) == (2, 7)
    assert found.slowed_p90 == pytest.approx(1.0, abs=0.02)
    crowd = outcome(Cell(path, "warmpath", 1, 1000, sessions=2))
    assert crowd.slowed_p90 > found.slowed_p90


def test_as_many_tokens_come_beside_sessions(tmp_path: Path) -> None:
    path = write(tmp_path / "a", OWN, AGENT, ALIKE)
    line = {"timestamp": 0, "input_length": 2000, "output_length": 9, "hash_ids": [1, 2, 3, 4]}
    chats = write(tmp_path / "b", line)
    found = outcome(Cell(path, "warmpath", 2, 1000, sessions=2, beside=str(chats)))
    # The sessions have 12,160 tokens; each round of the chats has blocks of its own.
    assert (found.sessions, found.requests, found.refused) == (2, 7 + 7, 0)
    assert found.beside_ttft_p90_s > 0 < found.sessions_ttft_p90_s
    without = outcome(Cell(path, "warmpath", 2, 1000, sessions=2, has_agents=False))
    assert (without.requests, without.beside_ttft_p90_s) == (6, 0.0)
    with pytest.raises(ValueError, match="b: no request fits"):
        outcome(Cell(path, "warmpath", 2, 31, sessions=2, beside=str(chats)))


def test_an_answers_blocks_are_the_next_prompts_in_vllm(tmp_path: Path) -> None:
    path = write(tmp_path / "a", OWN)
    serial, vllm = (
        outcome(Cell(path, "warmpath", 1, 1000, sessions=1, engine=engine)).token_hit_ratio
        for engine in ("serial", "vllm")
    )
    # Of 5,760 tokens serial engines find the first prompts' 20 and 30 blocks; vLLM also the answer's 3.
    assert serial == pytest.approx((1280 + 1920) / 5760, abs=1e-5)
    assert vllm == pytest.approx((1280 + 192 + 1920) / 5760, abs=1e-5)


def test_logs_and_traces_with_sessions_make_a_closed_loop(tmp_path: Path) -> None:
    log = [
        {"timestamp": at, "request_time": took, "output_tokens": 5, "text": "x" * 99, "session": 7}
        for at, took in ((100.0, 3.0), (110.0, 2.0))
    ]
    [logged] = sessions_of(read_traffic(write(tmp_path / "log", *log)).requests, 16, 60.0)
    # The second request came at 108, eight seconds after the first answer's end.
    assert [one.pause for one in logged.threads[0].requests] == [0.0, 8.0]
    mooncake = [
        {"timestamp": at, "input_length": 9, "output_length": 1, "hash_ids": [1], **more}
        for at, more in ((0, {"session_id": "a"}), (5000, {"session_id": "a", "delay": 700}))
    ]
    [traced] = sessions_of(read_traffic(write(tmp_path / "trace", *mooncake)).requests, 512, 60.0)
    assert [one.pause for one in traced.threads[0].requests] == [0.0, 0.7]


@pytest.mark.parametrize(
    ("line", "args", "why"),
    [
        (OWN, [], "--sessions N runs N at once"),
        (OWN, ["--sessions", "0"], "--sessions is [0], not above 0"),
        (OWN, ["--sessions", "2", "--load", "0.5"], "--load and --sessions"),
        (OWN, ["--sessions", "2", "--outage", "5"], "--outage: a closed loop has no half"),
        (OWN, ["--sessions", "2", "--blocks-per-pod", "9"], "--blocks-per-pod is 9: no session"),
        ({**OWN, "requests": []}, ["--sessions", "2"], "requests"),
        ({**OWN, "requests": [turn(0, -1, 64, 1)]}, ["--sessions", "2"], "pause"),
        (
            {**OWN, "requests": [{**turn(0, 0, 640, 1), "blocks": []}]},
            ["--sessions", "1"],
            "blocks: 0 for 640",
        ),
        (
            {"timestamp": 1, "output_tokens": 5, "text": "x"},
            ["--sessions", "1"],
            "session: no request has one",
        ),
    ],
)
def test_what_makes_no_closed_loop_is_refused(
    tmp_path: Path,
    line: Mapping[str, object],
    args: Sequence[str],
    why: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--trace", str(write(tmp_path / "a", line)), *args]) == 2
    assert why in capsys.readouterr().err


def test_the_table_shows_sessions_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a", OWN, AGENT, ALIKE)
    given = ["--session-rate", "0.1", "--processes", "1", "--policy", "warmpath,round-robin"]
    assert main(["--trace", str(path), *given]) == 0
    told = capsys.readouterr().out
    assert "0.1 sessions a second; 7 requests, of 2 sessions" in told
    assert "session p50 x" in told
