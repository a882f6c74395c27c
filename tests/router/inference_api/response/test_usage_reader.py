"""The usage and the first token of a response are read, however it is cut, whatever it holds.

Events of a stream have the data that the format says.
"""

import json
import re
import tracemalloc
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.router.inference_api.recorded_apis import VLLM
from warmpath.router.inference_api.response import (
    LINE_END,
    MOST_TOKENS,
    EventStream,
    Usage,
    UsageReader,
)

EVENTS = "text/event-stream; charset=utf-8"
JSON = "application/json"
RECORDED = [
    (sent["content_type"], sent["body"].encode())
    for line in VLLM
    for sent in (line["first"], line.get("again"))
    if sent is not None and ("stream" in line["request"] or line["path"] != "/v1/messages")
]


def events(*given: Any, named: bool = False) -> bytes:
    lines = []
    for one in given:
        data = one if isinstance(one, str) else json.dumps(one)
        name = f"event: {one['type']}\n" if named else ""
        lines.append(f"{name}data: {data}\n\n")
    return "".join(lines).encode()


# In the form of Anthropic's API, which counts cached tokens apart.
ANTHROPIC = events(
    {"type": "message_start", "message": {"role": "assistant", "content": [], "usage": {
        "input_tokens": 3, "cache_creation_input_tokens": 20, "cache_read_input_tokens": 100, "output_tokens": 1}}},
    {"type": "ping"},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 12}},
    {"type": "message_stop"},
    named=True,
)  # fmt: skip
RESPONSE = {
    "id": "resp_1", "instructions": 'say "usage": {"input_tokens": 99}', "output": [],
    "tools": [{"type": "function", "name": "f", "parameters": {"usage": {"input_tokens": 98}}}],
}  # fmt: skip
RESPONSES = events(
    {"type": "response.created", "response": RESPONSE | {"usage": None}},
    {"type": "response.in_progress", "response": RESPONSE | {"usage": None}},
    {"type": "response.output_text.delta", "delta": "Hi"},
    {"type": "response.completed", "response": RESPONSE | {"usage": {
        "input_tokens": 123, "input_tokens_details": {"cached_tokens": 64}, "output_tokens": 5}}},
    named=True,
)  # fmt: skip
CHAT = events(
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}], "usage": None},
    {"choices": [{"index": 0, "delta": {"content": "Hi"}}]},
    {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": None}},
    "[DONE]",
)  # fmt: skip
META = {"finish_reason": None, "prompt_tokens": 9, "cached_tokens": 8, "e2e_latency": 0.1}
SGLANG = events(
    {"text": "H", "output_ids": [1], "meta_info": META | {"completion_tokens": 1}},
    {"text": "Hi", "output_ids": [1, 2], "meta_info": META | {"completion_tokens": 2}},
    "[DONE]",
)
STREAMS = [
    (ANTHROPIC, Usage(123, 100, 12), b'"content_block_start", "index": 0'),
    (RESPONSES, Usage(123, 64, 5), b"response.output_text.delta"),
    (CHAT, Usage(7, None, 2), b'"role"'),
    (SGLANG, Usage(9, 8, 2), b'"text": "H"'),
]


def read(kind: str, *chunks: bytes, encoding: str = "") -> UsageReader:
    reader = UsageReader(kind, encoding)
    for chunk in chunks:
        reader.feed(chunk)
    if kind != EVENTS:
        reader.end()
    return reader


def told(reader: UsageReader) -> tuple[Usage, bool]:
    return reader.usage, reader.first_token_seen


@pytest.mark.parametrize(("stream", "usage", "first"), STREAMS)
def test_a_stream_tells_its_usage_and_the_first_token_when_its_data_is_complete(
    stream: bytes, usage: Usage, first: bytes
) -> None:
    assert told(read(EVENTS, stream)) == (usage, True)
    reader = UsageReader(EVENTS)
    at = stream.index(b"\n\n", stream.index(first)) + 1
    for position, byte in enumerate(stream):
        reader.feed(bytes([byte]))
        assert reader.first_token_seen == (position + 1 >= at)


