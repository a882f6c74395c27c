"""Figures that cannot be, from any peer: they cost what they came with, and nobody else."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.examples import examples
from tests.indexer.consistent import check
from tests.indexer.sides import FORMS, Event, Side, removed, stored
from warmpath.indexer.engines import sglang, trtllm, vllm
from warmpath.indexer.engines.cache_groups import MOST_BLOCK_SIZE, MOST_GROUP, MOST_NUMBER, Group
from warmpath.indexer.engines.event import MalformedEventError, Tier, UnreadableEvent
from warmpath.indexer.follow.stream_source import RankIngest
from warmpath.indexer.keys.key import pack_tokens
from warmpath.indexer.resolve.saved import SavedHolding
from warmpath.indexer.shared.layout.record import BadRecordError, read_record
from warmpath.indexer.trust import Level
from warmpath.proto.pb.warmpath.v1 import router_pb2
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2 as pb
from warmpath.router import state_file
from warmpath.router.calls.score import Answerer
from warmpath.router.match import match as score_module
from warmpath.router.match.match import Scorer
from warmpath.router.pods.follow import _restore as restore
from warmpath.router.pods.table import Pod, PodTable
from warmpath.router.prompt.token_prompt import TokenPrompt
from warmpath.scorer.strategies import longest_prefix

PROMPT = [1, 2, 3, 4, 5]
WIRE = st.one_of(
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.sampled_from([-1, 0, 1 << 20, (1 << 20) + 1, 1 << 31, 1 << 32, 1 << 62, 1 << 63]),
)
FIGURES = [
    "block_size", "group_idx", "lora_id", "kv_cache_spec_sliding_window", "parent_block_hash",
]  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("block_size", -1, "block_size is -1; it must be 0 or more"),
        ("block_size", 1 << 32, f"block_size is {1 << 32}; it must be {MOST_BLOCK_SIZE} or less"),
        ("group_idx", -1, "group_idx is -1; it must be 0 or more"),
        ("group_idx", MOST_GROUP + 1, f"group_idx is {MOST_GROUP + 1}; it must be {MOST_GROUP} or less"),
        ("group_idx", 1 << 31, f"group_idx is {1 << 31}; it must be {MOST_GROUP} or less"),
        ("kv_cache_spec_sliding_window", 1 << 62, f"kv_cache_spec_sliding_window is {1 << 62}; it must be {MOST_NUMBER} or less"),
    ],
)  # fmt: skip
def test_a_store_with_a_figure_out_of_range_is_not_read(
    field: str, value: int, reason: str
) -> None:
    event = stored([1], [1, 2], None, 2, **{field: value})
    for decode in (vllm.decode, sglang.decode) if field == "block_size" else (vllm.decode,):
        batch = decode(msgspec.msgpack.encode([1.0, [event], 0]))
        [unread] = batch.unread
        expected = reason.replace("0 or more", "1 or more") if decode is sglang.decode else reason
        assert unread == UnreadableEvent("BlockStored", expected)


@pytest.mark.parametrize(
    ("read", "event"),
    [
        (trtllm.address, {"event_id": 1 << 64, "data": {}}),
        (trtllm.address, {"event_id": -1, "data": {}}),
        (trtllm.address, {"event_id": 1, "attention_dp_rank": 1 << 40, "data": {}}),
        (trtllm.Codec(2), {"event_id": 1, "window_size": 1 << 62, "data": {"type": "removed", "block_hashes": []}}),
        (trtllm.Codec(2), {"event_id": 1, "data": {"type": "created", "num_blocks_per_cache_level": [10**20]}}),
        (trtllm.Codec(2), {"event_id": 1, "data": {"type": "created", "num_blocks_per_cache_level": [-1]}}),
    ],
)  # fmt: skip
def test_an_address_a_window_or_a_pool_out_of_range_is_malformed(
    read: Callable[[bytes], object], event: Event
) -> None:
    with pytest.raises(MalformedEventError):
        read(json.dumps(event).encode())


def honest(side: Side) -> None:
    side.send("honest", stored([1, 2], PROMPT[:4], None, 2))


def answers(side: Side) -> None:
    """Have every question answered about the ranks of a side, and what they hold saved."""
    pods = PodTable()
    for pod in ("honest", "liar"):
        pods.add(Pod(pod, "h:1", "m", (side.rank(pod),)))
    scorer = Scorer(side.ingest, "")
    ranks = [rank for pod in pods for rank in pod.ranks]
    matches = scorer.matches(TokenPrompt("m", pack_tokens(PROMPT)), ranks, longest_prefix)
    assert matches[side.rank("honest")].matched_tokens == 4
    assert side.rank("honest").trust.level is Level.EXACT
    reader = None
    answerer = Answerer(reader, scorer, pods, clock=lambda: 0.0, wall_offset=lambda: 0.0)  # type: ignore[arg-type]
    listed = asyncio.run(answerer.list_pods(router_pb2.ListPodsRequest()))
    assert [pod.id for pod in listed.pods] == ["honest", "liar"]
    for rank in side.ingest.save():
        msgspec.msgpack.encode(rank)


@settings(max_examples=examples(150), deadline=None)
@given(
    form=st.sampled_from(sorted(FORMS)),
    events=st.lists(
        st.tuples(st.sampled_from(FIGURES), WIRE, st.sampled_from(["", "sliding_window", "mamba"])),
        min_size=1,
        max_size=4,
    ),
)
def test_whatever_figures_a_pod_publishes_the_others_are_answered_for(
    form: str, events: list[tuple[str, int, str]]
) -> None:
    side = Side(form)
    honest(side)
    side.send("liar", stored([1], [1, 2], None, 2))
    for field, value, kind in events:
        odd = stored([3], [3, 4], 1, 2) | {field: value}
        if kind:
            odd |= {"kv_cache_spec_kind": kind, "group_idx": odd.get("group_idx", 1)}
        side.send("liar", odd, removed([3], group_idx=value))
    answers(side)
    check(side.ingest)


@pytest.mark.parametrize(
    "figure",
    [
        {"kv_cache_spec_sliding_window": 1 << 31},
        {"block_size": (1 << 20) + 1},
        {"block_size": 1 << 30},
        {"group_idx": 1 << 31},
    ],
)
@pytest.mark.parametrize(
    "rest",
    [
        [removed([7, 1]), removed([99])],
        [stored([5], [50, 51], None, 2, lora_name="x", lora_id=1), removed([1, 2])],
        [removed([1, 2]), stored([5], [50, 51], None, 2, lora_name="x", lora_id=1)],
        [stored([5], [50, 51], None, 2, medium="CPU")],
        [],
    ],
)
def test_what_is_not_read_costs_itself_in_every_form(figure: Event, rest: list[Event]) -> None:
    seen = {}
    for form in FORMS:
        side = Side(form)
        side.send("a", stored([1, 2], [10, 11, 20, 21], None, 2), stored([7], [10, 11], None, 2))
        side.send("a", stored([9], [90, 91], None, 2, **figure), *rest)
        trust = side.rank("a").trust
        held = [
            side.held(tokens, 2, lora=lora)
            for tokens, lora in (([10, 11, 20, 21], ""), ([90, 91], ""), ([50, 51], "x"))
        ]
        seen[form] = held, trust.level, trust.reason, side.rank("a").malformed
        assert not held[1]
        assert trust.level is Level.DEGRADED
    assert seen["compiled"] == seen["pure"] == seen["reference"]


@pytest.mark.parametrize("form", sorted(FORMS))
def test_the_first_store_may_be_the_odd_one(form: str) -> None:
    side = Side(form)
    honest(side)
    side.send("liar", stored([1], [1, 2], None, 1 << 32))
    assert "block_size is 4294967296" in side.rank("liar").trust.reason
    answers(side)


@pytest.mark.parametrize(("size", "window"), [(0, 0), (1 << 21, 0), (16, 1 << 31)])
def test_a_publisher_whose_groups_cannot_be_is_refused(size: int, window: int) -> None:
    group = pb.Group(number=0, kind="sliding_window", block_size=size, window=window)
    state = pb.RankState(trust="exact", groups=[group])
    rank = Side("pure").ingest.watch("liar", 0)
    with pytest.raises(ValueError, match=r"a (block size|window) is"):
        rank.take_state(state)
    with pytest.raises(BadRecordError, match=r"a (block size|window) is"):
        read_record({b"token": b"1", b"state:0": state.SerializeToString()})


CLAIM: dict[str, object] = {
    "owner": "o", "base": 1, "places": [], "keyspace": "k", "model": "m", "ranks": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [
        {b"token": b"-1"},
        {b"token": b"1" * 5000},
        {b"applied": b"1" + b"0" * 30},
        {b"applied": b"-5"},
        {b"audits": b"1e3"},
        {b"building": "\u0661".encode()},
        {b"state:-1": b""},
        {b"state:4096": b""},
        {b"blocks:0": b'{"gpu": -1}'},
        {b"blocks:0": b'{"gpu": 1' + b"0" * 40 + b"}"},
        {b"claim": json.dumps(CLAIM | {"base": 1 << 47}).encode()},
        {b"claim": json.dumps(CLAIM | {"base": -1}).encode()},
        {b"claim": json.dumps(CLAIM | {"ranks": 10**9}).encode()},
        {b"claim": json.dumps(CLAIM | {"places": [[0, "gpu", -1]]}).encode()},
        {b"claim": json.dumps(CLAIM | {"places": [None] * 65537}).encode()},
    ],
)
def test_a_record_with_a_figure_out_of_range_is_bad(fields: dict[bytes, bytes]) -> None:
    assert read_record({b"token": b"1", b"claim": json.dumps(CLAIM).encode()})
    with pytest.raises(BadRecordError):
        read_record({b"token": b"1"} | fields)


def saved(change: Callable[[RankIngest], None] | None = None) -> Side:
    side = Side("compiled")
    honest(side)
    side.send("liar", stored([1], [1, 2], None, 2))
    if change is not None:
        change(side.rank("liar"))
    return side


def test_all_others_are_saved_where_one_pod_cannot_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def absurd(rank: RankIngest) -> None:
        rank.learn_capacity(10**20)

    def broken(rank: RankIngest) -> None:
        del rank.state

    for change in (absurd, broken):
        side = saved(change)
        state_file.save(tmp_path / "state", side.ingest.save(), "")
        assert [one.pod for one in state_file.load(tmp_path / "state", "")] == ["honest"]
        assert "pod liar rank 0 is not saved" in caplog.text
        caplog.clear()


def test_a_full_disk_is_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    state_file.save(tmp_path / "state", [], "")
    before = (tmp_path / "state").read_bytes()
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        state_file.save(tmp_path / "state", saved().ingest.save(), "")
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    assert (tmp_path / "state").read_bytes() == before


def test_a_rank_that_cannot_be_matched_costs_no_answer_about_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    side = Side("pure")
    honest(side)
    side.send("liar", stored([1], [1, 2], None, 2), stored([7], [8, 9], 1, 2))
    match = score_module.reusable_match

    def buggy(held: object, layout: object, blocks: int) -> object:
        if layout is side.rank("liar").layout:
            raise ZeroDivisionError
        return match(held, layout, blocks)  # type: ignore[arg-type]

    monkeypatch.setattr(score_module, "reusable_match", buggy)
    for _ in range(3):
        answers(side)
    assert caplog.text.count("cannot be matched with prompts") == 1
    assert side.rank("liar").trust.level is Level.DEGRADED


def test_a_rank_whose_saved_state_contradicts_itself_begins_cold() -> None:
    [one, _] = saved().ingest.save()
    assert one.resolver.plain is not None
    for resolver in (
        replace(one.resolver, plain=replace(one.resolver.plain, tiers=[], groups=[7])),
        replace(one.resolver, groups={0: Group("full_attention", 1 << 20)}, firm=[1 << 62]),
        replace(one.resolver, keys={1: -5}, holdings=[SavedHolding(Tier.GPU, 0, {1: 1}, [])]),
    ):
        side = Side("compiled")
        honest(side)
        rank = side.rank("liar")
        restore(rank, replace(one, pod="liar", resolver=resolver))
        answers(side)
