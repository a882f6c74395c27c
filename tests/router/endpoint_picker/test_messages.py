"""Messages byte by byte: those that Envoy 1.40 sent, and replies made by hand from the contract."""

import base64
import json
from pathlib import Path

import pytest
from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from tests.router.endpoint_picker.gateway import metadata
from warmpath.router.endpoint_picker.events import (
    Event,
    ImmediateReply,
    MessageError,
    Modes,
    Reply,
    value_of,
)
from warmpath.router.endpoint_picker.messages import MOST_BESIDE_BYTES, bytes_of, event_of
from warmpath.router.endpoint_picker.protocol import (
    DESTINATION,
    NAMESPACE,
    SERVED,
    SUBSET,
    SUBSET_NAMESPACE,
    BodyMode,
)

RECORDED = json.loads((Path(__file__).parent / "envoy_messages.json").read_text(encoding="utf-8"))
"""The messages of a streamed request with two tokens, which was restricted to two endpoints."""
BODY = b'{"model":"demo","prompt":[1,2,3],"stream":true}'
TOKENS = (
    b'data: {"choices":[{"text":"tok0"}]}\n\ndata: {"choices":[{"text":"tok1"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":3,'
    b'"prompt_tokens_details":{"cached_tokens":0}}}\n\ndata: [DONE]\n\n'
)


def recorded(mode: str) -> list[Event]:
    return [event_of(base64.b64decode(raw)) for raw in RECORDED[mode]]


@pytest.mark.parametrize(
    ("mode", "modes"),
    [("full-duplex", Modes()), ("buffered", Modes(BodyMode.BUFFERED_PARTIAL, BodyMode.STREAMED))],
)
def test_what_envoy_sends_is_read(mode: str, modes: Modes) -> None:
    headers, *events = recorded(mode)
    assert (headers.side, headers.part) == ("request", "headers")
    assert headers.modes == modes
    assert not headers.ends
    assert value_of(headers.headers, ":path") == "/v1/completions"
    assert value_of(headers.headers, "content-type") == "application/json"
    assert headers.subset is not None
    assert len(headers.subset) == 2
    body = [one for one in events if (one.side, one.part) == ("request", "body")]
    assert b"".join(one.data for one in body) == BODY
    assert [one.ends for one in body][-1]
    assert {one.subset for one in body} == {headers.subset}
    [response] = [one for one in events if (one.side, one.part) == ("response", "headers")]
    assert value_of(response.headers, ":status") == "200"
    assert response.served in headers.subset
    assert response.modes is None
    pieces = [one for one in events if (one.side, one.part) == ("response", "body")]
    assert b"".join(one.data for one in pieces) == TOKENS
    assert [one.ends for one in pieces] == [False] * (len(pieces) - 1) + [True]


def varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def held(number: int, *inner: bytes) -> bytes:
    """Return a field that is bytes, a text or a message."""
    value = b"".join(inner)
    return varint(number << 3 | 2) + varint(len(value)) + value


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def put(name: bytes, value: bytes) -> bytes:
    """Return an entry of `set_headers`: OVERWRITE_IF_EXISTS_OR_ADD has the number 2."""
    return held(1, held(1, held(1, name), held(3, value)), number(3, 2))


def told(endpoints: bytes) -> bytes:
    """Return the dynamic metadata: a Struct with a Struct with a text."""
    entry = held(1, held(1, DESTINATION.encode()), held(2, held(3, endpoints)))
    return held(8, held(1, held(1, b"envoy.lb"), held(2, held(5, entry))))


