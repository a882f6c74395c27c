"""Answers at once: without a task where a message is there, and in one write what a handler puts together."""

import asyncio
import gzip
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.h2grpc.served import MISSING
from tests.h2grpc.stand import ClientStand
from warmpath.h2grpc.framing import framed
from warmpath.h2grpc.http2.library import STREAM_WINDOW
from warmpath.h2grpc.http2.limits import Http2Limits
from warmpath.h2grpc.method import Method, Refusal, RefusedError

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

PATH = b"/t.T/Once"
MOST = 200_000


def compressed(message: bytes) -> bytes:
    packed = gzip.compress(message, mtime=0)
    return b"\1" + len(packed).to_bytes(4, "big") + packed


class OnceStand(ClientStand):
    """A connection whose only method answers b"at once" or, to messages with b"wait", b"run"."""

    def __init__(self) -> None:
        self.answers: Counter[tuple[str, bytes]] = Counter()
        method = Method(self._run, self._at_once)
        super().__init__({"/t.T/Once": method}, Http2Limits(message_bytes=MOST))

    def _at_once(self, message: bytes, _: Any) -> bytes | None:
        if b"wait" in message:
            return None
        if message == b"refuse":
            raise RefusedError(Refusal(grpc.StatusCode.NOT_FOUND, "none", ()))
        if message == b"fail":
            raise ZeroDivisionError("odd")
        self.answers["at once", message] += 1
        return b"at once"

    async def _run(self, call: Any) -> None:
        message = await call.read()
        self.answers["run", message] += 1
        call.put(b"run")


@dataclass
class Asked:
    beginning: bytes
    zeros: int
    is_compressed: bool
    pieces: int
    ends_apart: bool

    @property
    def message(self) -> bytes:
        return self.beginning + bytes(self.zeros)

    @property
    def data(self) -> bytes:
        if not self.is_compressed:
            return framed(self.message)
        return compressed(self.message)

    @property
    def answer(self) -> tuple[str, bytes]:
        is_quick = b"wait" not in self.message and not self.is_compressed
        # What does not fit into a stream's window comes only if it is read.
        is_quick = is_quick and len(self.data) <= STREAM_WINDOW
        return "at once" if is_quick else "run", self.message


ASKED = st.builds(
    Asked,
    st.one_of(st.sampled_from([b"", b"wait"]), st.binary(max_size=40)),
    # Around the size of a stream's window.
    st.sampled_from([0, 0, 0, 1, 65_526, 65_530, 65_531, 100_000]),
    st.booleans(),
    st.integers(1, 5),
    st.booleans(),
)


@given(st.lists(ASKED, min_size=1, max_size=6), st.sampled_from([1, 7, 1000, 1 << 20]))
def test_each_call_is_answered_once_however_its_bytes_come(asked: list[Asked], step: int) -> None:
    # So few bytes at once would take a while for many bytes.
    step = step if sum(len(one.data) for one in asked) < 1000 else max(step, 1000)
    stand = OnceStand()
    streams = [stand.client.begin(PATH, (b"grpc-encoding", b"gzip")) for _ in asked]
    for number in range(5):
        for stream, one in zip(streams, asked, strict=True):
            size = len(one.data) // one.pieces + 1
            if number < one.pieces:
                is_last = number == one.pieces - 1 and not one.ends_apart
                piece = one.data[number * size : (number + 1) * size]
                stand.client.put(stream, piece, is_last=is_last)
        stand.carry(step)
    for stream, one in zip(streams, asked, strict=True):
        if one.ends_apart:
            stand.client.put(stream, b"", is_last=True)
    stand.carry(step)
    assert stand.answers == Counter(one.answer for one in asked)
    for stream, one in zip(streams, asked, strict=True):
        request = stand.client.requests[stream]
        assert request.headers["grpc-status"] == b"0"
        assert bytes(request.answer) == framed(one.answer[0].encode())
    assert len(stand.connection.calls) == 0
    stand.close()


def test_a_call_that_is_reset_or_late_before_its_message_is_whole_is_not_answered() -> None:
    stand = OnceStand()
    reset = stand.client.begin(PATH)
    late = stand.client.begin(PATH, (b"grpc-timeout", b"5S"))
    for stream in (reset, late):
        stand.client.put(stream, framed(b"message")[:-1])
    stand.carry()
    stand.client.reset(reset)
    stand.carry()
    stand.loop.pass_time(6.0)
    stand.carry()
    assert stand.client.requests[late].headers["grpc-status"] == b"4"
    stand.client.put(late, b"e", is_last=True)
    stand.carry()
    assert not stand.answers
    assert len(stand.connection.calls) == 0
    stand.close()


