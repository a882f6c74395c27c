"""Score's bytes are those that protobuf would read and write."""

import struct
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.wire.v1 import score_request_pb2 as wire
from warmpath.router.calls.score_reply import entry_of, match_part, score_rest, stream_reply, varint
from warmpath.router.prompt.bad_request import BadRequestError
from warmpath.router.prompt.parse import listed_ids
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
