"""Bytes that are no request: refused by the field, on every call, and the service goes on."""

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from router.api.parse import parse
from router.assemble import running
from router.config import read
from router.pb.warmpath.v1 import router_pb2 as pb
from router.prompt.bad_request import BadRequestError

CALLS = ("Score", "Pick", "Report", "ListPods")
BAD = b"\xff\xfe"


def field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content


@pytest.mark.parametrize(
    ("raw", "kind", "expected"),
    [
        (
            field(1, field(1, b"m") + field(2, BAD)),
            pb.ScoreRequest,
            ("prompt.text", "is not UTF-8"),
        ),
        (field(1, field(1, BAD)), pb.PickRequest, ("prompt.model", "is not UTF-8")),
        (field(2, b"pod") + field(2, BAD), pb.ScoreRequest, ("pods", "is not UTF-8")),
        (
            field(1, field(9, field(1, BAD))),
            pb.ScoreRequest,
            ("prompt.multimodal.hash", "is not UTF-8"),
        ),
        (field(15, BAD) + b"\xff", pb.ScoreRequest, ("request", "is not a ScoreRequest")),
        (b"\x0a\x05", pb.ScoreRequest, ("request", "is not a ScoreRequest")),
        (b"\xff" * 20, pb.PickRequest, ("request", "is not a PickRequest")),
    ],
)
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
