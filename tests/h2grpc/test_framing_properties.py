"""Messages in any pieces and of any bytes; headers and limits of any content."""

import ctypes
import zlib
from contextlib import suppress
from typing import Any

import grpc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from warmpath.h2grpc.framing import Deframer, TooLongError, UnknownEncodingError, framed
from warmpath.h2grpc.http2 import callbacks
from warmpath.h2grpc.http2 import journal as of
from warmpath.h2grpc.http2 import library as lib
from warmpath.h2grpc.http2.body import OutgoingBody
from warmpath.h2grpc.http2.journal import Journal
from warmpath.h2grpc.http2.library import LENGTHS, MOST_HEADERS, pairs
from warmpath.h2grpc.http2.limits import BURST_SECONDS, FrameBudget, Http2Limits
from warmpath.h2grpc.metadata import (
    MESSAGE_BYTES,
    MOST_BYTES,
    BadHeaderError,
    NoCallError,
    percent_encoded,
    read_request,
    read_timeout,
    trailers_of,
    written,
)

MOST = 500
PIECES = st.lists(st.integers(1, 200), max_size=20)
CALL = [(b":method", b"POST"), (b":path", b"/t.T/x"), (b"content-type", b"application/grpc")]
KEYS = st.from_regex(r"[0-9a-z_.][0-9a-z_.-]{0,20}", fullmatch=True).filter(
    lambda key: not key.startswith("grpc-")
)
PRINTABLE = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40)


def _pieces(raw: bytes, sizes: list[int]) -> list[bytes]:
    found = []
    for size in sizes:
        found.append(raw[:size])
        raw = raw[size:]
    return [*found, raw]


