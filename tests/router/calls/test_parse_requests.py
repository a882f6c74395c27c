"""Requests that are none, or too long in a field: refused by the field, before an object is made of each entry."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from tests.h2grpc.served import ends_with
from tests.router.running_router import running_router
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.wire.v1 import score_request_pb2 as wire
from warmpath.router.calls.parse import AT_ONCE, LIMITS, check_entries, parse
from warmpath.router.prompt.limits import MOST_NAME_BYTES, BadRequestError

INVALID = grpc.StatusCode.INVALID_ARGUMENT
PROMPT_FIELDS = ("model", "lora", "cache_salt", "extra_key")
BAD = b"\xff\xfe"


def field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content


@pytest.mark.parametrize(
    ("raw", "kind", "expected"),
    [
        (field(1, field(1, b"m") + field(2, BAD)), pb.ScoreRequest, ("prompt.text", "is not UTF-8")),
        (field(1, field(1, BAD)), pb.PickRequest, ("prompt.model", "is not UTF-8")),
        (field(2, b"pod") + field(2, BAD), pb.ScoreRequest, ("pods", "is not UTF-8")),
        (field(1, field(9, field(1, BAD))), pb.ScoreRequest, ("prompt.multimodal.hash", "is not UTF-8")),
        (field(15, BAD) + b"\xff", pb.ScoreRequest, ("request", "is not a ScoreRequest")),
        (b"\x0a\x05", pb.ScoreRequest, ("request", "is not a ScoreRequest")),
        (b"\xff" * 20, pb.PickRequest, ("request", "is not a PickRequest")),
    ],
)  # fmt: skip
async def test_a_text_that_is_none_is_named(
    raw: bytes, kind: type, expected: tuple[str, str]
) -> None:
    with pytest.raises(BadRequestError) as refused:
        await parse(kind, raw)
    assert str(refused.value) == ": ".join(expected)


@pytest.fixture
async def channel(tmp_path: Path) -> AsyncIterator[grpc.aio.Channel]:
    async with running_router(tmp_path, '[[models]]\nname = "m"', metrics="") as (_, channel):
        yield channel


def _names() -> Iterator[tuple[str, str, Any]]:
    """Yield each text field of each request: its call, its path and the type of its request."""
    for method in pb.DESCRIPTOR.services_by_name["Router"].methods:
        if method.client_streaming:
            continue
        asked = GetMessageClass(method.input_type)
        for field in method.input_type.fields:
            if field.type == field.TYPE_STRING:
                yield method.name, field.name, asked
        if "prompt" in method.input_type.fields_by_name:
            for name in PROMPT_FIELDS:
                yield method.name, f"prompt.{name}", asked
        if "loads" in method.input_type.fields_by_name:
            yield method.name, "loads[0].pod", asked


@pytest.mark.parametrize(("call", "path", "asked"), [*_names()])
async def test_a_name_that_is_too_long_is_refused_with_its_field_and_limit(
    channel: grpc.aio.Channel, call: str, path: str, asked: Any
) -> None:
    request = asked()
    if "prompt" in asked.DESCRIPTOR.fields_by_name:
        request.prompt.model = "m"
        request.prompt.token_ids.ids.extend(range(64))
    if call == "Report":
        request.booking_id, request.event = "a", pb.ReportRequest.FINISHED
    parent, _, name = path.rpartition(".")
    if parent == "loads[0]":
        holder = request.loads.add()
    else:
        holder = getattr(request, parent) if parent else request
    if path == "pods":
        getattr(holder, name).append("n" * 1_000_000)
    else:
        setattr(holder, name, "n" * 1_000_000)
    with ends_with(INVALID) as raised:
        await channel.unary_unary(f"/warmpath.v1.Router/{call}")(request.SerializeToString())
    text = raised.value.details() or ""
    assert text.startswith(f"{path}: ")
    assert len(text) < 200
    assert f" {LIMITS.get(name, MOST_NAME_BYTES)} bytes" in text


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
