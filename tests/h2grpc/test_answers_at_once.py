"""A call whose message is there is answered without a task, if its handler can; otherwise it runs."""

import gzip
from collections import Counter
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
from warmpath.h2grpc.method import Gate, Method, Refusal, RefusedError

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

PATH = b"/t.T/Once"
MOST = 200_000


class Stand(ClientStand):
    """A connection whose only method answers b"at once" or, to messages with b"wait", b"run"."""

    def __init__(self, gate: Gate | None = None) -> None:
        self.answers: Counter[tuple[str, bytes]] = Counter()
        method = Method(self._run, self._at_once)
        super().__init__({"/t.T/Once": method}, Http2Limits(message_bytes=MOST), gate)

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
    """A call of a client."""

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
        packed = gzip.compress(self.message, mtime=0)
        return b"\1" + len(packed).to_bytes(4, "big") + packed

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
    stand = Stand()
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
    stand = Stand()
    reset = stand.client.begin(PATH)
    late = stand.client.begin(PATH, (b"grpc-timeout", b"5S"))
    for stream in (reset, late):
        stand.client.put(stream, framed(b"message")[:-1])
    stand.carry()
    stand.client.reset(reset)
    stand.carry()
    stand.loop.now += 6.0
    stand.loop.turn()
    stand.carry()
    assert stand.client.requests[late].headers["grpc-status"] == b"4"
    stand.client.put(late, b"e", is_last=True)
    stand.carry()
    assert not stand.answers
    assert len(stand.connection.calls) == 0
    stand.close()


def test_an_error_ends_the_call_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    stand = Stand()
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