@pytest.mark.parametrize(
    ("reply", "wire"),
    [
        (
            Reply("request", "headers", ((DESTINATION, "10.0.0.1:80"),), ("x-a", "x-b"), "10.0.0.1:80"),
            held(1, held(1, held(2, put(DESTINATION.encode(), b"10.0.0.1:80"), held(2, b"x-a"), held(2, b"x-b")), number(5, 1)))
            + told(b"10.0.0.1:80"),
        ),
        (Reply("response", "headers", (("x-warmpath-pod", "pod-é"),)), held(2, held(1, held(2, put(b"x-warmpath-pod", b"pod-\xe9"))))),
        (Reply("request", "body", data=b"abc", is_sent_back=True), held(3, held(1, held(3, held(3, held(1, b"abc")))))),
        (Reply("response", "body", data=b"", ends=True, is_sent_back=True), held(4, held(1, held(3, held(3, number(2, 1)))))),
        (Reply("request", "body"), held(3, held(1))),
        (Reply("response", "body"), held(4, held(1))),
        (
            Reply("request", "body", data=b"{}", put=((DESTINATION, "a:1,b:2"),), endpoints="a:1,b:2"),
            held(3, held(1, held(2, put(DESTINATION.encode(), b"a:1,b:2")), held(3, held(1, b"{}")), number(5, 1)))
            + told(b"a:1,b:2"),
        ),
        (Reply("request", "trailers", endpoints="a:1"), held(5) + told(b"a:1")),
        (Reply("response", "trailers"), held(6)),
        (
            ImmediateReply(503, b"{}", (("x-warmpath-reason", "NO_POD"),)),
            held(7, held(1, number(1, 503)), held(2, put(b"x-warmpath-reason", b"NO_POD")), held(3, b"{}")),
        ),
    ],
)  # fmt: skip
def test_replies_are_written_as_the_contract_says(
    reply: Reply | ImmediateReply, wire: bytes
) -> None:
    assert bytes_of(reply) == wire
    pb.ProcessingResponse.FromString(wire)


@pytest.mark.parametrize(
    ("fields", "subset"),
    [
        ({SUBSET: ["10.0.0.1:80", "[::1]:80"]}, {"10.0.0.1:80", "[::1]:80"}),
        ({SUBSET: "10.0.0.1:80, 10.0.0.2:80,"}, {"10.0.0.1:80", "10.0.0.2:80"}),
        ({SUBSET: ["a:1,b:2", 3, None]}, {"a:1", "b:2"}),
        ({SUBSET: []}, set()),
        ({SUBSET: ""}, set()),
        ({SUBSET: 7}, set()),
        ({"another": ["10.0.0.1:80"]}, None),
    ],
)  # fmt: skip
def test_the_subset_is_a_list_or_a_text_and_set_even_if_it_is_empty(
    fields: dict[str, object], subset: set[str] | None
) -> None:
    context = metadata(SUBSET_NAMESPACE, **fields)
    expected = None if subset is None else frozenset(subset)
    for message in (
        pb.ProcessingRequest(request_headers=pb.HttpHeaders(), metadata_context=context),
        pb.ProcessingRequest(request_body=pb.HttpBody(), metadata_context=context),
        pb.ProcessingRequest(request_trailers=pb.HttpTrailers(), metadata_context=context),
    ):
        event = event_of(message.SerializeToString())
        assert event.side == "request"
        assert event.subset == expected


def test_the_endpoint_that_served_is_told_by_metadata_or_by_envoys_attribute() -> None:
    headers = pb.HttpHeaders()
    served = metadata(NAMESPACE, **{SERVED: "10.0.0.1:80"})
    message = pb.ProcessingRequest(response_headers=headers, metadata_context=served)
    event = event_of(message.SerializeToString())
    assert (event.side, event.part) == ("response", "headers")
    assert event.served == "10.0.0.1:80"
    message = pb.ProcessingRequest(response_headers=headers)
    message.attributes["envoy.filters.http.ext_proc"].update({"upstream.address": "[::0001]:80"})
    event = event_of(message.SerializeToString())
    assert (event.side, event.part) == ("response", "headers")
    assert event.served == "[::1]:80"


def test_headers_have_raw_values_or_texts_and_names_in_lower_case() -> None:
    headers = [
        base_pb2.HeaderValue(key="X-Raw", raw_value=b"\xff"),
        base_pb2.HeaderValue(key="x-text", value="t"),
    ]
    message = pb.ProcessingRequest(
        request_headers=pb.HttpHeaders(headers=base_pb2.HeaderMap(headers=headers))
    )
    event = event_of(message.SerializeToString())
    assert (event.side, event.part) == ("request", "headers")
    assert event.headers == (("x-raw", "\xff"), ("x-text", "t"))
    assert event.modes == Modes(), "what the protocol says, where the gateway says nothing"


