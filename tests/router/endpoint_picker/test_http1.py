"""Requests of HTTP/1.1 from bytes, however these are cut."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpath.router.endpoint_picker.http1 import (
    MOST_HEAD_BYTES,
    MalformedError,
    Request,
    Requests,
    answer_of,
)

MOST = 100
NAMES = st.from_regex(r"\A[a-z][a-z0-9-]{0,9}\Z").filter(
    lambda name: name not in ("content-length", "transfer-encoding", "connection")
)
VALUES = st.text(st.characters(min_codepoint=33, max_codepoint=255, exclude_characters="\x7f"))


@st.composite
def requests(draw: st.DrawFn) -> tuple[bytes, Request]:
    """Return a request's bytes, and the request."""
    headers = draw(st.dictionaries(NAMES, VALUES, max_size=4))
    headers = {name: value.strip(" \t") for name, value in headers.items()}
    body = draw(st.binary(max_size=3 * MOST))
    if body or draw(st.booleans()):
        headers["content-length"] = str(len(body))
    method, target = draw(st.sampled_from(["GET", "POST"])), "/" + draw(st.sampled_from("abc"))
    lines = [f"{method} {target} HTTP/1.1", *(f"{key}:{value}" for key, value in headers.items())]
    raw = "\r\n".join([*lines, "\r\n"]).encode("latin-1") + body
    return raw, Request(method, target, headers, body[: MOST + 1], is_last=False)


@given(st.lists(requests(), min_size=1, max_size=3), st.data())
def test_requests_are_read_alike_however_their_bytes_are_cut(
    sent: list[tuple[bytes, Request]], data: st.DataObject
) -> None:
    raw = b"".join(one for one, _ in sent)
    ends = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    read, reader = [], Requests(MOST)
    for begin, end in zip([0, *ends], [*ends, len(raw)], strict=True):
        reader.feed(raw[begin:end])
        while (one := reader.next()) is not None:
            assert reader.next() is None, "one after the other"
            read.append(one)
            reader.answered()
            assert not reader.held
        assert reader.held <= MOST + 1
    assert read == [one for _, one in sent]
    assert not reader.has_begun


@given(st.binary(max_size=200), st.data())
def test_any_bytes_are_a_request_or_malformed(raw: bytes, data: st.DataObject) -> None:
    reader = Requests(MOST)
    begin = data.draw(
        st.sampled_from([b"", b"GET / HTTP/1.1\r\n", b"POST /a HTTP/1.1\r\na: b\r\n"])
    )
    with suppress(MalformedError):
        reader.feed(begin + raw)
        reader.next()


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n", 501),
        (b"GET / HTTP/1.0\r\n\r\n", 505),
        (b"GET /\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\na: b\nc: d\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\na: \0\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\na : b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\na: b\r\n c\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\ncontent-length: +1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\ncontent-length: 9999999999999999\r\n\r\n", 400),
        (b"GET /" + b"a" * MOST_HEAD_BYTES, 431),
        (b"GET / HTTP/1.1\r\na: " + b"b" * MOST_HEAD_BYTES + b"\r\n\r\n", 431),
    ],
)
def test_a_malformed_request_ends_the_connection_with_its_status(raw: bytes, status: int) -> None:
    reader = Requests(MOST)
    reader.feed(raw)
    with pytest.raises(MalformedError) as caught:
        reader.next()
    assert caught.value.status == status


def test_no_more_than_a_head_waits_behind_a_request_that_is_being_answered() -> None:
    reader = Requests(MOST)
    reader.feed(b"GET / HTTP/1.1\r\n\r\n")
    assert reader.next() is not None
    reader.feed(b"a" * MOST_HEAD_BYTES)
    with pytest.raises(MalformedError):
        reader.feed(b"a")


def test_a_body_for_which_there_is_no_room_is_read_and_dropped() -> None:
    reader = Requests(MOST)
    reader.feed(b"POST / HTTP/1.1\r\ncontent-length: 20\r\n\r\n")
    assert reader.next() is None
    assert reader.has_begun
    reader.feed(b"a" * 5)
    reader.feed(b"b" * 5, may_keep=False)
    reader.feed(b"c" * 10)
    found = reader.next()
    assert found is not None
    assert found.body == b"a" * 5 + b"c" * 10


def test_no_value_adds_a_line_to_an_answer() -> None:
    raw = answer_of(200, (("x-warmpath-pod", "a\r\nx: y\u4e00"),), b"body", is_last=True)
    assert raw == (
        b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\nx-warmpath-pod: a??x: y?\r\n"
        b"connection: close\r\n\r\nbody"
    )
