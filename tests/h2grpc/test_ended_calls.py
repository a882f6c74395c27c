"""Handlers that go on after their call or its connection has ended touch nothing that is gone."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from tests.h2grpc.http2 import raw_frames as raw
from tests.h2grpc.served import MISSING
from tests.h2grpc.stand import Stand
from warmpath.h2grpc.http2 import session as sessions
from warmpath.h2grpc.http2.events import EndedError
from warmpath.h2grpc.http2.journal import Journal
from warmpath.h2grpc.http2.limits import Http2Limits
from warmpath.h2grpc.http2.session import Session
from warmpath.h2grpc.method import Method, Refusal, RefusedError

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

WHOLE = raw.PREFACE + raw.settings(window=0)
HALF = raw.data(1, b"\0\0\2\0\0begun")


def stand_of(handler: Callable[[Any], Any]) -> Stand:
    """Return a connection without a client, and with the handler of its only method."""
    return Stand({"/t.T/Go": Method(handler)})


ENDS: dict[str, Callable[[Stand], object]] = {
    "lost": lambda stand: stand.loop.turn(stand.socket.lose),
    "reset": lambda stand: stand.send(raw.reset(1)),
    "late": lambda stand: stand.loop.pass_time(10),
    "broken": lambda stand: stand.send(raw.window(0, 0)),
    "cut off": lambda stand: stand.loop.turn(
        lambda: stand.loop.create_task(stand.connection.cut_off())
    ),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("what", ["first read", "read", "write", "refused"])
def test_a_method_that_ignores_its_end_is_told_so(end: str, what: str) -> None:
    told: list[BaseException] = []

    async def handler(call: Any) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            if what == "first read":
                # The head of a long message waits, for which a read would widen the window.
                await asyncio.Event().wait()
            await call.read()
        try:
            if what.endswith("read"):
                await call.read()
            elif what == "write":
                await call.write(b"x")
            else:
                raise RefusedError(Refusal(grpc.StatusCode.UNKNOWN, "x"))  # noqa: TRY301
        except BaseException as error:
            told.append(error)
            raise

    stand = stand_of(handler)
    stand.send(WHOLE, raw.headers(1, raw.fields("Go", (b"grpc-timeout", b"5S"))), HALF)
    ENDS[end](stand)
    (error,) = told
    assert isinstance(error, RefusedError if what == "refused" else asyncio.CancelledError)
    stand.close()


@pytest.mark.parametrize("end", ENDS)
def test_another_task_of_a_call_does_not_wait_for_ever(end: str) -> None:
    others: list[asyncio.Task[Any]] = []

    async def handler(call: Any) -> None:
        loop = asyncio.get_running_loop()
        others.extend((loop.create_task(call.read()), loop.create_task(call.write(b"x"))))
        await asyncio.Event().wait()

    stand = stand_of(handler)
    stand.send(WHOLE, raw.headers(1, raw.fields("Go", (b"grpc-timeout", b"5S"))), HALF)
    ENDS[end](stand)
    if end == "late":
        # The answer that was begun still waits for the client, whose stream is open.
        assert others[0].done()
        stand.send(raw.reset(1))
    assert all(one.cancelled() for one in others)
    stand.close()


def test_a_client_is_told_of_the_end_once_and_of_all_calls_that_were_taken() -> None:
    async def handler(call: Any) -> None:
        await call.read()

    stand = stand_of(handler)
    stand.send(WHOLE)
    stand.connection.pause_writing()
    before = len(stand.socket.written)
    for stream in (1, 3):
        # The second call comes before the client has heard of the end.
        stand.send(raw.headers(stream, raw.fields("Go")))
        stand.loop.turn(stand.connection.terminate)
    stand.loop.turn(stand.connection.resume_writing)
    written = bytes(stand.socket.written[before:])
    kind = bytes([raw.GOAWAY]) + b"\0" + raw.word(0)
    assert written.count(kind) == 1
    assert written[written.index(kind) + len(kind) :].startswith(raw.word(3) + raw.word(0))
    stand.close()


def test_calls_that_come_after_the_announcement_of_the_end_are_still_answered() -> None:
    async def handler(call: Any) -> None:
        await call.read()

    stand = stand_of(handler)
    stand.send(WHOLE)
    before = len(stand.socket.written)
    stand.loop.turn(stand.connection.go_away)
    kind = bytes([raw.GOAWAY]) + b"\0" + raw.word(0)
    told = bytes(stand.socket.written[before:])
    assert told[told.index(kind) + len(kind) :].startswith(raw.word((1 << 31) - 1) + raw.word(0))
    # The client sent this before it heard of the end.
    stand.send(raw.headers(1, raw.fields("Go")))
    assert len(stand.connection.calls) == 1
    stand.loop.turn(stand.connection.terminate)
    told = bytes(stand.socket.written[before:])
    assert told[told.rindex(kind) + len(kind) :].startswith(raw.word(1) + raw.word(0))
    stand.close()


def test_metadata_that_cannot_be_sent_end_the_call_with_an_error() -> None:
    async def handler(_: Any) -> None:
        raise RefusedError(Refusal(grpc.StatusCode.UNKNOWN, "x", (("KEY", "b"),)))

    stand = stand_of(handler)
    stand.send(WHOLE, raw.headers(1, raw.fields("Go")))
    stand.send(raw.data(1, b"", raw.END_STREAM))
    assert len(stand.connection.calls) == 0
    stand.close()


class _Events:
    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error

    def requested(self, *_: Any, **__: Any) -> None:
        if self.error is not None:
            raise self.error

    def received(self, *_: Any) -> None:
        """Take nothing."""

    ended = closed = received


def session_of(events: _Events) -> Session:
    return Session(events, Http2Limits(), lambda: 0.0, Journal(Http2Limits()))


def test_a_session_that_is_closed_says_so_and_touches_no_memory() -> None:
    session = session_of(_Events())
    session.receive(WHOLE + raw.headers(1, raw.fields("Go")))
    session.close()
    session.close()
    for act in (
        lambda: session.send(bytes),
        session.ping,
        lambda: session.receive(b"x"),
        lambda: session.consume(1, 1),
        lambda: session.widen(1, 1),
        lambda: session.answer_at_once(1, []),
        lambda: session.answer(1, []),
        lambda: session.reset(1, 0),
        lambda: session.terminate(0),
    ):
        with pytest.raises(EndedError):
            act()
    assert session.unsent == 0


def test_an_error_in_a_callback_ends_the_connection_and_comes_out_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    session = session_of(_Events(RuntimeError("odd")))
    with pytest.raises(EndedError) as found:
        session.receive(WHOLE + raw.headers(1, raw.fields("Go")))
    assert isinstance(found.value.__cause__, RuntimeError)
    assert "unexpected" in caplog.text
    # GOAWAY with INTERNAL_ERROR, for the stream that was begun last.
    assert session.goaway_of(found.value)[9:] == raw.word(1) + raw.word(2)
    session.close()


def test_an_interrupt_in_a_callback_is_not_lost() -> None:
    before = len(sessions.OPEN)
    session = session_of(_Events(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        session.receive(WHOLE + raw.headers(1, raw.fields("Go")))
    session.close()
    assert len(sessions.OPEN) == before
