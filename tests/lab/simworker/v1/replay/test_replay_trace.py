"""The real manager's recordings replay without a difference; what is no recording is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.recordings import KV_CACHE_MANAGER
from warmpath.lab.simworker.v1.replay.replay_trace import BadTraceError, read_trace, replay_trace

HYBRID = Path(__file__).parents[1] / "vllm_hybrid.jsonl.gz"


def test_the_managers_recording_replays_without_a_difference() -> None:
    result = replay_trace(read_trace(KV_CACHE_MANAGER))
    assert result.operations == 4237
    assert result.first_differences == []
    assert result.differences == 0


def test_windows_and_hybrids_replay_without_a_difference() -> None:
    """Recorded by `tests/vllm/drive_hybrid.py`, which says how."""
    result = replay_trace(read_trace(HYBRID))
    assert result.operations == 2218
    assert result.first_differences == []
    assert result.differences == 0


@pytest.fixture(scope="module")
def lines() -> list[dict[str, Any]]:
    return [json.loads(line) for line in list(read_trace(KV_CACHE_MANAGER))[:60]]


def encoded(lines: list[dict[str, Any]]) -> list[str]:
    return [json.dumps(line) for line in lines]


@pytest.mark.parametrize("name", ["free_blocks", "usage", "free_queue"])
def test_a_state_that_is_not_the_recorded_one_is_a_difference(
    lines: list[dict[str, Any]], name: str
) -> None:
    changed = [dict(line) for line in lines]
    changed[7][name] = None
    result = replay_trace(encoded(changed))
    assert result.differences == 1
    difference = result.first_differences[0]
    assert (difference.line, difference.field, difference.expected) == (8, name, None)
    assert difference.got == lines[7][name]


@pytest.mark.parametrize(
    ("op", "change"),
    [
        ("new_request", {"block_hashes": []}),
        ("get_computed_blocks", {"block_ids": [1], "num_computed_tokens": 4}),
        ("allocate_slots", None),
        ("allocate_slots", {"error": "no"}),
        ("append_tokens", {"new_block_hashes": ["00"]}),
        ("take_events", [{"type": "AllBlocksCleared"}]),
        ("advance", {"num_computed_tokens": -1}),
    ],
)
def test_an_outcome_that_is_not_the_recorded_one_is_a_difference(
    lines: list[dict[str, Any]], op: str, change: Any
) -> None:
    changed = [dict(line) for line in lines]
    at = next(i for i, line in enumerate(changed) if line["op"] == op and line["out"] != change)
    changed[at]["out"] = change
    result = replay_trace(encoded(changed))
    assert result.differences > 0
    assert {difference.line for difference in result.first_differences} == {at + 1}


def test_all_differences_are_counted_and_the_first_are_kept(lines: list[dict[str, Any]]) -> None:
    changed = [line | {"usage": -1.0} for line in lines]
    result = replay_trace(encoded(changed), keep=3)
    assert result.differences == len(lines)
    assert [difference.line for difference in result.first_differences] == [1, 2, 3]
    assert json.loads(json.dumps(result.to_json()))["differences"] == len(lines)


MANAGER = {"num_blocks": 9, "block_size": 4, "max_model_len": 40}


def line(op: Any, **args: Any) -> str:
    state = {"out": None, "free_blocks": 8, "usage": 0.0, "free_queue": list(range(1, 9))}
    return json.dumps({"op": op, "args": args, **state})


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("{", "line 3: is not JSON"),
        ("[]", "line 3: is not a JSON object"),
        ('{"op": "free", "args": {}}', "line 3: out: missing"),
        (line("no_such_thing"), "line 3: no_such_thing: op: unknown"),
        (line([]), "op: unknown"),
        (line("free"), "line 3: free: args.request_id: missing"),
        (line("free", request_id=1), "args.request_id: int is the wrong type"),
        (line("free", request_id="x"), "args.request_id: no such request"),
        (line("new_request", request_id="a", prompt_token_ids=[1]), "args.request_id: is in use"),
        (line("new_request", request_id="b", prompt_token_ids=["1"]), "args.prompt_token_ids"),
        (line("new_request", request_id="b", prompt_token_ids=[-1]), "args.prompt_token_ids"),
        (line("new_manager", **MANAGER | {"num_blocks": 0}), "args.num_blocks: 0, from 1"),
        (line("new_manager", **MANAGER | {"num_blocks": 10**12}), "args.num_blocks: 1000000000000, from 1"),
        (line("new_manager", **MANAGER | {"block_size": 0}), "args.groups"),
        (line("new_manager", **MANAGER | {"block_size": True}), "args.block_size: must not be a boolean"),
        (line("new_manager", **MANAGER, groups=[{"kind": "mamba", "block_size": 4}]), "mamba"),
        (line("allocate_slots", request_id="a", num_new_tokens="1"), "args.num_new_tokens"),
        (line("allocate_slots", request_id="a", num_new_tokens=1, x=1), "args.x: unknown"),
        (line("allocate_slots", request_id="a", num_new_tokens=1, new_computed_block_ids=[99]), "args.new_computed_block_ids"),
        (line("evict_blocks", block_ids=[99]), "args.block_ids: 99, there are 9 blocks"),
        (json.dumps({"op": "free", "args": [], "out": 0, "free_blocks": 0, "usage": 0, "free_queue": 0}), "args: is not an object"),
    ],
)  # fmt: skip
def test_what_is_no_operation_is_refused_with_its_line_and_field(text: str, where: str) -> None:
    begin = [
        line("new_manager", **MANAGER),
        line("new_request", request_id="a", prompt_token_ids=[1, 2, 3]),
    ]
    with pytest.raises(BadTraceError, match=where.replace("[", r"\[")):
        replay_trace([*begin, text])


def test_an_operation_before_any_manager_is_refused() -> None:
    with pytest.raises(BadTraceError, match="line 1: take_events: op: before any new_manager"):
        replay_trace([line("take_events")])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 300) | st.floats(-2, 2) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)  # fmt: skip


def beginning(path: Path, name: str, count: int) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in read_trace(path)]
    start = next(at for at, line in enumerate(lines) if line["args"].get("name") == name)
    return lines[start : start + count]


BEGINNINGS = [
    beginning(KV_CACHE_MANAGER, "external-tokens", 120),
    beginning(HYBRID, "fine-hashes", 80),
]


@settings(deadline=None)
@given(st.data())
def test_a_mangled_recording_is_replayed_or_refused(data: st.DataObject) -> None:
    whole = data.draw(st.sampled_from(BEGINNINGS))
    at = data.draw(st.integers(0, len(whole) - 1))
    changed = json.loads(json.dumps(whole[at]))
    where = data.draw(st.sampled_from([changed, changed["args"] or changed]))
    where[data.draw(st.sampled_from(sorted(where)))] = data.draw(JSON)
    lines = encoded([*whole[:at], changed, *whole[at + 1 :]])
    refused = ""
    try:
        assert replay_trace(lines).operations == len(lines)
    except BadTraceError as error:
        refused = str(error)
    assert not refused or refused.startswith("line ")
