"""Lists of requests that are too long, refused before an object is made of each entry."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.wire.v1 import score_request_pb2 as wire
from warmpath.router.calls.parse import AT_ONCE, check_entries, parse
from warmpath.router.prompt.bad_request import BadRequestError

ITEM = pb.MultimodalItem(hash="h", length=1)
DIFFERENT_FIELDS = b"".join(
    bytes(((number & 0x0F) << 3 | 0x80, number >> 4 & 0x7F | 0x80, number >> 11, 1))
    for number in range(20_000, 24_097)
)
"""Unknown fields of three bytes' tags, each there once."""
UNKNOWN_GROUP = b"\xfb\x07\xfc\x07"
"""Of field 127: its start and its end."""


@pytest.mark.parametrize(
    ("raw", "kind", "field"),
    [
        (pb.PickRequest(pods=["p"] * 4097).SerializeToString(), pb.PickRequest, "pods"),
        (pb.ScoreRequest(pods=["p"] * 4097).SerializeToString(), wire.ScoreRequest, "pods"),
        (UNKNOWN_GROUP + pb.PickRequest(pods=["p"] * 4097).SerializeToString(), pb.PickRequest, "pods"),
        (pb.ReportRequest(loads=[pb.PodLoad()] * 4097).SerializeToString(), pb.ReportRequest, "loads"),
        (DIFFERENT_FIELDS, pb.PickRequest, "request"),
        (pb.PickRequest(prompt=pb.Prompt(multimodal=[ITEM] * 4097)).SerializeToString(), pb.PickRequest, "prompt.multimodal"),
        (
            # Of a message that is given twice the parser makes one.
            2 * pb.PickRequest(prompt=pb.Prompt(multimodal=[ITEM] * 2049)).SerializeToString(),
            pb.PickRequest,
            "prompt.multimodal",
        ),
    ],
)  # fmt: skip
async def test_a_list_that_is_too_long_is_refused_by_name(
    raw: bytes, kind: type, field: str
) -> None:
    with pytest.raises(BadRequestError, match="has more than 4096 entries") as refused:
        await parse(kind, raw)
    assert refused.value.field == field


@pytest.mark.parametrize("kind", [pb.PickRequest, pb.ScoreRequest])
async def test_as_much_as_may_be_said_is_parsed(kind: type) -> None:
    prompt = pb.Prompt(
        model="m", multimodal=[ITEM] * 4096, token_ids=pb.TokenIds(ids=range(100_000))
    )
    request = kind(prompt=prompt, pods=["p"] * 4096)
    assert await parse(kind, request.SerializeToString()) == request


@given(st.lists(st.text(max_size=5), max_size=8), st.binary(max_size=20))
def test_nothing_that_may_be_said_is_refused(pods: list[str], behind: bytes) -> None:
    request = pb.PickRequest(prompt=pb.Prompt(token_ids_packed=behind), pods=pods)
    raw = request.SerializeToString()
    if len(pods) <= 3:
        list(check_entries(raw, pb.PickRequest.DESCRIPTOR, most=3))
    else:
        with pytest.raises(BadRequestError, match="pods: has more than 3 entries"):
            list(check_entries(raw, pb.PickRequest.DESCRIPTOR, most=3))


@given(st.binary(max_size=60))
def test_what_is_no_message_is_left_to_the_parser(raw: bytes) -> None:
    with contextlib.suppress(BadRequestError):
        list(check_entries(raw, pb.PickRequest.DESCRIPTOR, most=3))


def test_others_have_their_turn_while_entries_are_counted() -> None:
    loads = [pb.PodLoad(pod="p")] * 4000
    request = pb.PickRequest(
        pods=["p"] * 4000, prompt=pb.Prompt(multimodal=[ITEM] * 4000), loads=loads
    )
    turns = list(check_entries(request.SerializeToString(), pb.PickRequest.DESCRIPTOR))
    assert len(turns) == 12_000 // AT_ONCE