def _block(headers: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join(LENGTHS.pack(len(name), len(value)) + name + value for name, value in headers)


def _compressed(payload: bytes, encoding: bytes) -> bytes:
    machine = zlib.compressobj(wbits=31 if encoding == b"gzip" else 15)
    packed = machine.compress(payload) + machine.flush()
    return b"\1" + len(packed).to_bytes(4, "big") + packed


@given(
    st.lists(st.tuples(st.binary(max_size=MOST), st.booleans()), max_size=8),
    PIECES,
    st.sampled_from([b"gzip", b"deflate"]),
)
def test_messages_come_out_as_they_went_in_however_they_are_cut(
    messages: list[tuple[bytes, bool]], sizes: list[int], encoding: bytes
) -> None:
    raw = b"".join(
        _compressed(payload, encoding) if is_compressed else framed(payload)
        for payload, is_compressed in messages
    )
    deframer = Deframer(2 * MOST, encoding)
    found = []
    for piece in _pieces(raw, sizes):
        deframer.put([memoryview(piece)])
        while not deframer.missing:
            payload, is_compressed = deframer.take()
            found.append(b"".join(deframer.decompress(payload)) if is_compressed else payload)
    assert found == [payload for payload, _ in messages]
    assert deframer.held == 0


@given(st.binary(max_size=2000), PIECES, st.sampled_from([b"gzip", b"deflate", b"identity", b"x"]))
@example(b"\1\0\0\0\0", [], b"gzip")
@example(framed(b"x" * MOST), [], b"gzip")
@example(b"\0\xff\xff\xff\xff", [1] * 5, b"gzip")
def test_bytes_of_any_kind_are_messages_or_one_of_the_named_errors(
    raw: bytes, sizes: list[int], encoding: bytes
) -> None:
    deframer = Deframer(MOST, encoding)
    with suppress(TooLongError, UnknownEncodingError, ValueError):
        for piece in _pieces(raw, sizes):
            deframer.put([memoryview(piece)])
            while not deframer.missing:
                held = deframer.held
                payload, is_compressed = deframer.take()
                assert len(payload) <= MOST
                assert deframer.held == held - 5 - len(payload)
                if is_compressed:
                    assert sum(map(len, deframer.decompress(payload))) <= MOST
            # What is missing is enough for the head, or for the whole message.
            assert 1 <= deframer.missing <= MOST


@given(st.integers(0, 30), st.sampled_from([b"gzip", b"deflate"]))
def test_a_compressed_message_is_inflated_no_further_than_the_limit(
    doublings: int, encoding: bytes
) -> None:
    wbits = 31 if encoding == b"gzip" else 15
    machine = zlib.compressobj(9, wbits=wbits)
    bomb = b"".join(machine.compress(bytes(1 << 20)) for _ in range(doublings)) + machine.flush()
    size = 0
    deframer = Deframer(1 << 19, encoding)
    try:
        for part in deframer.decompress(bomb):
            size += len(part)
    except TooLongError:
        assert doublings
    else:
        assert not doublings
    assert size <= 1 << 19


@given(
    st.lists(st.tuples(KEYS, PRINTABLE), max_size=8),
    st.lists(st.tuples(KEYS, st.binary()), max_size=8),
)
def test_metadata_that_are_written_are_read_again(
    texts: list[tuple[str, str]], binaries: list[tuple[str, bytes]]
) -> None:
    own = {"te", "host", "content-type", "content-length"}
    metadata: list[tuple[str, str | bytes]] = [
        *(
            (key, text.strip(" "))
            for key, text in texts
            if key not in own and not key.endswith("-bin")
        ),
        *((f"{key}-bin", value) for key, value in binaries),
    ]
    assert read_request(_block([*CALL, *written(metadata)])).metadata == tuple(metadata)


@given(st.lists(st.tuples(st.binary(max_size=30), st.binary(max_size=60)), max_size=10))
def test_headers_of_any_bytes_are_a_request_or_one_of_the_named_errors(
    headers: list[tuple[bytes, bytes]],
) -> None:
    for given_headers in (headers, [*CALL, *headers]):
        with suppress(NoCallError, BadHeaderError):
            read_request(_block(given_headers))


@given(st.text(max_size=12))
@example("99999999H")
@example("0n")
@example("٣S")
@example("1S\n")
def test_a_timeout_is_one_of_the_format_or_an_error(text: str) -> None:
    try:
        seconds = read_timeout(text)
    except BadHeaderError:
        return
    assert text.isascii()
    assert text[:-1].isdigit()
    assert 0 <= seconds < 1e12


@given(st.lists(st.tuples(st.text(max_size=10), st.one_of(st.text(), st.binary())), max_size=5))
def test_metadata_of_any_kind_are_headers_or_a_value_error(
    metadata: list[tuple[str, str | bytes]],
) -> None:
    with suppress(ValueError):
        for key, value in written(metadata):
            assert key.isascii()
            assert all(32 <= byte < 127 for byte in value)
            assert value == value.strip(b" ")


def test_metadata_that_are_too_long_are_a_value_error() -> None:
    with pytest.raises(ValueError, match=str(MOST_BYTES)):
        written([("key", "v" * MOST_BYTES)])
    with pytest.raises(ValueError, match=str(MOST_BYTES)):
        written([("k", "")] * 1000)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("RuntimeError: ", b"RuntimeError:"),
        (" a b ", b"a b"),
        ("x" * (MESSAGE_BYTES - 1) + " y", b"x" * (MESSAGE_BYTES - 1)),
    ],
)
def test_a_status_message_neither_begins_nor_ends_with_a_space(text: str, message: bytes) -> None:
    assert trailers_of(grpc.StatusCode.UNKNOWN, text)[1:] == [(b"grpc-message", message)]
    assert trailers_of(grpc.StatusCode.UNKNOWN, "  ") == [(b"grpc-status", b"2")]


@given(st.text(st.characters()))
def test_a_status_message_is_printable_and_can_be_read_again(text: str) -> None:
    message = percent_encoded(text)
    assert all(32 <= byte < 127 for byte in message)
    read = b"".join(
        part if not at else bytes.fromhex(part[:2].decode()) + part[2:]
        for at, part in enumerate(message.split(b"%"))
    )
    assert read == text.encode("utf-8", "replace")


@given(st.text(st.characters(exclude_characters=" "), max_size=5), st.integers(0, MESSAGE_BYTES))
def test_a_long_status_message_is_cut_between_characters_of_its_encoding(
    text: str, plain: int
) -> None:
    long = "x" * plain + (text or "%") * (3 * MESSAGE_BYTES)
    (_, message) = trailers_of(grpc.StatusCode.UNKNOWN, long)[1]
    assert MESSAGE_BYTES - 2 <= len(message) <= MESSAGE_BYTES
    assert percent_encoded(long).startswith(message)
    assert message.rfind(b"%") <= len(message) - 3


