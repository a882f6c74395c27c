"""Messages of JSON are those of protobuf's library, and only a prompt may be long."""

import json
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from warmpath.h2grpc.method import RefusedError
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.pages.json_calls import MOST_TEXT, message_of

NAMES = st.sampled_from(
    ["prompt", "text", "model", "pods", "token_ids", "tokenIds", "ids", "chat_body", "multimodal", "hash",
     "offset", "request_id", "requestId", "explain", "strategy", "loads", "age", "nobody"]
)  # fmt: skip
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 1 << 70)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["7", "AAAA", "NaN"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@given(st.sampled_from([pb.ScoreRequest, pb.ExplainRequest, pb.ListDecisionsRequest]), VALUES)
def test_a_message_is_the_one_that_protobufs_library_makes(kind: type[Any], value: Any) -> None:
    body = json.dumps(value).encode()
    try:
        expected = json_format.Parse(body, kind())
    except json_format.ParseError:
        with pytest.raises(RefusedError):
            message_of(body, kind)
    else:
        assert message_of(body, kind) == expected.SerializeToString()


@pytest.mark.parametrize(
    "body",
    [
        *(b"  ", b"{", b"\xff\xfe", b"{\0}\0", b"[" * 100_000, b'{"a":' * 100_000, b"1e9999"),
        *(b"null", b"1" * 100_000, b'{"request_id": 1e999999}', b'{"request_id": NaN}'),
    ],
)
def test_bytes_that_are_no_request_are_refused(body: bytes) -> None:
    with pytest.raises(RefusedError):
        message_of(body, pb.ScoreRequest)


@pytest.mark.parametrize("value", ["x" * (MOST_TEXT + 1), ["a", "x" * (MOST_TEXT + 1)]])
def test_only_a_prompt_may_be_long(value: Any) -> None:
    with pytest.raises(RefusedError, match=f"pods: has more than {MOST_TEXT} characters"):
        message_of(json.dumps({"pods": value}).encode(), pb.ScoreRequest)
    text = "x" * (MOST_TEXT + 1)
    body = json.dumps({"prompt": {"text": text}}).encode()
    assert pb.ScoreRequest.FromString(message_of(body, pb.ScoreRequest)).prompt.text == text
