"""The bytes of Score and Pick are those that protobuf would read and write, and show each rank as it is now."""

import struct
from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.examples import examples
from tests.indexer.sides import CLEARED, Side, stored
from tests.router.pick.weighed import choice, option, placed
from warmpath.indexer.keys.key import pack_tokens
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.wire.v1 import score_request_pb2 as wire
from warmpath.router.calls.replies import (
    entry_of,
    match_part,
    pick_reply,
    score_rest,
    stream_reply,
    varint,
)
from warmpath.router.calls.score import Answerer
from warmpath.router.match.match import Scorer
from warmpath.router.pick.messages import candidate_message, source_message
from warmpath.router.pick.options import MOST_CANDIDATES
from warmpath.router.pods.table import Pod, PodTable, Status
from warmpath.router.prompt.limits import BadRequestError
from warmpath.router.prompt.parse import listed_ids
from warmpath.router.prompt.plain import PlainPrompt
from warmpath.router.prompt.token_prompt import ReadPrompt, TokenPrompt
from warmpath.scorer.match import TIERS, Match, Span

IDS = st.lists(st.integers(0, (1 << 32) - 1), max_size=50)
UINT32 = st.integers(0, (1 << 32) - 1)


def as_wire(ids: pb.TokenIds | bytes) -> wire.TokenIds:
    raw = ids if isinstance(ids, bytes) else ids.SerializeToString()
    return wire.TokenIds.FromString(raw)


def packed(ids: list[int]) -> bytes:
    return struct.pack(f"<{len(ids)}I", *ids)


@given(IDS)
def test_listed_ids_are_read_as_protobuf_reads_them(ids: list[int]) -> None:
    assert listed_ids(as_wire(pb.TokenIds(ids=ids)), "f") == packed(ids)


@given(IDS, IDS)
def test_ids_in_several_runs_are_one_list(first: list[int], second: list[int]) -> None:
    raw = pb.TokenIds(ids=first).SerializeToString() + pb.TokenIds(ids=second).SerializeToString()
    assert listed_ids(as_wire(raw), "f") == packed(first + second)


@given(IDS, IDS)
def test_ids_that_are_fields_of_their_own_are_one_list(first: list[int], second: list[int]) -> None:
    each = b"".join(b"\x08" + varint(number) for number in second)
    raw = pb.TokenIds(ids=first).SerializeToString() + each
    assert sorted(listed_ids(as_wire(raw), "f")) == sorted(packed(first + second))


@pytest.mark.parametrize("run", [b"\x80", b"\x80\x80\x80\x80\x10", b"\xff" * 11 + b"\x01"])
def test_what_is_no_32_bit_number_is_refused_by_name(run: bytes) -> None:
    with pytest.raises(BadRequestError, match=r"^prompt\.token_ids\.ids: holds an entry"):
        listed_ids(wire.TokenIds(ids=[run]), "prompt.token_ids.ids")


@given(
    pod=st.text(max_size=5),
    score=st.floats(0, 1e9),
    tiers=st.dictionaries(st.sampled_from(TIERS), st.integers(1, (1 << 25) - 1), max_size=4),
    request_id=st.integers(0, (1 << 64) - 1),
)
def test_replies_are_what_protobuf_reads(
    pod: str, score: float, tiers: dict[str, int], request_id: int
) -> None:
    fixed = pb.PodScore(pod=pod, rank=3, trust=pb.Trust(reason="why"), ready=True)
    depths = pairwise([0, *accumulate(tiers.values())])
    spans = [Span(start, stop, tier) for (start, stop), tier in zip(depths, tiers, strict=True)]
    match = Match(tuple(spans), 16)
    part = match_part(score, match)
    raw = entry_of(fixed.SerializeToString(), len(part)) + part
    expected = pb.PodScore(score=score, matched_tokens=16 * sum(tiers.values()))
    expected.MergeFrom(fixed)
    expected.tiers.extend(pb.TierTokens(tier=tier, tokens=16 * n) for tier, n in tiers.items())
    response = pb.ScoreResponse.FromString(raw + raw)
    assert list(response.scores) == [expected, expected]
    reply = pb.ScoreStreamResponse.FromString(stream_reply(request_id, raw))
    assert (reply.request_id, list(reply.response.scores)) == (request_id, [expected])


@given(UINT32, UINT32, st.integers(0, (1 << 64) - 1))
def test_what_follows_the_scores_is_what_protobuf_writes(
    tokens: int, chars: int, request_id: int
) -> None:
    message = pb.ScoreResponse(prompt_tokens=tokens, covered_chars=chars, request_id=request_id)
    assert score_rest(tokens, chars, request_id) == message.SerializeToString()


@given(st.integers(0, (1 << 64) - 1))
def test_varints_of_any_length(number: int) -> None:
    assert pb.ScoreRequest.FromString(b"\x20" + varint(number)).request_id == number


def test_the_two_schemas_agree() -> None:
    for name in ("ScoreRequest", "Prompt", "MultimodalItem", "TokenIds"):
        public, ours = (module.DESCRIPTOR.message_types_by_name[name] for module in (pb, wire))
        assert [(f.name, f.number) for f in public.fields] == [
            (f.name, f.number) for f in ours.fields
        ]