@pytest.mark.parametrize(
    ("body", "usage"),
    [
        ({"usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}}, Usage(5, None, 1)),
        ({"usage": {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 0}}}, Usage(5, 0)),
        ({"usage": {"input_tokens": 5, "output_tokens": 1}}, Usage(5, None, 1)),
        ({"usage": {"input_tokens": 5, "cache_read_input_tokens": 2}}, Usage(7, 2)),
        ({"usage": {"input_tokens": 5, "input_tokens_details": {"cached_tokens": 2}}}, Usage(5, 2)),
        ({"text": "x", "meta_info": META | {"completion_tokens": 3}}, Usage(9, 8, 3)),
        ({"object": "list", "data": [], "usage": {"prompt_tokens": 5, "total_tokens": 5}}, Usage(5)),
        # What is no usage, or none that can be.
        ({"usage": {"prompt_tokens": -1, "completion_tokens": True, "cached_tokens": 1.5}}, Usage()),
        ({"usage": {"input_tokens": MOST_TOKENS, "cache_read_input_tokens": 1}}, Usage(None, 1)),
        ({"usage": {"prompt_tokens": 1 << 40, "completion_tokens": "7"}}, Usage()),
        ({"usage": None}, Usage()),
        ({"usage": [{"prompt_tokens": 1}]}, Usage()),
        ({"choices": [{"usage": {"prompt_tokens": 1}}], "a": {"usage": {"prompt_tokens": 2}}}, Usage()),
        ([{"usage": {"prompt_tokens": 1}}], Usage()),
        ("usage", Usage()),
    ],
)  # fmt: skip
def test_the_usage_of_a_whole_response(body: Any, usage: Usage) -> None:
    raw = json.dumps(body).encode()
    assert told(read(JSON, raw)) == (usage, False)
    assert told(read("", *(bytes([byte]) for byte in raw))) == (usage, False)


def test_a_response_that_cannot_be_read_tells_nothing() -> None:
    raw = b'{"usage": {"prompt_tokens": 5}}'
    assert told(read(JSON, raw, encoding="gzip")) == (Usage(), False)
    assert told(read(EVENTS, CHAT, encoding="br")) == (Usage(), False)
    assert told(read("audio/mpeg", raw)) == (Usage(), False)
    assert told(read(JSON, raw, encoding="identity")) == (Usage(5), False)


@pytest.mark.parametrize(
    "stream",
    [
        events({"error": {"message": "overloaded", "code": 500}}, "[DONE]"),
        events({"type": "error", "error": {"type": "overloaded_error"}}, named=True),
        events({"type": "ping"}, {"type": "message_stop"}),
        events({"choices": []}, {"choices": [ ]}),
        b": a comment\n\nevent: x\nid: 1\n\nretry: 5\n\n",
        b'data: {"choices": [1]}',
        b"data: " + b"x" * 9999 + b"\n\n",
        b'data: [{"choices": [1]}]\n\n',
        b'data: {"type": "ping", "x": "' + b"x" * 9999 + b'"}\n\n',
    ],
)  # fmt: skip
def test_an_event_without_a_token_is_no_first_token(stream: bytes) -> None:
    assert not read(EVENTS, stream).first_token_seen


def test_a_long_event_tells_its_usage_too() -> None:
    filler = 'x\\"}{' * 30_000
    long = {
        "type": "response.completed",
        "response": {"output": filler, "usage": {"input_tokens": 4}},
    }
    stream = events({"type": "response.created", "response": {"instructions": filler}}, long)
    assert told(read(EVENTS, stream)) == (Usage(4), True)
    assert not read(EVENTS, stream[: len(stream) // 2]).first_token_seen


CUTS = st.lists(st.integers(0, 1 << 20), max_size=30)


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({0, len(data), *(place % (len(data) + 1) for place in cuts)})
    return [data[start:stop] for start, stop in pairwise(at)]


@given(
    st.sampled_from([*RECORDED, *((EVENTS, stream) for stream, _, _ in STREAMS)]),
    CUTS,
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
)
def test_cutting_a_response_changes_nothing(
    response: tuple[str, bytes], cuts: list[int], end: bytes
) -> None:
    kind, body = response
    if "event-stream" in kind:
        body = body.replace(b"\n", end)
    assert told(read(kind, *cut(body, cuts))) == told(read(kind, response[1]))


@given(
    st.sampled_from([stream for stream, _, _ in STREAMS]),
    CUTS,
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.booleans(),
)
def test_events_need_no_empty_line_between_them_and_no_end_after_the_last(
    stream: bytes, cuts: list[int], end: bytes, ends: bool
) -> None:
    parted = stream.replace(b"\n\n", b"\n").removesuffix(b"\n").replace(b"\n", end)
    reader = read(EVENTS, *cut(parted + end * ends, cuts))
    reader.end()
    assert told(reader) == told(read(EVENTS, stream))


def test_data_in_several_lines_is_one_event() -> None:
    usage = {"prompt_tokens": 5, "padding": "x" * 5000}
    for value in (
        {"choices": [1], "usage": {"prompt_tokens": 5}},
        {"choices": [1], "usage": usage},
    ):
        lines = json.dumps(value, indent=1).splitlines()
        stream = "".join(f"data: {line}\n" for line in lines) + "\n"
        assert told(read(EVENTS, stream.encode())) == (Usage(5), True)


@given(st.binary(max_size=200), CUTS, st.sampled_from([EVENTS, JSON]))
def test_any_bytes_are_read(data: bytes, cuts: list[int], kind: str) -> None:
    assert told(read(kind, *cut(data, cuts))) == told(read(kind, data))


@given(
    st.sampled_from([stream for stream, _, _ in STREAMS]),
    st.lists(
        st.tuples(st.integers(0, 1 << 20), st.sampled_from(b'{}[]":,\\\n\r0a\xff')), max_size=9
    ),
    CUTS,
)
@pytest.mark.random
def test_a_damaged_stream_is_read_alike_however_it_is_cut(
    stream: bytes, damage: list[tuple[int, int]], cuts: list[int]
) -> None:
    damaged = bytearray(stream)
    for at, byte in damage:
        damaged[at % len(damaged)] = byte
    whole = bytes(damaged)
    assert told(read(EVENTS, *cut(whole, cuts))) == told(read(EVENTS, whole))


HOSTILE = [
    b"[", b'{"a":', b'{"usage":', b'{"choices":[', b'"', b"\\", b'{"usage":"', b"}", b":", b",", b"\n",
    b"data:", b"data: x\n", b"data: {", b'"\\"', b"\r", b'1,"usage":', b'1,"type":"x","choices":[1],"usage":',
]  # fmt: skip


@pytest.mark.deep
@pytest.mark.parametrize("unit", HOSTILE)
@pytest.mark.parametrize("kind", [EVENTS, JSON])
def test_memory_does_not_grow_with_a_response(unit: bytes, kind: str) -> None:
    chunk = unit * (8192 // len(unit))
    reader = UsageReader(kind)
    reader.feed(b'data: {"usage": ' if kind == EVENTS else b"")
    tracemalloc.start()
    try:
        for _ in range(examples(500, desk=20)):
            reader.feed(chunk)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 120_000


LINES = st.sampled_from(
    [b"data: a", b"data:b", b"data:", b"data: ", b"data:  c", b"dat", b"data", b"datax: d", b"", b":",
     b"event: e", b"id: data: f", b"da: g", b"\xef\xbb\xbfdata: h", b"data: \xef\xbb\xbf"]
)  # fmt: skip
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


def data_of(stream: bytes, size: int) -> list[bytes]:
    reader = EventStream()
    found, data = [], b""
    for at in range(0, len(stream), size):
        for piece in reader.feed(stream[at : at + size]):
            if piece is None:
                # The format takes the end of the last line away.
                found.append(data.removesuffix(LINE_END))
                data = b""
            else:
                data += piece
    return found


def by_the_format(stream: bytes) -> list[bytes]:
    """Return the events as the format's text says, line by line."""
    found, data = [], None
    *lines, _ = re.split(rb"\r\n|\n|\r", stream.removeprefix(b"\xef\xbb\xbf"))
    for line in lines:
        if not line and data is not None:
            found.append(b"\n".join(data))
            data = None
        elif line.startswith(b"data:"):
            data = [*(data or []), line[5:].removeprefix(b" ")]
    return found


@given(st.lists(st.tuples(LINES, ENDS), max_size=12), st.sampled_from([1, 2, 3, 5, 1000]))
def test_events_have_the_data_that_the_format_says(
    lines: list[tuple[bytes, bytes]], size: int
) -> None:
    stream = b"".join(line + end for line, end in lines)
    assert data_of(stream, size) == by_the_format(stream)