def test_an_error_ends_the_call_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    stand = OnceStand()
    streams = []
    for message in (b"refuse", b"fail", b"x"):
        streams.append(stand.client.begin(PATH))
        stand.client.put(streams[-1], framed(message), is_last=True)
    stand.carry()
    statuses = [stand.client.requests[stream].headers["grpc-status"] for stream in streams]
    assert statuses == [b"5", b"2", b"0"]
    assert [one.getMessage() for one in caplog.records] == ["/t.T/Once: unexpected"]
    assert len(stand.connection.calls) == 0
    stand.close()


WHOLE = framed(b"one") + framed(b"two")
FIRST = framed(b"first")


class PutStand(ClientStand):
    """A connection with one call, whose handler is the given one; its window takes `window` bytes."""

    def __init__(
        self,
        handler: Callable[[Any], Awaitable[None]],
        *sent: bytes,
        window: int = 1000,
        most: int = 1000,
    ) -> None:
        """Send FIRST, with which the handler runs, and `sent` behind it; a message may have `most` bytes."""
        super().__init__(
            {"/t.T/Put": Method(handler)}, Http2Limits(message_bytes=most), window=window
        )
        self.stream = self.client.begin(b"/t.T/Put", (b"grpc-encoding", b"gzip"))
        self.client.put(self.stream, b"".join((FIRST, *sent)))
        self.socket.writes.clear()
        self.carry()

    @property
    def answer(self) -> bytes:
        return bytes(self.client.requests[self.stream].answer)


def put_both(call: Any) -> None:
    assert call.put(b"one") == len(framed(b"one"))
    assert call.put(b"two") == len(WHOLE)


async def wait_for_the_client(call: Any) -> None:
    assert call.take() in (b"first", None)
    put_both(call)
    await call.read()


async def wait_after_what_came(call: Any) -> None:
    for message in (b"first", b"second"):
        assert call.take() == message
    assert call.take() is None
    await wait_for_the_client(call)


async def drain_and_wait(call: Any) -> None:
    assert call.take() == b"first"
    put_both(call)
    await call.drain()
    await call.read()


async def end(call: Any) -> None:
    put_both(call)


@pytest.mark.parametrize(
    "handler", [wait_for_the_client, wait_after_what_came, drain_and_wait, end]
)
def test_they_go_out_in_one_write(handler: Callable[[Any], Awaitable[None]]) -> None:
    stand = PutStand(handler, *([framed(b"second")] if handler is wait_after_what_came else []))
    assert stand.answer == WHOLE
    assert len(stand.socket.writes) == 1
    assert ("grpc-status" in stand.client.requests[stand.stream].headers) == (handler is end)
    stand.close()


@pytest.mark.parametrize(
    ("came", "rest", "read"),
    [
        (b"", framed(b"one"), b"one"),
        (framed(b"one")[:4], framed(b"one")[4:], b"one"),
        (framed(b"one")[:6], framed(b"one")[6:], b"one"),
        (compressed(b"zeros"), b"", b"zeros"),
        (framed(bytes(101)), b"", None),
    ],
)
def test_what_is_not_whole_or_not_plain_is_not_at_hand(
    came: bytes, rest: bytes, read: bytes | None
) -> None:
    found = []

    async def handler(call: Any) -> None:
        assert call.take() == b"first"
        assert call.take() is None
        found.append(await call.read())

    stand = PutStand(handler, came, most=100)
    if rest:
        stand.client.put(stand.stream, rest)
        stand.carry()
    assert found == ([] if read is None else [read])
    status = b"8" if read is None else b"0"
    assert stand.client.requests[stand.stream].headers["grpc-status"] == status
    stand.close()


def test_draining_lasts_until_the_window_has_taken_all() -> None:
    steps = []

    async def handler(call: Any) -> None:
        put_both(call)
        await call.drain()
        steps.append("drained")

    stand = PutStand(handler, window=10)
    assert stand.answer == WHOLE[:10]
    assert steps == []
    stand.client.consume(stand.stream, 10)
    stand.carry()
    assert stand.answer == WHOLE
    assert steps == ["drained"]
    stand.close()


def test_nothing_can_be_put_once_the_client_is_gone() -> None:
    refused = []

    async def handler(call: Any) -> None:
        assert call.take() == b"first"
        try:
            await call.read()
        except BaseException:
            with pytest.raises(asyncio.CancelledError):
                call.put(b"one")
            refused.append(True)
            raise

    stand = PutStand(handler)
    stand.client.reset(stand.stream)
    stand.carry()
    assert refused == [True]
    stand.close()