PODS = st.sampled_from(["a", "b", "c"])
RANKS = st.integers(0, 1)
STEPS = st.one_of(
    st.tuples(st.just("add"), PODS, st.integers(0, 2)),
    st.tuples(st.sampled_from(["remove", "fail", "recover"]), PODS),
    st.tuples(st.sampled_from(["connect", "disconnect", "limit", "free", "clear"]), PODS, RANKS),
    st.tuples(st.just("store"), PODS, RANKS, st.integers(1, 3)),
)
HELD = list(range(13))


OF_RANKS: dict[str, Callable[[Any], None]] = {
    "connect": lambda rank: rank.connected(),
    "disconnect": lambda rank: rank.disconnected(),
    "limit": lambda rank: rank.limit("a reason", "it"),
    "free": lambda rank: rank.limit("", "it"),
}


class ReadIds:
    def read_plain(self, prompt: PlainPrompt) -> ReadPrompt:
        return ReadPrompt(TokenPrompt(prompt.model, prompt.ids), 0)


class Fleet:
    """Pods that come, change and go, and answers about them."""

    def __init__(self) -> None:
        self.side = Side("compiled")
        self.pods = PodTable()
        self.of: dict[str, Pod] = {}

    def answerer(self) -> Answerer:
        scorer = Scorer(self.side.ingest, "")
        return Answerer(ReadIds(), scorer, self.pods, clock=lambda: 0.0, wall_offset=lambda: 0.0)  # type: ignore[arg-type]

    def change(self, name: str, pod: str, *more: int) -> None:
        if name == "add" and pod not in self.of:
            ranks = tuple(self.side.rank(pod, number) for number in range(more[0]))
            self.of[pod] = Pod(pod, "", "m", ranks, has_events=bool(ranks))
            self.pods.add(self.of[pod])
        elif name in OF_RANKS and pod in self.of:
            for rank in self.of[pod].ranks[more[0] : more[0] + 1]:
                OF_RANKS[name](rank)
        elif name != "add" and pod in self.of:
            getattr(self, name)(self.of[pod], *more)

    def remove(self, pod: Pod) -> None:
        self.pods.remove(self.of.pop(pod.id).id)
        for rank in pod.ranks:
            self.side.ingest.remove(pod.id, rank.number)
            self.side.sequence.pop((pod.id, rank.number))

    def fail(self, pod: Pod) -> None:
        pod.status = Status(healthy=False)

    def recover(self, pod: Pod) -> None:
        pod.status = Status(healthy=True)

    def clear(self, pod: Pod, number: int) -> None:
        if number < len(pod.ranks):
            self.side.send(pod.id, CLEARED, number=number)

    def store(self, pod: Pod, number: int, blocks: int) -> None:
        if number < len(pod.ranks):
            event = stored(range(1, blocks + 1), HELD[: 4 * blocks], None, 4)
            self.side.send(pod.id, event, number=number)


def answer(answerer: Answerer) -> pb.ScoreResponse:
    scored = answerer.score_at_once(wire.ScoreRequest(), PlainPrompt("m", pack_tokens(HELD)))
    assert scored is not None
    return pb.ScoreResponse.FromString(scored.response)


@given(steps=st.lists(STEPS, max_size=25))
@settings(max_examples=examples(500))
def test_an_answer_is_that_of_an_answerer_that_has_answered_nothing_before(
    steps: list[tuple[str, str, int]],
) -> None:
    fleet = Fleet()
    answerer = fleet.answerer()
    for name, pod, *more in steps:
        fleet.change(name, pod, *more)
        assert answer(answerer) == answer(fleet.answerer())


def test_matches_of_ranks_that_hold_alike_and_of_one_that_does_not() -> None:
    fleet = Fleet()
    for pod, blocks in (("a", 2), ("b", 2), ("c", 3)):
        fleet.change("add", pod, 1)
        fleet.change("store", pod, 0, blocks)
    assert [one.matched_tokens for one in answer(fleet.answerer()).scores] == [8, 8, 12]


@pytest.mark.parametrize("is_split", [False, True])
@given(
    st.lists(
        st.tuples(st.integers(0, 99), st.integers(0, 99), st.sampled_from([0.0, 0.25, 9.5])),
        min_size=1,
        max_size=12,
    ),
    st.integers(0, 1 << 40),
    st.sampled_from([0, 300]),
    st.sampled_from([0.0, 1.5]),
)
def test_a_pick_s_answer_has_the_bytes_that_protobuf_writes(
    is_split: bool, ranks: list[tuple[int, int, float]], priority: int, unread: int, waited: float
) -> None:
    options = [
        option(f"pod-{at}", 16 * held, arriving=16 * arriving, wait=wait)
        for at, (held, arriving, wait) in enumerate(ranks)
    ]
    made = choice(*options)
    because = "it is long" if unread else ""
    ask = structs.replace(made.ask, unread=unread, unread_because=because)
    made = structs.replace(made, ask=ask, decode=made.options if is_split else ())
    pick = placed(made)
    pick.waited = waited
    told = [candidate_message(one, 1000.0) for one in made.options[:MOST_CANDIDATES]]
    left_out = max(0, len(ranks) - MOST_CANDIDATES)
    expected = pb.PickResponse(
        candidates=told,
        booking_id=pick.booking_id,
        prompt_tokens=pick.prompt_tokens,
        decode_candidates=told if is_split else [],
        source=made.source and source_message(made.source),
        reckoned_tokens=unread,
        reckoned_because=because,
        candidates_left_out=left_out,
        decode_candidates_left_out=left_out if is_split else 0,
        waited_seconds=waited,
        engine_priority=priority,
    )
    assert pick_reply(pick, priority, 1000.0) == expected.SerializeToString()