def test_a_watching_gateway_says_so() -> None:
    message = pb.ProcessingRequest(request_headers=pb.HttpHeaders(), observability_mode=True)
    event = event_of(message.SerializeToString())
    assert (event.side, event.part) == ("request", "headers")
    assert event.modes.is_watched
    trailers = pb.ProcessingRequest(response_trailers=pb.HttpTrailers())
    assert event_of(trailers.SerializeToString()) == Event("response", "trailers", ends=True)


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"\xff", "not a ProcessingRequest"),
        (b"", "no known part"),
        (held(99, b""), "no known part"),
        (held(2) + held(11, number(1, 77)), "77 is no known mode"),
        (held(2) + held(11, number(2, 5)), "5 is no known mode"),
        (held(2, bytes(MOST_BESIDE_BYTES)), f"at most {MOST_BESIDE_BYTES} are taken"),
        (held(4, b"") + held(8, bytes(MOST_BESIDE_BYTES)), "beside a body"),
        (held(4, b"")[:1] + b"\xff\xff\xff\xff\xff\x7f" + bytes(MOST_BESIDE_BYTES), "ProcessingRequest"),
    ],
)  # fmt: skip
def test_bytes_that_are_no_part_of_an_exchange_are_refused(raw: bytes, problem: str) -> None:
    with pytest.raises(MessageError, match=problem):
        event_of(raw)


def test_a_long_piece_of_a_body_is_taken() -> None:
    body = pb.ProcessingRequest(request_body=pb.HttpBody(body=bytes(4 * MOST_BESIDE_BYTES)))
    event = event_of(body.SerializeToString())
    assert (event.side, event.part) == ("request", "body")
    assert len(event.data) == 4 * MOST_BESIDE_BYTES


RAW = [base64.b64decode(raw) for messages in RECORDED.values() for raw in messages]


@given(
    st.binary(max_size=200)
    | st.builds(
        lambda raw, at, new: raw[: at % len(raw)] + new + raw[at % len(raw) + len(new) :],
        st.sampled_from(RAW), st.integers(0, 10_000), st.binary(min_size=1, max_size=8),
    )
)  # fmt: skip
def test_no_bytes_are_more_than_refused(raw: bytes) -> None:
    try:
        event = event_of(raw)
    except MessageError:
        return
    assert isinstance(event, Event)


def test_only_a_pick_for_a_websocket_asks_for_another_way_of_showing_bodies() -> None:
    told = pb.ProcessingResponse.FromString(
        bytes_of(Reply("request", "headers", shows_body=BodyMode.STREAMED))
    )
    assert told.mode_override.response_body_mode == BodyMode.STREAMED
    assert told.mode_override.request_body_mode == BodyMode.NONE
    plain = pb.ProcessingResponse.FromString(bytes_of(Reply("request", "headers")))
    assert not plain.HasField("mode_override")


PIECES = st.one_of(
    st.sampled_from([0, 1, 127, 128, 16_381, 16_384, 62_000]), st.integers(0, 300)
).map(lambda size: (b"0123456789abcdef" * (size // 16 + 1))[:size])


@given(PIECES, st.booleans(), st.booleans())
def test_a_piece_of_a_response_is_read_as_protobuf_reads_it(
    data: bytes, ends: bool, has_metadata: bool
) -> None:
    message = pb.ProcessingRequest(response_body=pb.HttpBody(body=data, end_of_stream=ends))
    if has_metadata:
        message.metadata_context.CopyFrom(metadata(NAMESPACE, **{SERVED: "10.0.0.1:80"}))
    raw = message.SerializeToString()
    assert event_of(raw) == Event("response", "body", ends, data=data)
    cut = raw[: len(raw) // 2]
    try:
        expected: object = pb.ProcessingRequest.FromString(cut)
    except DecodeError:
        with pytest.raises(MessageError):
            event_of(cut)
    else:
        assert expected is not None


@given(PIECES, st.booleans())
def test_a_reply_to_a_piece_is_written_as_protobuf_writes_it(data: bytes, ends: bool) -> None:
    replies = {
        bytes_of(Reply("response", "body")): pb.BodyResponse(response=pb.CommonResponse()),
        bytes_of(
            Reply("response", "body", data=data, ends=ends, is_sent_back=True)
        ): pb.BodyResponse(
            response=pb.CommonResponse(
                body_mutation=pb.BodyMutation(
                    streamed_response=pb.StreamedBodyResponse(body=data, end_of_stream=ends)
                )
            )
        ),
    }
    for raw, expected in replies.items():
        assert raw == pb.ProcessingResponse(response_body=expected).SerializeToString()