@given(
    st.floats(0.5, 50), st.lists(st.tuples(st.floats(0, 30), st.integers(-10, 100)), max_size=60)
)
def test_a_budget_allows_what_was_earned_and_no_more(
    rate: float, acts: list[tuple[float, int]]
) -> None:
    budget, now, earned, spent = FrameBudget(rate, 0.0), 0.0, 0, 0
    for seconds, frames in acts:
        now += seconds
        allowed = budget.spend(now, frames)
        earned += max(0, -frames)
        spent += max(0, frames)
        if not allowed:
            # The bucket was full at the beginning.
            assert spent > rate * BURST_SECONDS
            return
        assert spent <= rate * (BURST_SECONDS + now) + earned + 1e-6


@given(
    st.integers(1, 300),
    st.lists(st.tuples(st.binary(max_size=80), st.binary(max_size=80)), max_size=20),
)
def test_a_header_block_keeps_no_more_than_its_limit(
    most: int, headers: list[tuple[bytes, bytes]]
) -> None:
    journal = Journal(Http2Limits(header_bytes=most))
    _call(callbacks._begin_headers, None, None, journal.address)
    total = 0
    for name, value in headers:
        total += len(name) + len(value) + 32
        parts = name, len(name), value, len(value)
        kept = _call(callbacks._header, None, None, *parts, 0, journal.address) == 0
        assert kept == (total <= MOST_HEADERS * most)
        if not kept:
            assert not journal.numbers()[of.IN_BLOCK]
            return
    block, size = journal.unended(journal.numbers())
    found = list(pairs(block))
    assert found == headers[: len(found)]
    assert sum(len(name) + len(value) + 32 for name, value in found) <= most
    assert (size > most) == (total > most)
    assert size > most or found == headers


def test_headers_that_find_no_room_are_left_out() -> None:
    limits = Http2Limits(streams=2, header_bytes=100)
    journal = Journal(limits)
    for most in (40, 40, 40, 40, 20):
        _call(callbacks._begin_headers, None, None, journal.address)
        _call(callbacks._header, None, None, b"n", 1, b"v" * 39, 39, 0, journal.address)
        numbers = journal.numbers()
        has_room = most == 40
        assert (numbers[of.BLOCK_BYTES] > limits.header_bytes) != has_room
        assert numbers[of.HEADERS_AT] - numbers[of.BLOCK_AT] == 48 * has_room


def _call(function: Any, *arguments: Any) -> int:
    kinds = {int: ctypes.c_ssize_t, bytes: ctypes.c_char_p}
    types = [kinds.get(type(one), ctypes.c_void_p) for one in arguments]
    types[-1] = ctypes.c_void_p
    found: int = ctypes.CFUNCTYPE(ctypes.c_int, *types)(function)(*arguments)
    return found


@given(st.lists(st.binary(max_size=50), max_size=10), st.lists(st.integers(1, 40), max_size=30))
def test_a_body_gives_out_what_was_put_in(chunks: list[bytes], sizes: list[int]) -> None:
    body, found, journal = OutgoingBody(), b"", Journal(Http2Limits())
    source = ctypes.c_void_p(ctypes.addressof(body))
    for chunk in chunks:
        body.put(chunk)
    whole = b"".join(chunks)
    for size in sizes:
        buffer = ctypes.create_string_buffer(size + 1)
        filled = _call(
            callbacks._read, None, 1, buffer, size, None, ctypes.byref(source), journal.address
        )
        if filled == lib.DEFERRED:
            assert body.is_deferred
            assert not body._left
            if body._queue:
                body.refill()
            else:
                assert found == whole
            continue
        assert 0 < filled <= size
        assert buffer.raw[filled:] == bytes(size + 1 - filled)
        found += buffer.raw[:filled]
        assert body.unsent == len(whole) - len(found)
    assert whole.startswith(found)
