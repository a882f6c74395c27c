"""Bodies of lies: every request is picked for, and no byte of it is changed."""

import gzip
import json
import logging
import zlib
from pathlib import Path

import grpc
import grpc.aio
import pytest
from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from tests.h2grpc.served import ends_with
from tests.router.endpoint_picker.gateway import (
    ONE,
    PODS,
    TWO,
    Gateway,
    asking,
    completion,
    header_map,
)
from tests.router.pick_stand import QUIET
from warmpath.router.endpoint_picker.messages import MOST_BESIDE_BYTES

MIB = 1 << 20
BOMB = gzip.compress(bytes(64 * MIB))
BODIES = {
    "nested lists": b"[" * MIB + b"]" * MIB,
    "nested objects": b'{"a":' * (MIB // 8) + b"1" + b"}" * (MIB // 8),
    "a million values": b'{"model":"demo","prompt":[' + b"0," * MIB + b"0]}",
    "a million names": b"{" + b",".join(b'"%d":0' % at for at in range(MIB // 8)) + b"}",
    "escaped names": b"{" + b",".join([b'"\\u0061":0'] * (MIB // 8)) + b"}",
    "a long number": b'{"model":"demo","max_tokens":' + b"9" * MIB + b',"prompt":"x"}',
    "a long string": json.dumps({"model": "demo", "prompt": "x" * MIB}).encode(),
    "escapes": b'{"model":"demo","prompt":"' + b"\\u0041" * (MIB // 8) + b'"}',
    "a lone surrogate": b'{"model":"\\ud800","prompt":"\\udfff"}',
    "a name beyond all bounds": json.dumps({"model": "m" * MIB, "prompt": "x"}).encode(),
    "two names": b'{"model":"demo","model":"tuned","prompt":"x"}',
    "a body cut off": completion()[:-7],
    "bytes after the end": completion() + b"}}}}",
    "another charset": json.dumps({"model": "demo", "prompt": "x"}).encode("utf-16"),
    "no UTF-8": b'{"model":"demo","prompt":"\xff\xfe"}',
    "a mark of byte order": b"\xef\xbb\xbf" + completion(),
    "NULs": bytes(4096),
    "NaN": b'{"model":"demo","prompt":[NaN,Infinity,-1,1e400]}',
    "ids of no token": completion(prompt=[-1, 1 << 40, 1.5, "x"]),
    "a gzip bomb": BOMB,
    "a deflate bomb": zlib.compress(bytes(16 * MIB)),
    "a list": b"[]",
    "null": b"null",
    "wrong kinds": b'{"model":7,"prompt":{"a":1},"stream":"yes","max_tokens":[]}',
}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/messages"])
async def test_bodies_of_lies_are_picked_for_and_pass_unchanged(
    tmp_path: Path, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with asking(tmp_path, picker="pick-seconds = 60") as gateway:
        for name, body in BODIES.items():
            headers = [("content-encoding", "gzip")] if "gzip" in name else []
            told = await gateway.whole(body, b'{"error": {}}', *headers, path=path, status="400")
            assert set(told[0].endpoints) == {ONE, TWO}, name
        states = {state for state, _ in await gateway.decisions()}
        assert states == {"FAILED"}
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR], caplog.text


async def test_content_types_of_lies_are_picked_for(gateway: Gateway) -> None:
    for kind in (
        "", "text/plain", "application/json; charset=utf-7", "multipart/form-data", "\x00", "a" * 8000,
    ):  # fmt: skip
        one = gateway.exchange()
        assert len((await one.routed(completion(), kind=kind)).endpoints) == 2, kind


async def test_many_megabytes_pass_without_being_held(tmp_path: Path) -> None:
    piece, pieces = bytes(MIB), 30
    async with asking(
        tmp_path, tables=f"[limits]\nmax-prompt-bytes = {MIB}\n{QUIET}{PODS}"
    ) as gateway:
        one = gateway.exchange()
        await one.request()
        passed, most = 0, 0.0
        for at in range(pieces):
            await one.body(piece, ends=at == pieces - 1)
            held = await gateway.metric("warmpath_endpoint_picker_held_bytes")
            most = max(most, held)
            if at == 0:
                continue
            if at == 1:
                assert len((await one.destination()).endpoints) == 2
            while passed < (at + 1) * MIB:
                got = await one.read()
                passed += len(got.request_body.response.body_mutation.streamed_response.body)
        assert passed == pieces * MIB
        assert most <= 2 * MIB


@pytest.mark.parametrize(
    "fields",
    [
        {"request_headers": pb.HttpHeaders(headers=header_map((("x", "y" * MOST_BESIDE_BYTES),)))},
        {"request_headers": pb.HttpHeaders(headers=base_pb2.HeaderMap(headers=[base_pb2.HeaderValue(key="a")] * 100_000))},
        {"protocol_config": pb.ProtocolConfiguration(request_body_mode=99)},  # type: ignore[arg-type]
    ],
)  # fmt: skip
async def test_messages_beyond_bounds_end_the_stream(
    gateway: Gateway, fields: dict[str, object]
) -> None:
    one = gateway.exchange()
    await one.tell(**({"request_headers": pb.HttpHeaders()} | fields))
    with ends_with(grpc.StatusCode.INVALID_ARGUMENT):
        await one.read()


async def test_no_prompt_is_logged(gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for body in (completion(prompt="open sesame"), b'{"prompt": "open sesame'):
        await gateway.whole(body, b"open sesame", status="500")
    assert "sesame" not in caplog.text
