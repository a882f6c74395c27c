"""Bytes that are no request: refused by the field, on every call, and the service goes on."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message_factory import GetMessageClass

from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.assemble.running import running
from warmpath.router.calls.parse import LIMITS, parse
from warmpath.router.config import read
from warmpath.router.prompt.bad_request import BadRequestError
from warmpath.router.prompt.limits import MOST_NAME_BYTES

PROMPT_FIELDS = ("model", "lora", "cache_salt", "extra_key")
CALLS = ("Score", "Pick", "Report", "ListPods")
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
    config = read.parse(
        '[server]\nlisten = "127.0.0.1:0"\nmetrics-listen = ""\n[[models]]\nname = "m"\n', "test"
    )
    async with (
        running(config, tmp_path) as router,
        grpc.aio.insecure_channel(router.address) as channel,
    ):
        yield channel


@pytest.mark.parametrize("call", CALLS)
async def test_every_call_refuses_what_is_no_request(channel: grpc.aio.Channel, call: str) -> None:
    ask = channel.unary_unary(f"/warmpath.v1.Router/{call}")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await ask(field(1, BAD))
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert await channel.unary_unary("/warmpath.v1.Router/ListPods")(b"") == b""


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
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await channel.unary_unary(f"/warmpath.v1.Router/{call}")(request.SerializeToString())
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    text = raised.value.details() or ""
    assert text.startswith(f"{path}: ")
    assert len(text) < 200
    assert f" {LIMITS.get(name, MOST_NAME_BYTES)} bytes" in text


async def test_a_tenant_has_its_own_limit_without_a_queue_too(channel: grpc.aio.Channel) -> None:
    request = pb.PickRequest(tenant="t" * 257)
    request.prompt.model = "m"
    request.prompt.token_ids.ids.extend(range(64))
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await channel.unary_unary("/warmpath.v1.Router/Pick")(request.SerializeToString())
    assert raised.value.details() == "tenant: is longer than 256 bytes"
