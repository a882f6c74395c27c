"""`warmpath verify` on the recorded life of a real vLLM engine, and on other files."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.indexer.memory_index import MemoryIndex
from tests.recordings import VLLM_TRACE
from warmpath.indexer.engines import vllm
from warmpath.indexer.engines.event import Stored
from warmpath.indexer.keys.key import Keyspace, chain
from warmpath.indexer.trust import Level
from warmpath.lab.verify import recording
from warmpath.lab.verify.command import main
from warmpath.lab.verify.predict import Conditions, verify
from warmpath.lab.verify.recording import Frame, Life, read_recording

Lines = list[dict[str, Any]]


@pytest.fixture(scope="session")
def recorded() -> Lines:
    with gzip.open(VLLM_TRACE, "rt") as lines:
        return [json.loads(line) for line in lines]


def run(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main([str(path), "--json"]) == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    return printed


def write(path: Path, lines: Lines) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def test_what_is_predicted_is_what_the_engine_did(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run(VLLM_TRACE, capsys)
    assert outcome["requests"] == 260
    assert outcome["exact"] == 258
    assert outcome["overclaimed"] == 1  # the cache was reset without an event
    assert outcome["exact"] + len(outcome["mismatches"]) == outcome["requests"]
    assert outcome["trust"] == "exact"


def test_every_exception_is_explained_by_the_engines_own_rules(
    capsys: pytest.CaptureFixture[str],
) -> None:
    outcome = run(VLLM_TRACE, capsys)
    reasons = {miss["request"]: miss["reason"] for miss in outcome["mismatches"]}
    assert "samples of one prompt" in reasons.pop(113)
    assert "announces a reset only with its next step" in reasons.pop(228)
    assert not reasons


def test_a_wrong_report_of_the_engine_is_found(
    recorded: Lines, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = json.loads(json.dumps(recorded))
    victim = next(line for line in lines if line["kind"] == "request" and line["id"] == 20)
    victim["usage"]["prompt_tokens_details"]["cached_tokens"] += 64
    outcome = run(write(tmp_path / "wrong.jsonl", lines), capsys)
    miss = next(miss for miss in outcome["mismatches"] if miss["request"] == 20)
    assert miss["actual"] == miss["predicted"] + 64


def test_a_recording_without_events_in_the_middle_is_not_exact(
    recorded: Lines, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = [line for line in recorded if not (line["kind"] == "events" and line["seq"] == 40)]
    outcome = run(write(tmp_path / "lost.jsonl", lost[:300]), capsys)
    [lost_at] = [
        change for change in outcome["trust_changes"] if "40 to 40 are lost" in change["reason"]
    ]
    assert lost_at["trust"] == "degraded"


def test_the_readable_form_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(VLLM_TRACE)]) == 0
    text = capsys.readouterr().out
    assert "258 of 260 requests predicted exactly" in text
    assert "request 228" in text


def test_the_page_shows_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(VLLM_TRACE)]) == 0
    page = Path(__file__).resolve().parents[3] / "docs" / "guides" / "simulate-and-verify.md"
    assert capsys.readouterr().out in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it has no events"),
        ("{}\n", "line 1 is not an object with a kind"),
        ('{"kind": "events", "t": 1}\n', "line 1 (events): no field 'topic' among kind, t; is it a recording by `warmpath record`?"),
        ('{"kind": "note"}\n{"kind": "ev\n', "line 2 "),
        ('{"kind": "events", "t": 1, "topic": "", "seq": 0, "payload_hex": "zz"}\n', "line 1 (events): non-hexadecimal"),
        (
            '{"kind": "events", "t": 1, "topic": "", "seq": 9223372036854775808, "payload_hex": "90"}\n',
            "line 1 (events): seq is 9223372036854775808; it must be 9223372036854775807 or less",
        ),
        ('{"kind": "events", "t": 1, "topic": "", "seq": 0, "payload_hex": "90"}\n', "--enable-prompt-tokens-details"),
    ],
)  # fmt: skip
def test_what_is_no_recording_is_refused_with_its_line(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(text, encoding="utf-8")
    assert main([str(path)]) == 2
    assert message in capsys.readouterr().err


def test_a_full_report_that_the_cache_cannot_hold_degrades_the_view() -> None:
    outcome = verify(read_recording(VLLM_TRACE))
    changes = [change for change in outcome.trust_changes if "more blocks" in change["reason"]]
    assert [change["trust"] for change in changes] == ["degraded"]
    assert "102 of 95" in changes[0]["reason"]


@pytest.mark.parametrize(
    "conditions",
    [
        Conditions(),
        Conditions(start_at=0.37),
        Conditions(start_at=0.2, replay=False),
        Conditions(drop=0.1, seed=3),
        Conditions(replay=False, drop=0.05, seed=3),
    ],
    ids=str,
)
def test_the_compiled_path_and_the_pure_one_say_the_same_of_each_request(
    conditions: Conditions,
) -> None:
    recording = read_recording(VLLM_TRACE)
    assert verify(recording, conditions) == verify(recording, conditions, MemoryIndex())


EXPLAINED = (
    "announces a reset only with its next step",
    "lost on the way",
    "samples of one prompt",
)


@pytest.mark.parametrize("start_at", [0.0, 0.1, 0.37, 0.5, 0.77, 0.95, 1.0])
@pytest.mark.parametrize("drop", [0.0, 0.1])
def test_cut_anywhere_with_replay_the_view_converges_to_exact(start_at: float, drop: float) -> None:
    outcome = verify(read_recording(VLLM_TRACE), Conditions(start_at=start_at, drop=drop, seed=7))
    assert outcome.trust.level is Level.EXACT
    for miss in outcome.mismatches:
        assert any(part in miss.reason for part in EXPLAINED), miss


@pytest.mark.parametrize("start_at", [0.0, 0.2, 0.5, 0.8])
@pytest.mark.parametrize("drop", [0.0, 0.05, 0.3])
def test_without_replay_it_never_claims_too_much_while_it_says_exact(
    start_at: float, drop: float
) -> None:
    conditions = Conditions(start_at=start_at, replay=False, drop=drop, seed=7)
    outcome = verify(read_recording(VLLM_TRACE), conditions)
    over = [
        miss
        for miss in outcome.mismatches
        if miss.trust == "exact" and miss.predicted > miss.actual
    ]
    assert outcome.overclaimed == len(over)
    for miss in over:
        assert any(part in miss.reason for part in EXPLAINED), miss
    if start_at:
        assert any("joined late" in change["reason"] for change in outcome.trust_changes)


def test_a_lost_view_heals_once_the_whole_cache_has_turned_over() -> None:
    outcome = verify(read_recording(VLLM_TRACE), Conditions(start_at=0.2, replay=False))
    reasons = [change["reason"] for change in outcome.trust_changes]
    late = next(n for n, reason in enumerate(reasons) if "joined late" in reason)
    assert outcome.trust_changes[late + 1]["trust"] == "exact", reasons


def test_the_json_says_trust_reasons_and_what_was_overclaimed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        main([str(VLLM_TRACE), "--json", "--start-at", "0.5", "--no-replay", "--drop", "0.1"]) == 0
    )
    report = json.loads(capsys.readouterr().out)
    assert report["trust"] in ("exact", "degraded")
    assert report["reasons"]
    assert report["overclaimed"] >= 0


@pytest.mark.parametrize("option", ["--start-at=1.1", "--drop=-0.1"])
def test_conditions_out_of_range_are_refused(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([str(VLLM_TRACE), option])
    assert "from 0 to 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"body": 5}, "body is not an object"),
        ({"usage": 5}, "usage is not an object"),
        ({"usage": {"prompt_tokens_details": 3}}, "prompt_tokens_details is not an object"),
    ],
    ids=str,
)
def test_a_request_of_the_wrong_shape_is_named_by_line_and_field(
    recorded: Lines, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    change: dict[str, Any], message: str,
) -> None:  # fmt: skip
    lines = [line | change if line["kind"] == "request" else line for line in recorded]
    assert main([str(write(tmp_path / "bad.jsonl", lines))]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "line " in error


@pytest.mark.parametrize("text", ["[" * 100_000, "1" * 5000, "# a heading", "5"])
def test_what_is_no_recording_is_said_to_be_none(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "readme"
    path.write_text(text + "\n", encoding="utf-8")
    assert main([str(path)]) == 2
    assert "is not a recording: line 1 is not " in capsys.readouterr().err


def test_a_recording_that_was_cut_off_counts_up_to_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = VLLM_TRACE.read_bytes()
    path = tmp_path / "cut.jsonl.gz"
    path.write_bytes(whole[: len(whole) // 2])
    assert main([str(path), "--json"]) == 1, "it is not whole"
    outcome = json.loads(capsys.readouterr().out)
    assert outcome["cut_after"]
    assert 0 < outcome["requests"] < 260


@pytest.mark.parametrize(
    ("limit", "problem"),
    [("MOST_LINE", "a line of more than 99 characters"), ("MOST_CHARACTERS", "more than 99 char")],
)
def test_a_packed_file_without_end_is_refused(
    limit: str,
    problem: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recording, limit, 99)
    path = tmp_path / "bomb.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"kind": "other"}\n' * 9 + b" " * (1 << 20)))
    assert main([str(path)]) == 2
    assert problem in capsys.readouterr().err


def test_in_a_recorded_life_our_keys_and_the_engines_own_hashes_name_the_same_blocks() -> None:
    """The engine's hash chain is the oracle: equal hashes, equal keys, and the other way round."""
    names: dict[object, int] = {}
    life = 0
    for line in read_recording(VLLM_TRACE).lines:
        if isinstance(line, Life) and line.action == "start":
            life += 1
        if not isinstance(line, Frame):
            continue
        for event in vllm.decode(line.payload).events:
            if not isinstance(event, Stored) or event.tokens is None:
                continue
            root = Keyspace("m", event.block_size, event.lora, event.cache_salt).root()
            above = names[life, event.parent] if event.parent is not None else root
            for name, key in zip(
                event.hashes,
                chain(above, event.tokens, event.block_size, event.extras),
                strict=True,
            ):
                assert names.setdefault((life, name), key) == key
    for one in range(1, life + 1):
        keys = [key for (of, _), key in names.items() if of == one]  # type: ignore[misc]
        assert len(keys) == len(set(keys))
        assert keys
